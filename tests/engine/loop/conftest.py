"""The model of loops, and its plain answer; a file may have a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quire.engine import Model


@pytest.fixture(scope="module")
def model() -> Model:
    from quire.engine import from_module

    from .. import families

    return from_module(families.build("llama"))


@pytest.fixture(scope="module")
def expected(model: Model) -> tuple[int, ...]:
    """The plain answer."""
    from quire.engine import Engine, EngineConfig

    from .loops import PLAIN, PROMPT, SIZES

    with Engine(model, EngineConfig(**SIZES, max_length=512)) as engine:
        run = engine.submit(PROMPT, PLAIN)
        engine.drain()
    return tuple(run.answers[0].tokens)
