"""What all tests share: each store in turn."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

# Helper modules assert as tests do, with the values in the message, and under `python -O` too.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in Path(__file__).parent.iterdir() if path.is_dir()))


@pytest.fixture(params=["twin", "compiled"])
def store(request: pytest.FixtureRequest) -> str:
    """Each store in turn; QUIRE_REQUIRE_COMPILED=1 turns a missing compiled one into a failure."""
    if request.param == "compiled" and os.environ.get("QUIRE_REQUIRE_COMPILED") != "1":
        try:
            importlib.import_module("quire.core.store._compiled")
        except ImportError as missing:
            pytest.skip(f"the compiled store is not built: {missing}")
    return str(request.param)
