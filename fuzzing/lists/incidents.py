"""Incidents from a real cache, made short: what fails when their calls are played, with as few of them as will do.

Played loosely (`quire.incidents.LoosePlayer`), every invariant looked at after each call: any part of the calls is a
list too. What is left at the end is a failure as well: handles that nobody closed, requests that never got in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pprint import pformat
from typing import Any

from fuzzing.lists.shrink import Data, Shrinker, Tell
from fuzzing.subject import StoreName
from quire.core.check import check
from quire.core.records.config import CacheConfig
from quire.core.records.errors import QuireError
from quire.incidents.files.incident_file import Incident, config_data, config_of
from quire.incidents.play.loose_player import LoosePlayer


def failure_of(config: CacheConfig | Data, calls: Sequence[Any], store: StoreName) -> str | None:
    """What goes wrong when these calls are played; None: nothing."""
    player = LoosePlayer(config if isinstance(config, CacheConfig) else config_of(config, "a list"), store=store)
    try:
        for call in calls:
            player.step(call)
            check(player.cache)
    except Exception as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    if player.open_handles:
        return f"left open: {', '.join(sorted({type(one).__name__ for one in player.open_handles}))}"
    return "never admitted" if player.waiting else None


def kind_of_failure(failure: str | None) -> str | None:
    """Failures of one kind: what they say, without numbers and names."""
    return None if failure is None else failure.partition(" of ")[0][:40].rstrip("0123456789")


class IncidentShrinker(Shrinker):
    """An incident on its way to a shorter one."""

    def __init__(self, incident: Incident, store: StoreName, tell: Tell | None = None) -> None:
        self.store, self.tell = store, tell
        self.tries, self.seen = 0, set()
        self.best = {"world": config_data(incident.config), "calls": list(incident.calls)}
        self.what = failure_of(incident.config, incident.calls, store)
        if self.what is None:
            raise ValueError("shrink: nothing goes wrong when it is played, with every invariant looked at")
        self.kind = kind_of_failure(self.what) or ""

    def fails(self, data: Data) -> bool:
        """Whether these calls fail in the same way; if so they are kept."""
        text = json.dumps(data["calls"])
        if text in self.seen:
            return False
        self.seen.add(text)
        self.tries += 1
        if self.tell is not None:
            self.tell(self.tries, len(self.best["calls"]))
        try:
            what = failure_of(data["world"], data["calls"], self.store)
        except QuireError:
            return False
        if kind_of_failure(what) != self.kind:
            return False
        self.best, self.what = data, what
        return True

    def shortest(self, incident: Incident) -> Incident:
        """Until no call can be taken out."""
        before = -1
        while before != (before := len(self.best["calls"])):
            self.fewer(("calls",))
        return Incident(self.what or "", incident.made, incident.config, self.best["calls"], incident.start)


def incident_test(short: Incident, name: str) -> str:
    """It as a test that is ready to be run."""
    calls = "\n".join(f"    {call!r}," for call in short.calls)
    config = pformat(config_data(short.config), width=108, sort_dicts=False)
    return f'''"""{short.reason}"""

import pytest

from fuzzing.lists.incidents import failure_of
from fuzzing.subject import available_stores

CONFIG = {config}
CALLS = [
{calls}
]


@pytest.mark.parametrize("store", available_stores())
def test_{name}(store):
    assert failure_of(CONFIG, CALLS, store) is None
'''
