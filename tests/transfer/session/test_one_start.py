"""Peers that know one start for all layer groups: an independent sender and receiver of that kind against ours.

They read `start` and the slots of an ask, nothing else: a list of slots per group, zipped from there on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import Request
from quire.transfer import Key, Outcome
from quire.transfer.links.link import Received, WriteDone
from quire.transfer.links.local import LocalLink
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import hello, layout_of
from tests.effort import cases

from ..rig import Rig, received
from ..sides import GROUPS, SIZE, ListSide, QuireSide, Side, expected, landed_right, tokens

KEY = Key("r", 1)
ASKED = Request("r", tokens(range(22)))
BLOCKS = 6
FIRST_NEEDED = (0, 4, 5)  # per group: full, window 6, state


class OneStartSender:
    """Has computed the prompt. Sends every block from `start` on that a group needs, to the slots in their order."""

    def __init__(self, rig: Rig, request: Request) -> None:
        pages = [
            np.stack([expected(request, group, ordinal, layer.page_bytes) for ordinal in range(BLOCKS)])
            for group, layer in enumerate(GROUPS)
        ]
        self.link: LocalLink = rig.hub.link("old", pages)
        self.hello = wire.encode(hello(layout_of(rig.d._registry.shape, "old", can=())))
        self.asked: list[wire.Ask] = []
        self.num_bytes = 0

    def step(self) -> None:
        for news in self.link.poll():
            match news:
                case Received(peer, data):
                    self.hear(peer, wire.decode(data))
                case WriteDone(_, problem):
                    assert problem is None, problem
                    self.report("d")

    def hear(self, peer: str, message: Any) -> None:
        if isinstance(message, wire.Hello):
            self.link.send(peer, self.hello)
        elif isinstance(message, wire.Ask):
            self.asked.append(message)
            rows = []
            for group, layer in enumerate(GROUPS):
                first, size = max(message.start, FIRST_NEEDED[group]), layer.page_bytes
                for ordinal, slot in zip(range(first, BLOCKS), flat(message.wants[group]), strict=True):
                    rows.append((group, ordinal * size, slot * size, size))
            self.num_bytes = sum(row[3] for row in rows)
            if rows:
                self.link.write(peer, message.door, np.array(rows, np.int64))
            else:
                self.report(peer)

    def report(self, peer: str) -> None:
        ask = self.asked[-1]
        spans = tuple(((max(ask.start, first), BLOCKS),) if ask.start < BLOCKS else () for first in FIRST_NEEDED)
        self.link.send(peer, wire.encode(wire.DeliveryReport(*KEY, ask.piece, True, True, spans, self.num_bytes)))


def flat(wish: wire.GroupWant) -> list[int]:
    return [slot for _, raw in wish.runs for slot in np.frombuffer(raw, "<i4").tolist()]


def remember(side: Side, length: int, forget: tuple[int, ...] = ()) -> None:
    """An earlier request of so many of the prompt's tokens; of some groups nothing is left."""
    if length:
        before = Request("before", tokens(range(length)))
        side.compute(before)
        side.end("before")
    for group in forget:
        drop(side, group)


def drop(side: Side, group: int) -> None:
    """Other prompts take every page of one group: those of the others are looked up meanwhile, and stay."""
    if isinstance(side, ListSide):
        lists = side.view
        for name, slot in list(lists._found[group].items()):
            del lists._found[group][name], lists._names[group][slot]
            lists._free[group].append(slot)


@pytest.mark.parametrize("kind", [QuireSide, ListSide])
@pytest.mark.parametrize(("length", "forget"), [(0, ()), (8, ()), (16, ()), (20, ()), (22, ()), (16, (0,)), (20, (1,))])
def test_a_sender_with_one_start_sends_a_superset_into_private_pages(kind: Any, length: int, forget: Any) -> None:
    receiver: Side = kind()
    if forget and kind is QuireSide:
        pytest.skip("block lists can lose one group's pages at will")
    rig = Rig(receiver=receiver)
    remember(receiver, length, forget)
    reader = receiver.view.want(Request("reader", ASKED.tokens))  # somebody holds, and reads, what is there
    assert reader is not None
    theirs = [set(row) for row in receiver.rows(reader)]
    before = [page.copy() for page in receiver.pages]
    old = OneStartSender(rig, ASKED)
    session = received(rig.d, KEY, ASKED, source(), lambda: turn(rig, old), aux=False)
    landing = rig.d.landing(session)
    assert landing is not None
    for group, places in enumerate(landing.places):
        assert not theirs[group] & {int(slot) for slot in places if slot >= 0}, "a page that another request reads"
    turn(rig, old)
    (ask,) = old.asked
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    assert landed_right(receiver, landing, ASKED)
    assert session.num_bytes == old.num_bytes >= sum(map(len, reader.wants[0])) * GROUPS[0].page_bytes
    for group, slots in enumerate(theirs):
        for slot in slots - {-1}:
            assert np.array_equal(before[group][slot], receiver.pages[group][slot])
    assert ask.start <= min((want[0].start for want in reader.wants if want), default=BLOCKS)


def source() -> Any:
    from quire.transfer import Source

    return Source(("old",))


def turn(rig: Rig, old: OneStartSender) -> None:
    for _ in range(4):
        rig.step()
        old.step()


@pytest.mark.long
@settings(max_examples=cases(25, 60), deadline=None)
@given(st.integers(0, 22), st.sets(st.integers(0, 2), max_size=2))
def test_whatever_the_receiver_has_it_ends_with_the_right_bytes(length: int, forget: set[int]) -> None:
    receiver = ListSide()
    rig = Rig(receiver=receiver)
    remember(receiver, length, tuple(forget))
    old = OneStartSender(rig, ASKED)
    session = received(rig.d, KEY, ASKED, source(), lambda: turn(rig, old), aux=False)
    landing = rig.d.landing(session)
    assert landing is not None
    turn(rig, old)
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    assert landed_right(receiver, landing, ASKED)


def test_a_sender_that_knows_wants_sends_less() -> None:
    """The same history, asked of both kinds: the full group has lost its pages, the window has not."""
    counts = []
    for knows in (True, False):
        receiver = ListSide()
        rig = Rig(receiver=receiver)
        remember(receiver, 20, (0,))
        landing = receiver.view.want(ASKED, one_start=not knows)
        assert landing is not None
        counts.append([sum(map(len, want)) for want in landing.wants])
        assert not any(span.end > 0 for held in landing.held for span in held) or knows
        receiver.view.release(landing)
        assert receiver.taken() == [0, 0, 0] and rig.empty()
    assert counts == [[6, 1, 1], [6, 2, 1]]


@pytest.mark.parametrize("start", range(BLOCKS + 1))
def test_a_receiver_with_one_start_is_written_from_there_on_only(start: int) -> None:
    """It lists all its slots, also those of pages it shares with others, and says where it begins to lack some."""
    rig = Rig()
    pages = [np.full((BLOCKS, layer.page_bytes), 99, np.uint8) for layer in GROUPS]
    link: LocalLink = rig.hub.link("old", pages)
    link.send("p", wire.encode(hello(layout_of(rig.p._registry.shape, "old", can=()))))
    rig.serve(ASKED, KEY)
    every = np.arange(BLOCKS, dtype=np.int32)
    door = link.door([every] * len(GROUPS))
    wants = tuple(wire.group_want(every, state=bool(layer.current), position=22) for layer in GROUPS)
    content = rig.p._registry.dispatches[KEY].offers[-1].content
    link.send("p", wire.encode(wire.Ask(*KEY, 0, door.number, 22, content, wants, start, 5.0)))
    for _ in range(4):
        rig.step(names=("p",))
    words = [wire.decode(news.data) for news in link.poll() if isinstance(news, Received)]
    last = words[-1]
    assert isinstance(last, wire.DeliveryReport) and last.last and last.ok
    for group, layer in enumerate(GROUPS):
        first = max(start, FIRST_NEEDED[group])
        assert last.delivered[group] == (((first, BLOCKS),) if first < BLOCKS else ())
        for ordinal in range(BLOCKS):
            right = expected(ASKED, group, ordinal, layer.page_bytes) if ordinal >= first else 99
            assert (pages[group][ordinal] == right).all(), (group, ordinal)
    assert len(ASKED.tokens) <= BLOCKS * SIZE
