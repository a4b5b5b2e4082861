"""Wants: which blocks a transfer must bring, group by group: what is needed, less what is held. Knows no slots.

A peer that has no wants per group knows one number, and sends everything from that block on.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.records.groups import LayerGroup
from quire.core.records.span import Span, merged, without
from quire.transfer.geometry.slices import Spans


def wants(needs: Sequence[Spans], helds: Sequence[Spans]) -> tuple[Spans, ...]:
    """Need minus held, every group for itself."""
    return tuple(without(need, held) for need, held in zip(needs, helds, strict=True))


def first_missing(needs: Sequence[Spans], helds: Sequence[Spans]) -> int:
    """The first block that any group lacks: one number, for a peer that knows nothing else."""
    firsts = [want[0].start for want in wants(needs, helds) if want]
    return min(firsts, default=max((need[-1].end for need in needs if need), default=0))


def below(helds: Sequence[Spans], start: int) -> tuple[Spans, ...]:
    """What counts as held with such a peer: it sends everything from `start` on, held here or not."""
    return tuple(merged(*(Span(min(s.start, start), min(s.end, start)) for s in held)) for held in helds)


def holes(wanted: Sequence[Spans], delivered: Sequence[Spans]) -> tuple[Spans, ...]:
    """Wanted blocks that were not delivered."""
    return tuple(without(want, got) for want, got in zip(wanted, delivered, strict=True))


def wanted_after(group: LayerGroup, length: int, size: int, cached: int) -> Spans:
    """What a group wants when one scalar says how many leading tokens are cached: whole blocks of them count."""
    return without(group.needs_at(length, size), merged(Span(0, cached // size)))
