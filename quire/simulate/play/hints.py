"""ReplayHints: what an engine could have said of each request: whose it is, and when its text comes back.

    none     nothing
    finish   sessions, and what an engine said or knew at the end: a tool runs (soon), a person reads (later)
    exact    sessions, and what the trace says of its own future: back within a minute (soon), later, or never

Sessions say what comes back: a session's next request. Without one it is the next request that begins with the
first half of the prompt, in whole parts. Gives nothing to a cache; the player does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, islice

from quire.core.records.hint_words import Back
from quire.simulate.setup.replay_settings import Hints
from quire.trace.read.trace import Trace, TraceRequest

SOON = 60.0  # seconds
BY_FINISH: dict[str, Back] = {"tool_calls": "soon", "function_call": "soon", "tool_use": "soon", "stop": "later"}
NOT_AGAIN = -1


class ReplayHints:
    """Hints for one trace. Players of the same trace may share one: it remembers nothing."""

    def __init__(self, trace: Trace, kind: Hints, times: list[float]) -> None:
        self._kind, self._times = kind, times
        self._next = _following(trace) if kind == "exact" else []

    def back(self, request: TraceRequest, now: float) -> Back | None:
        """What is said at its end."""
        if self._kind == "none":
            return None
        if self._kind == "finish":
            return request.back or BY_FINISH.get(request.finish or "")
        number = self._next[request.number]
        if number == NOT_AGAIN:
            return "never"
        return "soon" if self._times[number] - now <= SOON else "later"


class HintCounts(Counter[str]):
    """How often each was said."""

    def add(self, back: Back | None) -> None:
        """Once more."""
        self[back or "none"] += 1


def _following(trace: Trace) -> list[int]:
    """For each request, the next one that its text comes back with."""
    following = [NOT_AGAIN] * len(trace)
    by_session: dict[int | str, int] = {}
    by_text: dict[object, int] = {}
    for request in reversed(trace.requests):
        number = request.number
        if request.session is not None:
            following[number] = by_session.get(request.session, NOT_AGAIN)
            by_session[request.session] = number
            continue
        prefixes = list(_prefixes(request))
        if prefixes:
            following[number] = by_text.get(prefixes[len(prefixes) // 2], NOT_AGAIN)
        by_text.update(dict.fromkeys(prefixes, number))
    return following


def _prefixes(request: TraceRequest) -> Iterator[object]:
    """A name for each beginning of its prompt that ends with a whole part."""
    if not request.reuse:
        return iter(())
    if request.unit:  # an id stands for what is before it, too
        return iter(request.parts[: request.length // request.unit].tolist())
    pairs = zip(request.parts.tolist(), request.sizes.tolist(), strict=True)
    return islice(accumulate(pairs, _behind, initial=hash(request.scope.key)), 1, None)


def _behind(before: int, part: tuple[int, int]) -> int:
    """A name for a part and all before it."""
    return hash((before, part))
