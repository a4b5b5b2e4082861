"""Warming up: before the first request, it leaves nothing behind and keeps what is cached."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import ConfigWarning, StateError  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402

from .. import families  # noqa: E402
from ..steps import (  # noqa: E402
    assert_clean,
    assert_exact,
    facts,
    finish,
    open_engine,
    plain,
    words,
)

NAMES = families.NAMES
LAST = families.VOCAB - 1


@pytest.fixture
def llama() -> Iterator[Engine]:
    with open_engine("llama", 24, events=True) as engine:
        yield engine


@pytest.mark.parametrize("pages", [1, 2, 3, 4, 40])
@pytest.mark.parametrize("name", NAMES)
def test_warm_up_leaves_nothing_behind(name: str, pages: int) -> None:
    """As many pages as there are: afterwards every slot is empty, nothing was told, no step was counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # so few pages that nothing could be resumed
        engine = open_engine(name, pages, 4, max_num_tokens=48, max_sequences=6, events=True)
    groups = range(len(engine.cache.config.groups))
    computed = engine.warm_up()
    assert 0 < computed <= 48 + 2 * 6 or (pages == 1 and name == "qwen3_next")
    assert_clean(engine)
    for group in groups:
        for tier, capacity in enumerate((pages, 4)):
            assert engine.cache.usage(tier, group).empty == capacity
    assert engine.stats.num_steps == 0 and not engine.runs and not len(engine.cache.take_events())
    assert engine.cache.probe([engine_request(engine)])[0].start == 0
    if pages > 3:
        runs = [engine.submit(words(0, 9), plain(3)), engine.submit([1] * 9, plain(3))]
        finish(engine)
        assert runs[0].reused == runs[1].reused == 0, "not even the tokens that warm-up uses"
        assert_exact(name, runs)
    engine.close()


def test_warm_up_keeps_what_is_cached(llama: Engine) -> None:
    """Late, on an engine that has served: it is refused, or pushes nothing out."""
    run = llama.submit(words(0, 100), plain(9))
    finish(llama)
    before = facts(llama)[0]
    with contextlib.suppress(StateError):
        llama.warm_up()
    assert facts(llama)[0] == before
    again = llama.submit(words(0, 100), plain(9))
    finish(llama)
    assert again.reused == 99
    assert_exact("llama", [run, again])


def engine_request(engine: Engine) -> Any:
    """The tokens that warm-up uses, asked for by anybody."""
    from quire import Request

    return Request("anybody", np.ones(min(40, engine.config.max_length), np.int32))


def test_warm_up_is_for_the_beginning(llama: Engine) -> None:
    llama.submit(words(0, 9), plain(3))
    before = facts(llama)
    with pytest.raises(StateError, match="1 runs are"):
        llama.warm_up()
    assert facts(llama) == before
    finish(llama)
