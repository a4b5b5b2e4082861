"""A file of calls that an earlier version wrote, played by today's code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuzzing.subject import available_stores
from quire import TierConfig, check
from quire.core.maps import live_ids
from quire.core.store import StoreName
from quire.incidents import IncidentPlayer, LoosePlayer, load
from quire.incidents.play.findings import find_out
from tests.golden.incident import lived

FILE = Path(__file__).with_name("incident-1.gz")


@pytest.mark.parametrize("store", available_stores())
def test_its_calls_are_played_to_the_slot(store: StoreName) -> None:
    incident = load(FILE)
    player = IncidentPlayer(incident, store=store)
    assert player.run() == len(incident.calls) == 45
    assert sorted(map(int, map(str, live_ids(player.cache)))) == [1, 5]
    check(player.cache)


def test_it_is_read_and_played_with_other_sizes() -> None:
    incident = load(FILE)
    assert not find_out(incident).left_open
    config = replace(incident.config, tiers=(TierConfig("device", (40, 24)), incident.config.tiers[1]))
    outcome = LoosePlayer(config).play(incident.calls)
    assert outcome.admitted == 5 and outcome.hit_tokens and not outcome.refused


def test_this_version_writes_the_same_calls(tmp_path: Path) -> None:
    ours, theirs = load(lived(tmp_path)), load(FILE)
    assert (ours.config, ours.calls, ours.start) == (theirs.config, theirs.calls, theirs.start)
