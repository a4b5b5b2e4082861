"""What every link must do. Subclass it, say how to make two links, and pytest runs it; knows no link by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from quire.core.records.errors import InputError, StateError
from quire.tiers import Bytes
from quire.transfer.links.link import Link, Lost, News, Received, WriteDone
from quire.transfer.links.tcp import TcpLink

SHAPES = ((8, 1 << 20), (16, 48))  # slots and bytes of two groups
DEADLINE = 120.0


def new_pages(seed: int, shapes: Any = SHAPES) -> list[Bytes]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, shape, np.uint8) for shape in shapes]


def rows(*moves: tuple[int, int, int], shapes: Any = SHAPES) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Whole pages: group, source slot, target slot."""
    sizes = [shape[1] for shape in shapes]
    made = [(g, source * sizes[g], target * sizes[g], sizes[g]) for g, source, target in moves]
    return np.array(made, np.int64).reshape(-1, 4)


def slots(*named: list[int]) -> list[Any]:
    return [np.array(group, np.int32) for group in named]


def inside(link: Link) -> TcpLink:
    """The link as what it is, for tests that look inside."""
    assert isinstance(link, TcpLink)
    return link


class Pair:
    """Two links of this process, and what they have told."""

    def __init__(self, a: Link, b: Link, to_a: str, to_b: str, pages: tuple[list[Bytes], list[Bytes]]) -> None:
        self.a, self.b, self.pages = a, b, pages
        self.to_a, self.to_b = to_a, to_b
        self.news: dict[str, list[News]] = {"a": [], "b": []}

    def until(self, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < limit, self.news
            self.turn()

    def turn(self) -> None:
        self.news["a"] += self.a.poll(0.001)
        self.news["b"] += self.b.poll(0.001)

    def until_lost(self, side: str) -> None:
        """That side alone goes on, until it knows that the other one is gone."""
        link, limit = (self.a if side == "a" else self.b), time.monotonic() + DEADLINE
        while not any(isinstance(news, Lost) for news in self.news[side]):
            assert time.monotonic() < limit, self.news
            self.news[side] += link.poll(0.001)

    def heard(self, side: str) -> list[bytes]:
        return [news.data for news in self.news[side] if isinstance(news, Received)]

    def greet(self) -> str:
        """Let a reach b; what b calls a."""
        assert self.a.send(self.to_b, b"hello")
        self.until(lambda: bool(self.heard("b")))
        return next(news.peer for news in self.news["b"] if isinstance(news, Received))

    def move(self, door: int, moves: Any) -> str | None:
        ticket = self.a.write(self.to_b, door, moves)
        self.until(lambda: any(isinstance(n, WriteDone) and n.ticket == ticket for n in self.news["a"]))
        (over,) = [n for n in self.news["a"] if isinstance(n, WriteDone) and n.ticket == ticket]
        return over.problem


class LinkSuite:
    """The contract of Link."""

    def make(self) -> Pair:
        raise NotImplementedError

    @pytest.fixture
    def pair(self) -> Iterator[Pair]:
        pair = self.make()
        yield pair
        for link in (pair.a, pair.b):
            link.close()

    def test_messages_arrive_in_order_both_ways(self, pair: Pair) -> None:
        back = pair.greet()
        for nth in range(50):
            assert pair.a.send(pair.to_b, bytes([nth]) * (nth * 1000))
            assert pair.b.send(back, bytes([nth]))
        pair.until(lambda: len(pair.heard("b")) == 51 and len(pair.heard("a")) == 50)
        assert pair.heard("b")[1:] == [bytes([nth]) * (nth * 1000) for nth in range(50)]
        assert pair.heard("a") == [bytes([nth]) for nth in range(50)]

    def test_a_write_lands_where_it_was_let_in_and_nowhere_else(self, pair: Pair) -> None:
        source, target = pair.pages
        before = [page.copy() for page in target]
        door = pair.b.door(slots([1, 2, 3, 7], [0, 5]))
        assert pair.move(door.number, rows((0, 0, 7), (0, 5, 2), (0, 6, 3), (1, 9, 5))) is None
        for group, at, to in ((0, 0, 7), (0, 5, 2), (0, 6, 3), (1, 9, 5)):
            assert np.array_equal(target[group][to], source[group][at])
            before[group][to] = source[group][at]
        assert all(np.array_equal(old, new) for old, new in zip(before, target, strict=True))
        assert door.shut()

    def test_part_of_a_page_can_be_written(self, pair: Pair) -> None:
        source, target = pair.pages
        door = pair.b.door(slots([], [2]))
        before = target[1][2].copy()
        assert pair.move(door.number, np.array([(1, 7, 2 * 48 + 8, 16)], np.int64)) is None
        assert np.array_equal(target[1][2][8:24], source[1].reshape(-1)[7:23])
        assert np.array_equal(target[1][2][24:], before[24:]) and np.array_equal(target[1][2][:8], before[:8])

    @pytest.mark.parametrize("bad", [(0, 0, 4), (1, 0, 1)])
    def test_other_slots_are_refused_and_untouched(self, pair: Pair, bad: tuple[int, int, int]) -> None:
        door = pair.b.door(slots([1, 2], [0]))
        before = [page.copy() for page in pair.pages[1]]
        problem = pair.move(door.number, rows(bad))
        assert problem is not None and "door" in problem
        assert all(np.array_equal(old, new) for old, new in zip(before, pair.pages[1], strict=True))
        assert pair.move(door.number, rows((0, 3, 2))) is None

    def test_a_shut_door_lets_nothing_in(self, pair: Pair) -> None:
        door = pair.b.door(slots([1], []))
        assert door.shut()
        before = pair.pages[1][0].copy()
        for number in (door.number, 12345):
            assert pair.move(number, rows((0, 0, 1))) is not None
        assert np.array_equal(before, pair.pages[1][0])

    def test_a_door_shut_on_the_way_leaves_the_rest_out(self, pair: Pair) -> None:
        """Whatever has landed by then, nothing lands afterwards."""
        pair.greet()
        door = pair.b.door(slots(list(range(8)), []))
        ticket = pair.a.write(pair.to_b, door.number, rows(*((0, nth, 7 - nth) for nth in range(8))))
        pair.turn()
        while not door.shut():
            pair.turn()
        after = pair.pages[1][0].copy()
        pair.until(lambda: any(isinstance(n, WriteDone) and n.ticket == ticket for n in pair.news["a"]))
        assert np.array_equal(after, pair.pages[1][0])

    def test_bytes_outside_the_pool_are_an_error(self, pair: Pair) -> None:
        for wrong in ((0, 8 << 20, 0, 1), (2, 0, 0, 1), (1, -1, 0, 1)):
            with pytest.raises(InputError):
                pair.a.write(pair.to_b, 1, np.array([wrong], np.int64))
        with pytest.raises(InputError):
            pair.b.door(slots([99], []))
        with pytest.raises(InputError):
            pair.b.door(slots([0]))

    def test_a_peer_that_is_not_there(self, pair: Pair) -> None:
        nobody = self.nobody()
        reached = pair.a.send(nobody, b"x")
        assert pair.a.write(nobody, 1, rows((0, 0, 0))) > 0
        pair.until(lambda: any(isinstance(n, WriteDone) for n in pair.news["a"]))
        assert all(n.problem for n in pair.news["a"] if isinstance(n, WriteDone))
        pair.until(lambda: not reached or any(isinstance(n, Lost) for n in pair.news["a"]))

    def nobody(self) -> str:
        return "127.0.0.1:1"

    def test_closing_a_peer_ends_its_writes_once(self, pair: Pair) -> None:
        pair.greet()
        door = pair.b.door(slots(list(range(8)), []))
        tickets = [pair.a.write(pair.to_b, door.number, rows(*((0, n, n) for n in range(8)))) for _ in range(3)]
        pair.news["a"] += pair.a.poll(0.0)
        assert pair.a.close(pair.to_b)
        pair.until(lambda: sum(isinstance(n, WriteDone) for n in pair.news["a"]) == 3)
        for _ in range(5):
            pair.turn()
        over = [n.ticket for n in pair.news["a"] if isinstance(n, WriteDone)]
        assert sorted(over) == tickets
        assert any(isinstance(n, Lost) and n.peer == pair.to_b for n in pair.news["a"])
        assert door.shut()

    def test_a_lost_peer_can_be_reached_again(self, pair: Pair) -> None:
        pair.greet()
        pair.a.close(pair.to_b)
        pair.until(lambda: any(isinstance(n, Lost) for n in pair.news["a"]))
        pair.news["b"].clear()
        pair.greet()
        door = pair.b.door(slots([1], []))
        assert pair.move(door.number, rows((0, 0, 1))) is None

    def test_a_write_of_nothing_is_over_too(self, pair: Pair) -> None:
        door = pair.b.door(slots([1], []))
        assert pair.move(door.number, rows()) is None
        assert door.shut()
        problem = pair.move(door.number, rows())
        assert problem is not None and "door" in problem

    def test_closing_everything_ends_its_writes_once(self, pair: Pair) -> None:
        pair.greet()
        door = pair.b.door(slots(list(range(8)), []))
        tickets = [pair.a.write(pair.to_b, door.number, rows(*((0, n, n) for n in range(8)))) for _ in range(3)]
        pair.news["a"] += pair.a.poll(0.0)
        while not pair.a.close():
            pair.b.poll(0.001)
        assert not pair.a.send(pair.to_b, b"too late")
        with pytest.raises(StateError, match="closed"):
            while True:
                pair.news["a"] += pair.a.poll(0.0)
        assert sorted(n.ticket for n in pair.news["a"] if isinstance(n, WriteDone)) == tickets
        pair.until_lost("b")

    def test_both_may_reach_for_each_other_at_once(self, pair: Pair) -> None:
        """Two ways between them, and both are good for messages and writes."""
        doors = {"a": pair.a.door(slots([1], [])), "b": pair.b.door(slots([2], []))}
        source = [page[0][5].copy() for page in pair.pages]
        assert pair.a.send(pair.to_b, b"from a") and pair.b.send(pair.to_a, b"from b")
        tickets = {
            "a": pair.a.write(pair.to_b, doors["b"].number, rows((0, 5, 2))),
            "b": pair.b.write(pair.to_a, doors["a"].number, rows((0, 5, 1))),
        }
        pair.until(lambda: all(WriteDone(ticket, None) in pair.news[side] for side, ticket in tickets.items()))
        assert pair.heard("b") == [b"from a"] and pair.heard("a") == [b"from b"]
        assert np.array_equal(pair.pages[1][0][2], source[0]) and np.array_equal(pair.pages[0][0][1], source[1])
        pair.a.close(pair.to_b)  # one of them goes, the other one stays good
        pair.until(lambda: any(isinstance(news, Lost) for news in pair.news["a"]))
        assert doors["a"].shut() and doors["b"].shut()
