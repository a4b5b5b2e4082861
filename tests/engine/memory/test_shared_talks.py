"""The random talks of test_exact.py by engines over a shared store: each talk twice, the second time from the store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine.model.layers import Model
from quire.engine.runner.engine import Engine
from quire.engine.setup.engine_config import EngineConfig
from quire.tiers.shared import SharedCache, SharedConfig

from .. import families, talks
from ..reference import Reference
from ..steps import model_of
from ..test_exact import Pair, run_talk

FIRST = {"gemma3": 3, "gemma3_pool": 3, "qwen3_next": 0}  # talks with a host


def sharing(folder: Path, opened: list[SharedCache], model: Model, config: EngineConfig, **more: Any) -> Engine:
    """An engine over a store, if it has a host for every group."""
    pages = config.host_pages
    if isinstance(pages, int) or not all(pages):
        return Engine(model, config, **more)
    engine = Engine(model, config, shared=SharedConfig(folder, wait=5, host_share=1.0, audit=True), **more)
    assert engine.shared_side is not None
    opened.append(engine.shared_side.shared)
    return engine


def play(name: str, seeds: range, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(name, model_of(name), Reference(families.build(name)))
    opened: list[SharedCache] = []
    ties = answers = 0
    for seed in seeds:
        monkeypatch.setattr(talks, "Engine", partial(sharing, folder / str(seed), opened))
        for _ in range(2):
            counts, found = run_talk(pair, seed)
            ties, answers = ties + len(found), answers + counts["answers"]
    assert ties <= 1 + answers // 2000
    assert sum(shared.counts().hits for shared in opened) > 0
    audits = [shared.audit for shared in opened if shared.audit is not None]
    assert sum(audit.num_right for audit in audits) > 0 and not sum(audit.num_wrong for audit in audits)


@pytest.mark.parametrize("name", (*families.NAMES[1:], *families.POOLED))  # windows and states are the hard ones
def test_a_random_talk_over_a_store(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(name, range(FIRST[name], FIRST[name] + 1), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", (*families.NAMES, *families.POOLED))
def test_many_random_talks_over_a_store(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(name, range(100, 160), tmp_path, monkeypatch)
