"""A bad line: what is lost is noticed within one batch, and repaired."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from ..effort import cases
from .faults import run_once

RUNS = int(os.environ.get("QUIRE_EVENT_FAULTS", cases("75", "4000")))


@pytest.mark.long
def test_every_loss_is_noticed_and_repaired() -> None:
    """Batches dropped, doubled, delayed, cut and misnumbered; asks and answers lost too. EXACT is always right."""
    total: Counter[str] = Counter()
    for seed in range(RUNS):
        total += run_once(seed)
    assert total["runs"] == RUNS and total["repaired"] > RUNS / 3
    assert min(total[fault] for fault in ("drop", "duplicate", "delay", "truncate", "renumber")) > RUNS / 3
    assert total["replays"] and total["snapshots"] and total["fetched bytes"] > 0
