"""IncidentPlayer: the calls of an incident made again on a real cache: same rows, slots and answers, or it says so.

The cache reads the times that the first one read, and loses the handles that the first one lost. It is recorded
while it plays, in the way the first one was, so what it answers can be compared with what was answered then.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

from quire.core.records.config import CacheConfig
from quire.core.records.errors import BrokenInvariant, InputError, QuireError, StateError, say
from quire.core.store import StoreName
from quire.incidents.files.incident_file import Incident, Plain
from quire.incidents.play.acts import ACTS
from quire.incidents.play.played_cache import PlayedCache
from quire.incidents.record.encode import checksum


class IncidentPlayer(PlayedCache):
    """Plays one incident, call by call."""

    def __init__(self, incident: Incident, *, store: StoreName = "auto", config: CacheConfig | None = None) -> None:
        if incident.start is not None:
            fact = "its first calls were dropped for want of room, so the state before it is not known"
            raise StateError(say("an exact replay", fact, "play it loosely, or give the recorder more max_bytes"))
        super().__init__(incident.config if config is None else config, store)
        self.incident, self.place = incident, 0
        self.answer: Any = None  # of the last call

    @property
    def time(self) -> float:
        """Seconds since the first call."""
        calls = self.incident.calls
        return float(calls[min(self.place, len(calls) - 1)][1] - calls[0][1]) if calls else 0.0

    def step(self) -> Plain | None:
        """Make the next call and compare; None: all were made. Raises what the cache raises, or what differs."""
        if self.place == len(self.incident.calls):
            return None
        call = self.incident.calls[self.place]
        self.place += 1
        self.answer = self.play(call)
        self._compare(call)
        return call

    def run(self, stop: Callable[[IncidentPlayer], bool] | None = None) -> int:
        """Make all calls that are left, or until `stop` says so; returns how many."""
        first = self.place
        while self.step() is not None:
            if stop is not None and stop(self):
                break
        return self.place - first

    def play(self, call: Plain) -> Any:
        """Make one call; returns what it returned."""
        verb, time, clock, given, _ = call
        act = ACTS.get(verb)
        if act is None:
            raise InputError(
                say(f"call {self.place} of an incident", f"there is no call {verb!r}", "play another file")
            )
        self.clock.times, self.clock.last, self.clock.is_short = list(clock), time, False
        self.noted.clear()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # handles that were lost then are lost again
                return act(self, *given)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            if self.raised is error or isinstance(error, QuireError):
                raise
            fact = f"what it names is not there: {type(error).__name__}: {error}"
            raise InputError(say(f"call {self.place} of an incident ({verb})", fact, "play a whole file")) from error

    def _compare(self, call: Plain) -> None:
        """What came of it must be what came of it then."""
        verb, _, clock, _, answer = call
        made = [entry for entry in self.noted if entry.verb == verb or verb == "tidy"]
        ask = f"call {self.place} of an incident ({verb})"
        if verb == "tidy":
            return
        if len(made) != 1:
            raise BrokenInvariant(f"{ask}: it was made {len(made)} times")
        found = json.loads(json.dumps(checksum(made[0].answer)))
        if found != json.loads(json.dumps(answer)):
            raise BrokenInvariant(f"{ask}: it answered {found}, and then {json.loads(json.dumps(answer))}")
        if self.clock.times or self.clock.is_short:
            more = "more" if self.clock.is_short else "less"
            raise BrokenInvariant(f"{ask}: the clock was read {more} often than then, {len(clock)} times")
