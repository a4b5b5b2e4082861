"""Signs: when something is wrong with a cache, told from its calls: no step for long, few hits, long waits.

Pure: it hears of calls and of the time, and says what is wrong. A sign is reported once, and again after it was gone.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quire.core.records.errors import InputError, say, shown
from quire.incidents.record.entry import Entry

LEAST_REQUESTS = 20  # from which a hit rate is judged
WINDOW = 60.0  # seconds that it is of
MOST_WAITING = 1 << 16
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FRESH = 0.25  # of the limit of a hang: a request that was asked for so lately still waits
STEPS = ("grow", "launch", "commit", "commit_step")


@dataclass(frozen=True, slots=True)
class Lines:
    """Limits: an incident is written when one is crossed; None: not checked."""

    hang: float | None = 60.0  # seconds without a step while there are sequences, or requests ask and none gets in
    hit_rate: float | None = None  # of the prompt tokens of a minute; below it is a sign
    waiting: float | None = None  # seconds from a request's first claim to the last one that did not get it in

    def __post_init__(self) -> None:
        for name in ("hang", "hit_rate", "waiting"):
            value = getattr(self, name)
            wrong = isinstance(value, bool) or not isinstance(value, int | float) or not value > 0
            if value is not None and (wrong or (name == "hit_rate" and value >= 1)):
                cure = "give a share between 0 and 1, or None" if name == "hit_rate" else "give seconds, or None"
                raise InputError(say(f"{name}={shown(value)}", "it is not a line to cross", cure))


def seconds_of(keep: Any) -> float:
    """A time in words: 90s, 30m, 1h, or seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", keep) if isinstance(keep, str) else None
    if found is not None:
        keep = float(found[1]) * UNITS[found[2]]
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep < 1e9:
        raise InputError(say(f"incidents that keep {shown(keep)}", "it is not a time", "give 90s, 30m, 1h, or seconds"))
    return float(keep)


class Signs:
    """Of one cache."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._last_step: float | None = None  # or since when there is something to do
        self._last_asked: float | None = None  # for a request, since the last step
        self._prompts: deque[tuple[float, int, int]] = deque()  # time, tokens, of them hit
        self._asked: OrderedDict[int, float] = OrderedDict()  # by request: its first claim
        self._on: set[str] = set()
        self._was_above = False  # the hit rate has been above its line

    def hear(self, entries: Iterable[Entry]) -> list[str]:
        """Some calls; what they are signs of."""
        found: list[str] = []
        for entry in entries:
            if entry.verb in ("claim", "add"):
                self._last_asked = entry.time
                self._last_step = entry.time if self._last_step is None else self._last_step
                found += self._hear_asked(entry)
            got_in = entry.verb in ("add", "admit") and bool(entry.answer[0] or entry.answer[1])
            if got_in or entry.verb in STEPS:
                self._last_step, self._last_asked = entry.time, None
                self._on.discard("hang")
            if entry.verb in ("add", "admit"):
                for number, _, start, length in entry.answer[0]:
                    self._asked.pop(number, None)
                    self._prompts.append((entry.time, length, start))
                found += self._hit_rate(entry.time)
        return found

    def look(self, now: float, is_live: bool) -> list[str]:
        """The time, and whether there is something to do."""
        hang, last, asked = self._lines.hang, self._last_step, self._last_asked
        if hang is None:
            return []
        asks = asked is not None and now - asked <= FRESH * hang
        if not is_live and not asks:
            self._last_step = self._last_asked = None
        elif last is None:
            self._last_step = now
        elif now - last > hang:
            waits = ", and requests ask in vain" if asks else ""
            return self._tell("hang", f"hang: no step for {now - last:.0f} s{waits}")
        return []

    def _hear_asked(self, entry: Entry) -> list[str]:
        line, found = self._lines.waiting, list[str]()
        for asked in entry.given[0]:
            first = self._asked.setdefault(asked.number, entry.time)
            if len(self._asked) > MOST_WAITING:
                self._asked.popitem(last=False)
            if line is not None and entry.time - first > line:
                found += self._tell("waiting", f"waiting: request {asked.number} for {entry.time - first:.1f} s")
        if line is not None and not any(entry.time - at > line for at in self._asked.values()):
            self._on.discard("waiting")
        return found

    def _hit_rate(self, now: float) -> list[str]:
        while self._prompts and self._prompts[0][0] < now - WINDOW:
            self._prompts.popleft()
        line = self._lines.hit_rate
        if line is None or len(self._prompts) < LEAST_REQUESTS:
            return []
        rate = sum(hit for _, _, hit in self._prompts) / max(1, sum(tokens for _, tokens, _ in self._prompts))
        if rate >= line:
            self._was_above = True
            self._on.discard("hit_rate")
            return []
        return self._tell("hit_rate", f"hit rate: {rate:.2f} of a minute's prompts") if self._was_above else []

    def _tell(self, sign: str, words: str) -> list[str]:
        if sign in self._on:
            return []
        self._on.add(sign)
        return [words]
