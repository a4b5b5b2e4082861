"""Layouts that do not cover each other: nothing is asked for, nothing is delivered, and the reason names the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import InputError, LayerGroup, Request, check
from quire.transfer import Endpoint, Grid, Key, LocalHub, Outcome, PageShape, Receiving, Section, Shard, Source
from quire.transfer.geometry.shards import Fragment, gaps
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import hello, layout_of, uncovered

from ..rig import FIRST, LIMITS, Clock
from ..sides import QuireSide, tokens

ASKED, KEY = Request("r", tokens(range(22))), Key("r")
WIDE = 16  # bytes of a layer that is not cut


def page(*layers: int, shard: Shard | None = None, rows: int = 1) -> PageShape:
    cut = shard or Shard()
    return PageShape(layers, (Section("kv", WIDE // cut.count, cut, rows),))


def worker(hub: LocalHub, name: str, shape: PageShape, grid: Grid, rank: int) -> tuple[QuireSide, Endpoint]:
    side = QuireSide((LayerGroup("full", page_bytes=shape.page_bytes),), (24,))
    layout = layout_of(side.view.shape(), name, pages=[shape], grid=grid, rank=rank)
    return side, Endpoint(hub.link(name, side.pages), side.view, layout, limits=LIMITS, clock=hub.clock)


def asked(
    writers: list[PageShape], there: Grid, mine: PageShape, here: Grid | None = None, *, rank: int = 0,
    group: int | None = 0,
) -> tuple[Receiving, QuireSide]:  # fmt: skip
    """One receiver rank asks a whole instance, every rank of which has computed the prompt."""
    hub = LocalHub(Clock())
    senders = [worker(hub, f"p{nth}", shape, there, nth) for nth, shape in enumerate(writers)]
    for side, end in senders:
        side.compute(ASKED)
        end.send(KEY, "r")
        assert end.put(KEY, 22, last=True, aux=FIRST)
    side, end = worker(hub, "d", mine, here or Grid(), rank)
    source = Source(tuple(f"p{nth}" for nth in range(len(writers))), there, group)
    session = None
    for _ in range(9):
        session = session or end.receive(KEY, ASKED, source)
        for _, other in [*senders, (side, end)]:
            other.step()
    assert session is not None
    return session, side


HALF, OTHER = Shard(2, 0), Shard(2, 1)
TWO = Grid(tensor=2)
LACKING = [
    ([page(0, 1)], Grid(), page(2, 3), "bytes [0, 32) of group 0's page have no sender: layers [2, 3] here, [0, 1]"),
    ([page(1)], Grid(), page(0, 1), "bytes [0, 16)"),
    ([page(0)], Grid(), page(0, 1), "bytes [16, 32)"),
    ([page(0, 1, 3, 4)], Grid(), page(0, 1, 2, 3, 4), "bytes [32, 48)"),
    ([page(1, 3)], Grid(), page(0, 1, 2, 3, 4), "bytes [0, 16) and 2 more parts"),
    ([page(0, shard=HALF)] * 2, TWO, page(0), "bytes [8, 16)"),
    ([page(0, shard=OTHER)] * 2, TWO, page(0), "bytes [0, 8)"),
    ([page(0, shard=HALF, rows=2)] * 2, TWO, page(0, rows=2), "bytes [4, 8) and 1 more parts"),
    ([page(0, 1, shard=HALF), page(0, shard=OTHER)], TWO, page(0, 1), "bytes [24, 32)"),
    ([page(0), page(0)], Grid(stages=(1, 1)), page(0, 1), "bytes [16, 32)"),
    ([page(0, shard=Shard(1, 0, 2, 1))], Grid(), page(0), "bytes [0, 16)"),
]  # fmt: skip


@pytest.mark.parametrize(("writers", "there", "mine", "lack"), LACKING)
def test_who_cannot_fill_a_page_together_is_not_asked(
    writers: list[PageShape], there: Grid, mine: PageShape, lack: str
) -> None:
    here = Grid(stages=(2,)) if there.stages == (1, 1) else Grid()
    session, side = asked(writers, there, mine, here)
    assert session.verdict is not None and session.verdict.outcome is Outcome.FAILED
    assert lack in session.verdict.reason and "cannot fill pages here" in session.verdict.reason
    assert side.taken() == [0] and session.num_bytes == 0
    check(side.cache)


@pytest.mark.parametrize(
    ("writers", "there"),
    [
        ([page(0, 1)], Grid()),
        ([page(1, 0, 7)], Grid()),
        ([page(0, 1, shard=HALF), page(1, 0, shard=OTHER)], TWO),
        ([page(0, 1), page(0, 1)], TWO),  # both have all of it
        ([page(0, 5), page(5, 1)], Grid(stages=(1, 1))),
    ],
)
def test_who_can_is(writers: list[PageShape], there: Grid) -> None:
    session, side = asked(writers, there, page(0, 1), Grid(stages=(2,)))
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    side.end("r")
    check(side.cache)


def test_every_group_of_ranks_that_may_answer_covers_the_page_alone() -> None:
    there = Grid(tensor=2, groups=2)
    good, bad = [page(0, shard=HALF), page(0, shard=OTHER)], [page(0, shard=HALF)] * 2
    for writers, group, fine in ((good + bad, 0, True), (good + bad, 1, False), (good + bad, None, False)):
        session, _ = asked(writers, there, page(0), group=group)
        assert session.verdict is not None and (session.verdict.outcome is Outcome.DELIVERED) == fine
        assert fine or "p2, p3 cannot fill pages here" in session.verdict.reason


def test_nobody_to_ask_is_a_failure_at_once() -> None:
    """The other instance has fewer layers: no rank of it meets the receiver's second stage."""
    session, side = asked([page(0, 1)], Grid(stages=(2,)), page(2, 3), Grid(stages=(2, 2)), rank=1)
    assert session.verdict is not None and "there is no peer to ask" in session.verdict.reason
    assert side.taken() == [0]


def test_a_layer_is_named_once() -> None:
    with pytest.raises(InputError, match="a layer is there twice"):
        page(0, 1, 0)


def test_a_peer_that_comes_back_with_other_layers_is_looked_at_again() -> None:
    hub = LocalHub(Clock())
    side, end = worker(hub, "d", page(0, 1), Grid(), 0)
    for nth, (layers, reason) in enumerate((((0, 2), "bytes [16, 32)"), ((1, 0), None), ((1,), "bytes [0, 16)"))):
        _, other = worker(hub, "p", page(*layers), Grid(), 0)
        session = None
        for _ in range(4):
            session = session or end.receive(Key("r", nth), Request(nth, ASKED.tokens), Source(("p",)))
            other.step()
            end.step()
        assert session is not None and (session.verdict is None) == (reason is None)
        assert reason is None or (session.verdict is not None and reason in session.verdict.reason)
        hub.kill("p")
        end.step()
        hub.clock.now += 2  # type: ignore[attr-defined]
    end.step()
    assert side.taken() == [0]


def test_what_a_peer_says_last_of_its_layers_counts() -> None:
    hub = LocalHub(Clock())
    _, end = worker(hub, "d", page(0, 1), Grid(), 0)
    link = hub.link("p", [])
    for nth, (layers, fits) in enumerate((((0, 1), True), ((0,), False), ((1, 0), True))):
        one = QuireSide((LayerGroup("full", page_bytes=WIDE * len(layers)),), (1,)).view.shape()
        link.send("d", wire.encode(hello(layout_of(one, "p", pages=[page(*layers)]))))
        end.step()
        session = end.receive(Key("r", nth), Request(nth, ASKED.tokens), Source(("p",)))
        assert session is not None and (session.verdict is None) == fits


@given(st.integers(0, 30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6))
def test_gaps_are_the_bytes_that_nobody_fills(size: int, parts: list[tuple[int, int]]) -> None:
    fragments = [Fragment(0, start, min(length, size - start)) for start, length in parts if start < size]
    filled = {byte for f in fragments for byte in range(f.target, f.target + f.num_bytes)}
    missing = [byte for start, end in gaps(size, fragments) for byte in range(start, end)]
    assert missing == [byte for byte in range(size) if byte not in filled]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("replica", [0, 1])
def test_only_the_replica_whose_turn_it_is_counts(group: int, replica: int) -> None:
    """Two ranks have the same bytes; one of them sends to even groups of ranks, the other one to odd ones."""
    side = QuireSide((LayerGroup("full", page_bytes=WIDE),), (1,)).view.shape()
    mine = layout_of(side, "d", pages=[page(0)], grid=Grid(groups=2), rank=group)
    writer = layout_of(side, "p", pages=[page(0, shard=Shard(1, 0, 2, replica))], grid=TWO, rank=replica)
    wrong = uncovered(mine, [writer])
    assert wrong is None if replica == group else wrong is not None and wrong.startswith("bytes [0, 16)")


def test_a_page_of_no_bytes_lacks_nothing() -> None:
    shape = QuireSide().view.shape()
    empty = layout_of(type(shape)((), 4), "x", pages=[])
    assert uncovered(empty, []) is None and gaps(0, []) == []
