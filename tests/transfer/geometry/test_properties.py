"""Random cases: alignment against references that look at every token, and whole transfers between random histories."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quire import LayerGroup, Request, Span
from quire.transfer.geometry.byte_rows import PoolSlots, joined, rows_of
from quire.transfer.geometry.pieces import piece_of
from quire.transfer.geometry.ranks import Grid, Seat, meets
from quire.transfer.geometry.shards import Fragment, PageShape, Section, Shard, overlap
from quire.transfer.geometry.slices import (
    BlockRun,
    Spans,
    nowhere,
    num_blocks,
    offered,
    pairs,
    places_of,
    runs_of,
    spans_of,
)
from quire.transfer.geometry.wants import below, first_missing, holes, wants
from quire.transfer.wire.verdict import Key, Outcome
from tests.effort import cases

from ..rig import Rig
from ..sides import GROUPS, ListSide, QuireSide, Side, landed_right, tokens

SINKS = LayerGroup("sinks", page_bytes=24, window=7, sinks=2)
SIZES = st.sampled_from((8, 16, 128))


@given(st.integers(1, 2000), SIZES, st.none() | st.integers(1, 600), st.integers(0, 20), st.integers(0, 3), st.data())
def test_what_is_offered_is_what_the_next_query_reads(
    length: int, size: int, window: int | None, sinks: int, extra: int, data: st.DataObject
) -> None:
    """A reference that asks of every token whether the query at `length` reads it."""
    group = LayerGroup("g", window=window, sinks=sinks if window else 0)
    blocks = num_blocks(length, size)
    slots = tuple(range(1000, 1000 + blocks + extra))
    evicted = data.draw(st.integers(0, blocks))
    first = 0 if window is None else max(0, length + 1 - window)
    read = {t // size for t in range(length) if t >= first or (window and t < -(-sinks // size) * size)}
    read |= {length // size} & set(range(blocks))  # the block that the query itself adds to
    sink = -(-sinks // size) if window else 0
    kept = {o for o in read if o >= evicted or o < sink}
    places = offered(group, BlockRun(0, slots), length, size, evicted=evicted)
    assert {o for o in range(blocks) if places[o] >= 0} == kept
    assert all(places[o] == 1000 + o for o in kept)
    assert np.array_equal(places_of(runs_of(places), blocks), places)


@given(st.lists(st.tuples(st.integers(-1, 99), st.integers(-1, 99)), max_size=60))
def test_pairing_is_the_intersection(lists: list[tuple[int, int]]) -> None:
    source, target = (np.array([pair[side] for pair in lists], np.int32) for side in (0, 1))
    assert set(pairs(source, target).tolist()) == {o for o, (a, b) in enumerate(lists) if a >= 0 and b >= 0}


@given(st.integers(1, 900), SIZES, st.lists(st.integers(1, 899), max_size=8), st.integers(0, 899))
def test_pieces_cover_every_block_once(length: int, size: int, cuts: list[int], begun: int) -> None:
    begun = min(begun, length - 1)
    edges = [begun, *sorted({cut for cut in cuts if begun < cut < length}), length]
    chunks = list(pairwise(edges))
    made = [piece_of(Span(a, b), length, size, last=b == length, begun=begun) for a, b in chunks]
    seen = [block for piece in made if piece for block in range(piece.blocks.start, piece.blocks.end)]
    assert seen == list(range(num_blocks(length, size)))
    assert [piece.last for piece in made if piece][-1] and sum(piece.last for piece in made if piece) == 1


SETS = st.sets(st.integers(0, 30))


def spans(ordinals: set[int]) -> Spans:
    places = nowhere(31)
    places[sorted(ordinals)] = 1
    return spans_of(places)


@given(st.lists(st.tuples(SETS, SETS), min_size=1, max_size=4))
def test_one_start_is_never_less_than_what_groups_want(groups: list[tuple[set[int], set[int]]]) -> None:
    needs = tuple(spans(need) for need, _ in groups)
    held = tuple(spans(need & have) for need, have in groups)
    wanted = wants(needs, held)
    start = first_missing(needs, held)
    sent = wants(needs, below(held, start))
    assert not any(span.end > start for kept in below(held, start) for span in kept)
    assert not any(holes(wanted, sent))
    assert not any(holes(sent, needs))
    for (need, have), want in zip(groups, wanted, strict=True):
        assert {o for s in want for o in range(s.start, s.end)} == need - have


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4, 8)), st.integers(1, 3),
       st.booleans(), st.integers(0, 3))  # fmt: skip
def test_ranks_together_bring_every_byte_once(
    here: int, there: int, heads: int, layers: int, rows_first: bool, turn: int
) -> None:
    """All source ranks that meet a target rank fill its page, each byte once, from the right place."""
    rows, head = (3 if rows_first else 1), 4
    whole = np.arange(layers * rows * heads * head)

    def shape(ranks: int, rank: int) -> PageShape:
        shard = Shard.of_heads(ranks, rank, heads)
        return PageShape(tuple(range(layers)), (Section("kv", rows * heads // shard.count * head, shard, rows),))

    def page(ranks: int, rank: int) -> NDArray[np.int64]:
        shard = Shard.of_heads(ranks, rank, heads)
        return whole.reshape(layers, rows, shard.count, -1)[:, :, shard.index].reshape(-1)

    for rank in range(there):
        got = np.full(shape(there, rank).page_bytes, -1)
        for source in meets(Grid(tensor=there), Seat(tensor=rank), Grid(tensor=here), 0):
            for start, goal, size in overlap(shape(here, source), shape(there, rank), turn):
                assert (got[goal : goal + size] == -1).all()
                got[goal : goal + size] = page(here, source)[start : start + size]
        assert np.array_equal(got, page(there, rank))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20, unique_by=lambda p: p[1]))
def test_rows_move_the_same_bytes_however_they_are_joined(moves: list[tuple[int, int]]) -> None:
    here, there = (PoolSlots(np.array([move[side] for move in moves], np.int32), 16) for side in (0, 1))
    rows = rows_of(0, here, there, (Fragment(0, 0, 16),))
    source, target = np.arange(21 * 16), np.full(21 * 16, -1)
    for _, start, goal, size in joined(rows).tolist():
        target[goal : goal + size] = source[start : start + size]
    for start, goal in moves:
        assert np.array_equal(target[goal * 16 :][:16], source[start * 16 :][:16])
    assert np.count_nonzero(target >= 0) == 16 * len(moves)


@pytest.mark.parametrize("kinds", [(QuireSide, QuireSide), (ListSide, QuireSide), (QuireSide, ListSide)])
@pytest.mark.long
@settings(max_examples=cases(40, 120), deadline=None)
@given(data=st.data())
def test_a_transfer_between_any_two_histories(
    kinds: tuple[type[QuireSide | ListSide], ...], data: st.DataObject
) -> None:
    """Delivered and held cover the need, all pages that are read are right, nothing else was written, none is left."""
    groups = data.draw(st.sampled_from((GROUPS, GROUPS[:2], GROUPS[:1], (GROUPS[0], SINKS))))
    sides: list[Side] = [kind(groups, (24, 24, 8)[: len(groups)]) for kind in kinds]
    base = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=44))
    for nth, side in enumerate(sides):
        for turn in range(data.draw(st.integers(0, 3))):
            cut = data.draw(st.integers(0, len(base)))
            tail = data.draw(st.lists(st.integers(0, 2), min_size=0 if cut else 1, max_size=6))
            name = f"{nth}-{turn}"
            side.compute(Request(name, tokens(base[:cut], tail)))
            side.end(name)
    rig, request, key = Rig(sides[0], sides[1]), Request("r", tokens(base)), Key("r")
    rig.sides["p"].compute(request)
    rig.p.send(key, "r")
    session = rig.ask(request, key, aux=False)
    landing = rig.d.landing(session)
    assert landing is not None
    before = [page.copy() for page in sides[1].pages]
    for done in sorted(data.draw(st.sets(st.integers(1, len(base)), max_size=3))):
        if done < len(base):
            rig.p.put(key, done, last=False)
            rig.step()
    assert rig.p.put(key, len(base), last=True)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    assert landed_right(sides[1], landing, request, groups)
    for group, (old, new) in enumerate(zip(before, sides[1].pages, strict=True)):
        wanted = landing.places[group][landing.places[group] >= 0]
        untouched = np.setdiff1d(np.arange(len(old)), wanted)
        assert np.array_equal(old[untouched], new[untouched])
    for side in sides:
        side.end("r")
        assert side.taken() == [0] * len(groups)
    assert rig.empty()
