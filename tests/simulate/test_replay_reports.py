"""A faster replay reports what the slower one did: every count, series and time, of workloads short of memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace
from tests.simulate.replay_reports import FILE, cases, report

KEPT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
CASES = list(cases())


@pytest.mark.parametrize(("name", "trace", "settings"), CASES, ids=[name for name, _, _ in CASES])
def test_a_replay_reports_what_it_did(name: str, trace: Trace, settings: ReplaySettings) -> None:
    assert report(trace, settings) == KEPT[name]


def test_the_workloads_are_short_of_memory() -> None:
    assert set(KEPT) == {name for name, _, _ in CASES}
    for name in KEPT:
        assert KEPT[name]["evictions"] > 0 and (KEPT[name]["preemptions"] > 0 or "prompts only" in name)
