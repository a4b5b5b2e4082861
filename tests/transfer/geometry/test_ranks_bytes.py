"""Whole instances against each other: unequal tensor and pipeline sizes, replicated heads, one decision for all."""

from __future__ import annotations

import numpy as np
import pytest

from quire import LayerGroup, Request
from quire.transfer.endpoint import Endpoint
from quire.transfer.geometry.ranks import Grid, Source, agree
from quire.transfer.geometry.shards import PageShape, Section, Shard
from quire.transfer.links.local import LocalHub
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.views.plain_view import BlockLists
from quire.transfer.wire.layout import layout_of
from quire.transfer.wire.verdict import Key, Outcome

from ..rig import FIRST, LIMITS, Clock, received
from ..sides import tokens

SIZE, BLOCKS, HEAD = 4, 5, 8
PROMPT = Request("r", tokens(range(SIZE * BLOCKS - 1)))
KEY = Key("r")


class Rank:
    """One rank's cache, pages and endpoint; its pages are a part of the instance's."""

    def __init__(self, hub: LocalHub, name: str, grid: Grid, rank: int, heads: int) -> None:
        seat = grid.seat(rank)
        self.shard = Shard.of_heads(grid.tensor, seat.tensor, heads)
        first = sum(grid.stages[: seat.stage])
        self.layers = range(first, first + grid.stages[seat.stage])
        width = heads // self.shard.count * HEAD
        self.shape = PageShape(tuple(self.layers), (Section("k", width, self.shard), Section("v", width, self.shard)))
        group = LayerGroup("full", page_bytes=self.shape.page_bytes)
        self.view = BlockLists((group,), SIZE, (12,))
        self.page = np.zeros((12, group.page_bytes), np.uint8)
        self.link = hub.link(name, [self.page])
        layout = layout_of(self.view.shape(), name, pages=[self.shape], grid=grid, rank=rank)
        self.end = Endpoint(self.link, self.view, layout, limits=LIMITS, clock=hub.clock, alone=False)

    def part(self, whole: np.ndarray) -> np.ndarray:
        """What of [layers, 2, heads * HEAD] bytes this rank has."""
        cut = whole[list(self.layers)].reshape(len(self.layers), 2, self.shard.count, -1)
        return cut[:, :, self.shard.index].reshape(-1)


def instance(hub: LocalHub, name: str, grid: Grid, heads: int) -> list[Rank]:
    return [Rank(hub, f"{name}{rank}", grid, rank, heads) for rank in range(grid.num_ranks)]


def step_all(ranks: list[Rank]) -> None:
    for _ in range(12):
        for rank in ranks:
            if not rank.link.dead:
                rank.end.step()


CASES = [
    (Grid(tensor=2), Grid(tensor=1), 4),
    (Grid(tensor=1), Grid(tensor=2), 4),
    (Grid(tensor=2), Grid(tensor=8), 4),
    (Grid(tensor=8), Grid(tensor=2), 4),
    (Grid(tensor=4), Grid(tensor=2), 1),
    (Grid(stages=(4, 2)), Grid(stages=(2, 2, 2)), 2),
    (Grid(tensor=2, stages=(3, 3)), Grid(tensor=1, stages=(6,)), 2),
    (Grid(tensor=1, stages=(6,)), Grid(tensor=2, stages=(2, 4)), 2),
]


def start(senders: list[Rank], receivers: list[Rank], grid: Grid, whole: np.ndarray) -> list[Receiving]:
    for rank in senders:
        table = rank.view.compute(PROMPT)
        assert table is not None
        for ordinal, slot in enumerate(table.slots[0][:BLOCKS]):
            rank.page[slot] = rank.part(whole[ordinal])
        rank.end.send(KEY, "r")
        assert rank.end.put(KEY, len(PROMPT.tokens), last=True, aux=FIRST)
    source = Source(tuple(rank.link.name for rank in senders), grid)
    return [received(rank.end, KEY, PROMPT, source, lambda: step_all(senders + receivers)) for rank in receivers]


@pytest.mark.parametrize(("here", "there", "heads"), CASES)
def test_every_rank_gets_its_part(here: Grid, there: Grid, heads: int) -> None:
    hub = LocalHub(Clock())
    senders, receivers = instance(hub, "p", here, heads), instance(hub, "d", there, heads)
    whole = np.random.default_rng(1).integers(1, 256, (BLOCKS, sum(here.stages), 2, heads * HEAD), np.uint8)
    if sum(here.stages) != sum(there.stages):
        whole = whole[:, : sum(there.stages)]
    sessions = start(senders, receivers, here, whole)
    landings = [rank.end.landing(session) for rank, session in zip(receivers, sessions, strict=True)]
    step_all(senders + receivers)
    for rank, landing, session in zip(receivers, landings, sessions, strict=True):
        assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
        assert landing is not None
        for ordinal, slot in enumerate(landing.places[0].tolist()):
            assert np.array_equal(rank.page[slot], rank.part(whole[ordinal]))
    for ranks in (senders, receivers):
        decided = agree([rank.end.vote() for rank in ranks])
        assert decided.completed == decided.retired == {"r#0"}
        for rank in ranks:
            rank.end.conclude(rank.end._registry.every_session()[0])
    assert all(rank.end.close() for rank in senders + receivers)


def test_one_rank_fails_and_nothing_is_committed_anywhere() -> None:
    """One of two sender ranks dies: its receiver fails, the other is delivered, and the instance commits nothing."""
    hub, grid = LocalHub(Clock()), Grid(tensor=2)
    senders, receivers = instance(hub, "p", grid, 4), instance(hub, "d", grid, 4)
    whole = np.ones((BLOCKS, 1, 2, 4 * HEAD), np.uint8)
    start(senders[:1], [], Grid(), whole)
    source = Source(("p0", "p1"), grid)
    sessions = [received(rank.end, KEY, PROMPT, source, lambda: step_all(senders + receivers)) for rank in receivers]
    hub.kill("p1")
    step_all(senders[:1] + receivers)
    outcomes = [session.verdict.outcome for session in sessions if session.verdict]
    assert outcomes == [Outcome.DELIVERED, Outcome.FAILED]
    decided = agree([rank.end.vote() for rank in receivers])
    assert (decided.completed, decided.failed, decided.retired) == (frozenset(), frozenset({"r#0"}), frozenset({"r#0"}))
    for rank, session in zip(receivers, sessions, strict=True):
        rank.end.conclude(session, commit="r#0" in decided.completed)
        again = rank.view.want(Request("again", PROMPT.tokens))
        assert again is not None and again.held == ((),)
