"""What all tests share: each store in turn, and an environment that is the same everywhere."""

from __future__ import annotations

import gc
import importlib
import os
from pathlib import Path

import pytest

from quire.core.store import StoreName

# Helper modules assert as tests do, with the values in the message, and under `python -O` too.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in Path(__file__).parent.iterdir() if path.is_dir()))
# Before torch comes, and for the processes that tests start: they run beside each other, and their models are tiny.
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in (
    "PYTHONWARNINGS",
    "QUIRE_SECRET",
    "QUIRE_API_KEYS",
    "QUIRE_VIEWER_KEY",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
):
    os.environ.pop(name, None)  # what the person who runs them has set for themselves


def pytest_collection_finish() -> None:
    """What was imported stays, and tests make little garbage: fewer collections save a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(params=["twin", "compiled"])
def store(request: pytest.FixtureRequest) -> StoreName:
    """Each store in turn; QUIRE_REQUIRE_COMPILED=1 turns a missing compiled one into a failure."""
    if request.param == "compiled" and os.environ.get("QUIRE_REQUIRE_COMPILED") != "1":
        try:
            importlib.import_module("quire.core.store._compiled")
        except ImportError as missing:
            pytest.skip(f"the compiled store is not built: {missing}")
    name: StoreName = request.param
    return name
