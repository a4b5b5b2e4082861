"""Connections that have proven nothing keep nobody out: idle ones, ones that speak, honest peers that come at once."""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from quire.net.address import split
from quire.net.hmac_authentication import HmacAuthentication
from quire.net.limits import unproven_connections as connection_limit
from quire.net.limits.unproven_connections import UnprovenConnections
from quire.transfer.links import sockets
from quire.transfer.links.link import Lost, Received
from quire.transfer.links.tcp import TcpLink

from .link_suite import DEADLINE
from .raw_peer import SECRET

resource = pytest.importorskip("resource")


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.skip(f"{hard} open files are too few to show it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_more_files() -> Iterator[None]:
    """Not one more file may be open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))  # the lowest number that is free is too high now
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dialled(link: TcpLink) -> socket.socket:
    host, port = split(link.address)
    return socket.create_connection((host, port), 120)


def until(link: TcpLink, done: Callable[[], bool]) -> None:
    limit = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < limit
        link.poll(0.01)


def held_open(link: TcpLink, count: int, said: bytes, stack: ExitStack) -> list[socket.socket]:
    """So many connections that stay, and say no more than this."""
    made = []
    for _ in range(count):
        made.append(stack.enter_context(dialled(link)))
        made[-1].sendall(said)
        link.poll()
    return made


@pytest.mark.parametrize("speaks", [False, True])
def test_200_honest_peers_at_once_get_in_past_idle_ones(
    speaks: bool, many_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More idle ones than may be there, held open all the time; at the first try, not at the second."""
    greeting = HmacAuthentication(b"another secret of 32 bytes length", "x", dialled=True).greeting() if speaks else b""
    link = TcpLink("b", [], SECRET, patience=60)
    with ExitStack() as stack:
        held_open(link, connection_limit.MOST_UNPROVEN + 44, greeting, stack)
        monkeypatch.setattr(connection_limit, "FAIR", 0.0 if speaks else 1e9)  # who speaks has had its second
        peers = [TcpLink(f"honest{nth}", [], SECRET, listen=None, patience=60) for nth in range(200)]
        for peer in peers:
            stack.callback(peer.close)
            assert peer.send(link.address, peer.name.encode())
        heard, lost, limit = set[bytes](), list[Lost](), time.monotonic() + 3 * DEADLINE
        while len(heard) < 200:
            assert time.monotonic() < limit and not lost, lost
            heard |= {news.data for news in link.poll(0.001) if isinstance(news, Received)}
            lost = [news for peer in peers for news in peer.poll() if isinstance(news, Lost)]
        assert len(link._unproven) <= connection_limit.MOST_UNPROVEN
        link.close()


def test_unproven_ones_are_bounded_and_the_oldest_silent_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_UNPROVEN", 3)
    link = TcpLink("b", [], SECRET)
    with ExitStack() as stack:
        idle = held_open(link, 3, b"", stack)
        for _ in range(2):
            held_open(link, 1, b"", stack)
            while len(link._unproven) + len(link._peers) != 6:
                link.poll(0.01)
        assert [sock.recv(1 << 16)[-1:] != b"" for sock in idle] == [True] * 3  # its greeting
        gone = [sock.recv(1) == b"" for sock in idle[:2]]
        assert gone == [True, True] and len(link._unproven) == 3
        idle[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            idle[2].recv(1)
    link.close()


def test_who_has_proven_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_UNPROVEN", 2)
    link = TcpLink("b", [], SECRET)
    peers = [TcpLink(f"a{nth}", [], SECRET, listen=None) for nth in range(5)]
    heard: list[bytes] = []
    for peer in peers:
        peer.send(link.address, peer.name.encode())
        limit = time.monotonic() + DEADLINE
        while peer.name.encode() not in heard:
            assert time.monotonic() < limit
            peer.poll(0.001)
            heard += [news.data for news in link.poll(0.001) if isinstance(news, Received)]
    assert len(link._unproven) == 0 and len(link._peers) == 5
    for made in (*peers, link):
        made.close()


def test_too_many_open_files_close_one_that_has_proven_nothing() -> None:
    link = TcpLink("b", [], SECRET)
    with ExitStack() as stack:
        stack.callback(link.close)
        held_open(link, 1, b"", stack)
        until(link, lambda: len(link._unproven) == 1)
        stack.enter_context(dialled(link))
        with no_more_files():
            reasons = [news.reason for news in link.poll(DEADLINE) if isinstance(news, Lost)]
            assert reasons == ["there are too many open files"] and link._accepts_from is None
            until(link, lambda: len(link._unproven) == 1)  # the one that came has its place now
            assert link.poll() == [] and len(link._unproven) == 1  # and keeps it


def test_a_link_that_can_let_nobody_in_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody waits and no file may be opened: nothing says again and again that there is something to do."""
    monkeypatch.setattr(sockets, "ACCEPT_PAUSE", 1e9)
    link = TcpLink("b", [], SECRET)
    with ExitStack() as stack:
        stack.callback(link.close)
        stack.enter_context(dialled(link))
        with no_more_files():
            until(link, lambda: link._accepts_from is not None)
            assert select.select([link.fileno()], [], [], 0)[0] == [] and link.poll() == []
        link._accepts_from = time.monotonic()  # the pause is over
        until(link, lambda: len(link._unproven) == 1)
        assert link._accepts_from is None and link.poll() == []


def test_one_address_does_not_push_out_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who speak and have had no time yet: one of the address with the most goes, by lot."""
    monkeypatch.setattr(connection_limit, "MOST_UNPROVEN", 20)
    open_ones: UnprovenConnections[object] = UnprovenConnections()
    honest = [object() for _ in range(5)]
    for nth, token in enumerate(honest):
        assert open_ones.add(token, f"10.0.0.{nth}", 0.0) is None
        open_ones.heard(token)
    newcomers, turned_away = 0, set()
    for nth in range(300):
        newcomer = object()
        closed = open_ones.add(newcomer, f"2001:db8::{nth:x}", 0.5)  # one host's: it has all of them
        open_ones.heard(newcomer)
        if closed is not None:
            newcomers += closed is newcomer
            turned_away.add(closed)
            open_ones.remove(closed)
    assert len(open_ones) == 20 and not turned_away & set(honest)
    assert 0 < newcomers < 285
    first = open_ones.next_to_close(2.0)  # all have had their time
    assert first is not None and first not in honest


def test_nobody_goes_as_silent_before_it_was_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest peer comes together with more of those who all say something: it has its chance in the lot."""
    monkeypatch.setattr(connection_limit, "MOST_UNPROVEN", 3)
    monkeypatch.setattr(random, "choice", lambda those: those[0])
    link, honest = TcpLink("b", [], SECRET), TcpLink("honest", [], SECRET, listen=None)
    with ExitStack() as stack:
        stack.callback(link.close)
        stack.callback(honest.close)
        held_open(link, 3, b"Q", stack)
        while any(one.is_silent for one in link._unproven._connections.values()) or len(link._unproven) < 3:
            link.poll(0.01)
        honest.send(link.address, b"hello")
        honest.poll()
        for _ in range(2):
            stack.enter_context(dialled(link)).sendall(b"Q")
        heard, limit = list[bytes](), time.monotonic() + DEADLINE
        while not heard:
            assert time.monotonic() < limit
            heard = [news.data for news in link.poll(0.001) if isinstance(news, Received)]
            assert not [news for news in honest.poll() if isinstance(news, Lost)]


def test_who_was_here_longest_without_a_proof_goes_first() -> None:
    open_ones: UnprovenConnections[str] = UnprovenConnections()
    for nth, name in enumerate(("old", "silent", "young")):
        open_ones.add(name, f"10.0.0.{nth}", nth / 10)
        if name != "silent":
            open_ones.heard(name)
    assert open_ones.next_to_close(0.5) == "silent"
    assert open_ones.next_to_close(1.0) == "old"
    open_ones.remove("old")
    open_ones.remove("old")
    assert open_ones.next_to_close(9.0) == "silent" and len(open_ones) == 2
    open_ones.remove("silent")
    open_ones.remove("young")
    assert open_ones.next_to_close(9.0) is None and not list(open_ones._by_host)


def test_lists_are_as_long_as_they_must_be() -> None:
    assert sockets.ENTRIES < connection_limit.MOST_UNPROVEN < sockets.BACKLOG
