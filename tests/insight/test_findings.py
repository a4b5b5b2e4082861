"""Findings in worlds of applications: none where nothing is wrong, and those that were planted where they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from quire.insight.findings.find import FindOptions, LogFindings, find_findings
from quire.insight.findings.prompt_rows.prompt_log import LogReader
from quire.trace.units import Int32
from tests.effort import cases

from .prompt_worlds import NAMED, TEXT_FAULTS, TRAFFIC_FAULTS, World, worlds

REQUESTS = 400
QUIET = settings(
    max_examples=2, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
PAIRS = [("time", "salt"), ("shuffle", "retries"), ("cut", "id"), ("spaces", "adapter"), ("compact", "template")]


def found_in(world: World) -> LogFindings:
    reader = LogReader()
    for prompt in world.prompts():
        reader.add(prompt)

    def fetch(numbers: Sequence[int]) -> dict[int, Int32]:
        return {number: np.array(world.tokens(number), np.int32) for number in numbers}

    options = FindOptions(world.memory, world.block_size)
    return find_findings(reader.finish(), options, fetch, lambda number, token: None)


def check(world: World) -> None:
    """Each fault is named, at its place; nothing else is."""
    found = found_in(world)
    kinds = [one.kind for one in found.findings]
    assert len(kinds) == len(world.faults), (world.faults, kinds)
    for fault, app in world.faults.items():
        (one,) = [one for one in found.findings if one.kind in NAMED[fault]]
        lines = [world.sent[line - 1] for line in one.examples]
        assert fault == "blocks" or {sent.app for sent in lines} == {app}
        places = world.apps[app].places(fault)
        assert one.token is None if places is None else one.token in places, (fault, one.token, places)
        assert fault != "id" or one.facts["tokens"] == 9
        assert 0 <= one.before <= one.after <= 1 and one.confidence > 0.1
        share = sum(sent.app == app for sent in world.sent) / len(world.sent)
        if fault in TEXT_FAULTS:
            assert one.requests == pytest.approx(share, abs=0.05)


@settings(QUIET, max_examples=cases(4, 20))
@given(worlds((), REQUESTS))
def test_nothing_is_found_where_nothing_is_wrong(world: World) -> None:
    assert found_in(world).findings == []


@pytest.mark.long
@pytest.mark.parametrize("fault", TEXT_FAULTS + TRAFFIC_FAULTS)
@settings(QUIET, max_examples=cases(1, 3))
@given(data=st.data())
def test_a_fault_is_named(fault: str, data: st.DataObject) -> None:
    check(data.draw(worlds((fault,), REQUESTS)))


@pytest.mark.parametrize("faults", PAIRS)
@settings(QUIET, max_examples=cases(1, 3))
@given(data=st.data())
def test_two_faults_are_told_apart(faults: tuple[str, str], data: st.DataObject) -> None:
    check(data.draw(worlds(faults, 2 * REQUESTS)))
