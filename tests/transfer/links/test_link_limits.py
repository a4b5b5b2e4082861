"""What a peer that knows the secret can cost: every list of a link has an end, and who goes past it is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire.net.limits import unproven_connections as connection_limit
from quire.transfer.geometry.byte_rows import to_bytes
from quire.transfer.links import connection as connections
from quire.transfer.links import sockets, tcp
from quire.transfer.links.connection import DATA, DONE, MAX_BODY, MESSAGE
from quire.transfer.links.link import Lost, Received, WriteDone
from quire.transfer.links.tcp import WORD, TcpLink
from quire.transfer.links.writes import WRITE

from .link_suite import Pair, inside, new_pages, rows, slots
from .raw_peer import SECRET, RawPeer


@pytest.fixture
def link() -> Iterator[TcpLink]:
    made = TcpLink("b", new_pages(2), SECRET)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pages = (new_pages(1), new_pages(2))
    a, b = (TcpLink(name, page, SECRET) for name, page in zip("ab", pages, strict=True))
    yield Pair(a, b, a.address, b.address, pages)
    a.close()
    b.close()


def data(door: int, ticket: int, last: bool, moves: Any) -> bytes:
    return WRITE.pack(door, ticket, last) + to_bytes(np.array(moves, np.int64).reshape(-1, 4))


def test_bytes_that_wait_for_a_peer_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_WAITING", 1000)
    assert [pair.a.send(pair.to_b, b"x" * 400) for _ in range(3)] == [True, True, False]
    assert pair.a.poll() == [Lost(pair.to_b, "2 frames, 800 bytes wait for it")]


def test_bytes_that_have_left_wait_no_more(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_WAITING", 1000)
    for nth in range(10):
        assert pair.a.send(pair.to_b, bytes([nth]) * 800)
        pair.until(lambda nth=nth: len(pair.heard("b")) == nth + 1)  # type: ignore[misc]


def test_a_message_of_the_largest_size_arrives(pair: Pair) -> None:
    """It leaves in many parts: no socket takes it at once."""
    assert pair.a.send(pair.to_b, b"y" * MAX_BODY)
    assert pair.a.send(pair.to_b, b"z")
    pair.until(lambda: len(pair.heard("b")) == 2)
    assert pair.heard("b") == [b"y" * MAX_BODY, b"z"]


def test_refused_writes_of_one_peer_are_bounded(link: TcpLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of each and never ends one."""
    monkeypatch.setattr(tcp, "MOST_SPOILT", 10)
    with RawPeer(link) as peer:
        for ticket in range(10):
            peer.say(peer.frame(DATA, data(77, ticket, False, [])))
            assert peer.heard_frame() == (DONE, WORD.pack(ticket, False) + b"its door is shut")
        peer.say(peer.frame(DATA, data(77, 3, True, [])))  # one ends: there is room for another
        peer.say(peer.frame(DATA, data(77, 10, False, [])))
        assert peer.heard_frame()[0] == DONE and not peer.news
        peer.say(peer.frame(DATA, data(77, 11, False, [])))
        assert "writes and more that were refused" in peer.why_lost()
    assert not link._spoilt and not link._incoming


def test_many_small_frames_do_not_fill_a_turn(link: TcpLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUDGET", 10 * connections.CALL)
    with RawPeer(link) as peer:
        peer.say(b"".join(peer.frame(MESSAGE, b"") for _ in range(100)))
        turns: list[int] = []
        while sum(turns) < 100:
            turns.append(sum(isinstance(news, Received) for news in link.poll(1)))
        assert max(turns) <= 10


def test_row_sizes_whose_sum_wraps_are_refused(link: TcpLink) -> None:
    with RawPeer(link) as peer:
        peer.say(peer.frame(DATA, data(1, 1, True, [(0, 0, 0, 1 << 56)] * 256)))
        assert "bytes at once" in peer.why_lost()


def test_rows_for_pages_of_no_bytes_are_refused() -> None:
    link = TcpLink("b", [np.zeros((4, 0), np.uint8)], SECRET)
    door = link.door(slots([0, 1]))
    with RawPeer(link) as peer:
        peer.say(peer.frame(DATA, data(door.number, 1, True, [(0, 0, 0, 1)])) + b"x")
        assert peer.heard_frame() == (DONE, WORD.pack(1, False) + b"its door is shut")
    link.close()


def test_a_peer_that_reads_nothing_is_lost(link: TcpLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is full; the write is over when the link gives it up, and not before: its pages are in use."""
    monkeypatch.setattr(connections, "SILENCE", 1)
    with RawPeer(link) as peer:
        peer.say(peer.frame(MESSAGE, b"hello"))
        peer.until(lambda: bool(peer.news))
        (hello,) = peer.news
        assert isinstance(hello, Received)
        ticket = link.write(hello.peer, 1, np.concatenate([rows(*((0, n, n) for n in range(8)))] * 8))
        reason = peer.why_lost()
        assert peer.news[1:] == [WriteDone(ticket, reason), Lost(hello.peer, reason)] and "timed out" in reason


def test_who_is_dialled_leaves_room_for_who_dials(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_UNPROVEN", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert pair.b.send(f"127.0.0.1:{silent.getsockname()[1]}", b"nobody hears it")
        pair.greet()


def test_guests_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOST_INBOUND", 1)
    pair.greet()
    host, port = pair.to_b.split(":")
    with socket.create_connection((host, int(port)), 120) as one:
        pair.b.poll(5)
        assert one.recv(1) == b""
    assert pair.a.send(pair.to_b, b"still here")
    pair.until(lambda: pair.heard("b")[-1] == b"still here")


def test_a_peer_that_dials_again_from_the_same_place_takes_its_own_place() -> None:
    """The same host and port twice, over two addresses of this machine: the older one is over, and told."""
    link = TcpLink("b", new_pages(2), SECRET, listen="0.0.0.0:0")
    port = link.address.rpartition(":")[2]
    own = ("127.0.0.1", 0)  # a port that is asked for is shared with no other process, one that a dial takes may be
    with RawPeer(link, source=own, target=f"127.0.0.1:{port}") as first:
        source = first.sock.getsockname()
        name = f"m@{source[0]}:{source[1]}"
        first.say(first.frame(MESSAGE, b"it was me"))
        first.until(lambda: first.news == [Received(name, b"it was me")])
        ticket = link.write(name, 1, rows(*((0, n, n) for n in range(8))))
        with RawPeer(link, source=source, target=f"127.0.0.2:{port}") as second:
            second.say(second.frame(MESSAGE, b"me"))
            second.until(lambda: Received(name, b"me") in second.news)
            reason = "it has dialled again"
            assert second.news == [WriteDone(ticket, reason), Lost(name, reason), Received(name, b"me")]
            assert len(link._peers) == 1
    link.close()


def test_what_a_peer_said_before_it_left_is_heard(pair: Pair) -> None:
    back = pair.greet()
    assert pair.b.send(back, b"the last word")
    pair.b.close()
    while inside(pair.a)._peers:
        pair.a.send(pair.to_b, b"are you there?")
    assert [type(news) for news in pair.a.poll()] == [Received, Lost]


@pytest.mark.parametrize("sent", [0, 1, 700_000])
def test_a_door_that_is_shut_in_the_middle_of_a_frame(link: TcpLink, sent: int) -> None:
    shut_in_the_middle(link, sent)


def shut_in_the_middle(link: Any, sent: int) -> None:
    """One page, a part of it before the door is shut and the rest afterwards: the rest goes nowhere."""
    page = link.pages[0]
    door = link.door(slots([2], []))
    page[2], new = 7, np.full(page.shape[1], 9, np.uint8)
    with RawPeer(link) as peer:
        peer.say(peer.frame(DATA, data(door.number, 5, True, [(0, 0, 2 * page.shape[1], page.shape[1])])))
        peer.say(new[:sent].tobytes())
        peer.until(lambda: bool((page[2, :sent] == 9).all()) and bool(link._incoming))
        assert door.shut()
        peer.say(new[sent:].tobytes() + peer.frame(MESSAGE, b"that was all"))
        peer.until(lambda: any(isinstance(news, Received) for news in peer.news))
        assert (page[2, sent:] == 7).all()
