"""MissTally: why prompt tokens were computed and not reused, added up over a replay from its receipts. Words: show.

A trace of hash ids has no text that a receipt could find again behind another beginning; its maker had, and left marks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from quire import Miss, Receipt
from quire.trace.read.trace import Trace, TraceRequest
from quire.trace.record.trace_writer import Interruption

MOST_PLACES = 4096  # places where prompts diverge that are distinguished


class MissTally:
    """Tokens by cause, at first admissions."""

    def __init__(self, trace: Trace, watched: int | None) -> None:
        self._watched = watched
        self._causes: Counter[str] = Counter()
        self._groups: Counter[tuple[str, str]] = Counter()
        self._parted: Counter[int] = Counter()
        self._again: Counter[tuple[int, int]] = Counter()  # where new text began, and was known text again
        self._prompts = self._marked = self._equal_after = 0
        self._explained: dict[str, Any] = {}

    def add(self, now: float, request: TraceRequest, receipt: Receipt) -> None:
        """A prompt was admitted for the first time."""
        self._prompts += 1
        for miss in receipt.misses:
            self._causes[miss.cause] += miss.num_tokens
            if miss.group is not None:
                self._groups[miss.cause, receipt.groups[miss.group]] += miss.num_tokens
            if miss.cause == "new" and (miss.start in self._parted or len(self._parted) < MOST_PLACES):
                self._parted[miss.start] += 1
        self._note_interruption(request, receipt)
        if request.number == self._watched:
            self._explained = {"request": request.number, "line": request.line, "seconds": round(now, 3)}
            self._explained["text"] = explanation(receipt)

    def _note_interruption(self, request: TraceRequest, receipt: Receipt) -> None:
        """Where a prompt was interrupted first; one with a mark where that says, whatever blocks its text was in."""
        first, mark = next((miss for miss in receipt.misses if miss.cause == "interrupted"), None), request.interrupted
        if first is not None:
            place = (first.parted if mark is None else mark.position, first.start)
            if len(self._again) < MOST_PLACES or place in self._again:
                self._again[place] += 1
        if mark is not None:
            self._marked += 1
            self._equal_after += sum(stop - start for start, stop in mark.pieces)

    def to_json(self) -> dict[str, Any]:
        """Plain values; empty when nothing was explained."""
        if not self._prompts:
            return {}
        place, prompts = self._parted.most_common(1)[0] if self._parted else (0, 0)
        return {
            "tokens": self._causes.total(),
            "causes": dict(self._causes.most_common()),
            "groups": {f"{cause}, {group}": count for (cause, group), count in self._groups.most_common()},
            "parted_at": {"token": place, "requests": prompts, "of": self._prompts},
            **self._interruptions(),
            **({"explained": self._explained} if self._explained else {}),
        }

    def _interruptions(self) -> dict[str, Any]:
        """The place where most prompts were interrupted, and how many had a mark of the trace's maker."""
        found: dict[str, Any] = {}
        if self._again:
            places: Counter[int] = Counter()
            for (parted, _), count in self._again.items():
                places[parted] += count
            token, count = places.most_common(1)[0]
            again = max((number, start) for (parted, start), number in self._again.items() if parted == token)[1]
            found["interrupted_at"] = {"token": token, "again": again, "requests": count, "of": self._prompts}
        if self._marked:
            found["marked_interrupted"] = {"requests": self._marked, "equal_tokens": self._equal_after}
        return found


def with_mark(receipt: Receipt, mark: Interruption | None) -> Receipt:
    """A receipt in which the new text that a trace's maker had seen before is called interrupted."""
    if mark is None:
        return receipt
    misses: list[Miss] = []
    for miss in receipt.misses:
        misses += [miss] if miss.cause != "new" else _split(miss, mark)
    return replace(receipt, misses=tuple(misses))


def _split(miss: Miss, mark: Interruption) -> list[Miss]:
    found, at = list[Miss](), miss.start
    parted = max(mark.position, miss.start)
    for start, stop in mark.pieces:
        start, stop = max(start, at), min(stop, miss.stop)
        if start < stop:
            found += [replace(miss, start=at, stop=start), Miss("interrupted", start, stop, gap=max(start - parted, 0))]
            at = parted = stop
    return [part for part in (*found, replace(miss, start=at)) if part.start < part.stop]


def explanation(receipt: Receipt) -> str:
    """A receipt for people, and what would have helped."""
    lines = [receipt.text()]
    for cause in dict.fromkeys(miss.cause for miss in receipt.misses):
        miss = next(one for one in receipt.misses if one.cause == cause)
        if miss.counterfactual is not None:
            lines.append(f"{receipt.missed(cause):,} would have been reused with {miss.counterfactual}")
    return "\n".join(lines)
