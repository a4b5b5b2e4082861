"""MissTally: why prompt tokens were computed and not reused, added up over a replay from its receipts. Words: show."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quire import Receipt
from quire.trace.read.trace import Trace, TraceRequest

MOST_PLACES = 4096  # places where prompts diverge that are distinguished


class MissTally:
    """Tokens by cause, at first admissions."""

    def __init__(self, trace: Trace, watched: int | None) -> None:
        self._named = not trace.unit  # a part of a trace of hash ids says what is before it, too
        self._watched = watched
        self._causes: Counter[str] = Counter()
        self._groups: Counter[tuple[str, str]] = Counter()
        self._parted: Counter[int] = Counter()
        self._prompts = self._repeated = 0
        self._seen: set[int] = set()
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
        if self._named:
            self._count_repeated(request, receipt)
        if request.number == self._watched:
            self._explained = {"request": request.number, "line": request.line, "seconds": round(now, 3)}
            self._explained["text"] = explanation(receipt)

    def _count_repeated(self, request: TraceRequest, receipt: Receipt) -> None:
        """New tokens in parts that an earlier prompt had, behind something else."""
        first = min([miss.start for miss in receipt.misses if miss.cause == "new"], default=request.length)
        end = 0
        for part, size in zip(request.parts.tolist(), request.sizes.tolist(), strict=True):
            end += size
            if end > first and part in self._seen:
                self._repeated += min(size, end - first)
        self._seen.update(request.parts.tolist())

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
            "repeated_tokens": self._repeated if self._named else None,
            **({"explained": self._explained} if self._explained else {}),
        }


def explanation(receipt: Receipt) -> str:
    """A receipt for people, and what would have helped."""
    lines = [receipt.text()]
    for cause in dict.fromkeys(miss.cause for miss in receipt.misses):
        miss = next(one for one in receipt.misses if one.cause == cause)
        if miss.counterfactual is not None:
            lines.append(f"{receipt.missed(cause):,} would have been reused with {miss.counterfactual}")
    return "\n".join(lines)
