"""Decoders against changed input, some thousand cases; `python -m tests.transfer.decoding` has as many as one likes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import InputError
from quire.core.records.span import Span, merged, without
from quire.transfer import Aux
from quire.transfer.geometry.wants import holes
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import _tag, unpack

from .decoding import KEY, ROOM, run, targets

TARGETS = targets()
CASES = 3000  # of each


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_raised_but_the_documented_error(name: str) -> None:
    seen = run(name, TARGETS[name], CASES, 0)
    assert seen["read"] and (seen["refused"] or name == "endpoint"), seen


def test_what_is_valid_is_read() -> None:
    """Or else the cases above would show nothing."""
    for name, target in TARGETS.items():
        for sample in target.samples:
            if sample != b"a:b:c":
                target.read(sample)
            assert not target.is_packed or target.dress(target.undress(sample)) == sample, name


def test_rows_of_more_than_there_can_be_are_refused() -> None:
    """Their number would not be one that an array can have."""
    body = msgspec.msgpack.encode(msgspec.structs.replace(Aux(), vocabulary=2**62))
    with pytest.raises(InputError, match="auxiliary data"):
        unpack(_tag(body, KEY) + body, KEY, ROOM)
    assert np.prod(Aux(vocabulary=1 << 31).logits_array().shape) == 0


PAIRS = st.tuples(st.integers(0, 20), st.integers(0, 8))
SPANS = st.lists(PAIRS.map(lambda pair: Span(pair[0], sum(pair))), max_size=6)


@given(SPANS, SPANS)
def test_what_is_left_of_spans(spans: list[Span], taken: list[Span]) -> None:
    def places(many: object) -> set[int]:
        return {place for span in many for place in range(span.start, span.end)}  # type: ignore[attr-defined]

    left = without(merged(*spans), tuple(taken))
    assert places(left) == places(spans) - places(taken) and left == merged(*left)


def test_a_hole_may_reach_into_the_next_span() -> None:
    assert without((Span(0, 2), Span(4, 6)), (Span(1, 5),)) == (Span(0, 1), Span(5, 6))
    assert without((Span(0, 2), Span(4, 6)), (Span(1, 9),)) == (Span(0, 1),)


def test_slots_are_whole_numbers() -> None:
    for raw in (b"x", bytes(5), bytes(28)):
        with pytest.raises(InputError, match="send int32 slots"):
            wire.wanted_places(wire.GroupWant(6, ((0, raw),)))


def test_many_small_spans_are_compared_in_one_walk() -> None:
    """65,536 of them against as many holes, as one word of a peer may name."""
    got = tuple(Span(2 * nth, 2 * nth + 1) for nth in range(65_536))
    (missing,) = holes(((Span(0, 131_072),),), [got])
    assert len(missing) == 65_536 and missing[-1] == Span(131_071, 131_072)
