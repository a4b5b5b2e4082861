"""Span: a half-open range of tokens or of blocks. Owns nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.records.errors import InputError, say, shown

FAR = 1 << 62  # longer than any text


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """`[start, end)`; an empty span is legal and false."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if type(self.start) is not int or type(self.end) is not int or not 0 <= self.start <= self.end < FAR:
            ask = f"span [{shown(self.start)}, {shown(self.end)})"
            raise InputError(say(ask, "it needs ints with 0 <= start <= end", "correct the bounds"))

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, place: int) -> bool:
        return self.start <= place < self.end


def merged(*spans: Span) -> tuple[Span, ...]:
    """The same places in as few spans as possible, ascending; empty ones are left out."""
    found: list[Span] = []
    for span in sorted(span for span in spans if span):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return tuple(found)


def without(spans: tuple[Span, ...], taken: tuple[Span, ...]) -> tuple[Span, ...]:
    """The places of `spans` that are in none of `taken`; one walk along both, however many there are."""
    if not taken:
        return spans
    kept: list[Span] = []
    holes, nth = merged(*taken), 0
    for span in merged(*spans):
        start = span.start
        while nth < len(holes) and holes[nth].start < span.end:
            hole = holes[nth]
            if hole.start > start:
                kept.append(Span(start, hole.start))
            start = min(max(start, hole.end), span.end)
            if hole.end > span.end:
                break  # it may reach into the next one
            nth += 1
        if start < span.end:
            kept.append(Span(start, span.end))
    return tuple(kept)


def cut_before(place: int, uncut: tuple[Span, ...]) -> int:
    """The last place up to `place` that is inside none of these; they ascend and do not overlap."""
    for span in reversed(uncut):
        if span.start < place < span.end:
            return span.start
    return place
