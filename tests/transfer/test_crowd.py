"""Who has not proven anything keeps nobody out: idle crowds, crowds that speak, honest peers that all come at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from quire.transfer.links import connection_limit as crowds
from quire.transfer.links import sockets
from quire.transfer.links.auth import Seal
from quire.transfer.links.connection_limit import Crowd
from quire.transfer.links.link import Lost, Message
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


def held_open(link: TcpLink, count: int, said: bytes, stack: ExitStack) -> list[socket.socket]:
    """So many connections that stay, and say no more than this."""
    host, port = link.address.split(":")
    made = []
    for _ in range(count):
        made.append(stack.enter_context(socket.create_connection((host, int(port)), 5)))
        made[-1].sendall(said)
        link.poll()
    return made


@pytest.mark.parametrize("speaks", [False, True])
def test_200_honest_peers_at_once_get_in_past_an_idle_crowd(
    speaks: bool, many_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More idle ones than may be there, held open all the time; at the first try, not at the second."""
    greeting = Seal(b"another secret of 32 bytes length", "x", dialled=True).greeting() if speaks else b""
    link = TcpLink("b", [], SECRET, patience=60)
    with ExitStack() as stack:
        held_open(link, crowds.MOST_UNPROVEN + 44, greeting, stack)
        monkeypatch.setattr(crowds, "FAIR", 0.0 if speaks else 1e9)  # who speaks has had its second
        peers = [TcpLink(f"honest{nth}", [], SECRET, listen=None, patience=60) for nth in range(200)]
        for peer in peers:
            stack.callback(peer.close)
            assert peer.send(link.address, peer.name.encode())
        heard, lost, limit = set[bytes](), [], time.monotonic() + 3 * DEADLINE
        while len(heard) < 200:
            assert time.monotonic() < limit and not lost, lost
            heard |= {news.data for news in link.poll(0.001) if isinstance(news, Message)}
            lost = [news for peer in peers for news in peer.poll() if isinstance(news, Lost)]
        assert len(link._crowd) <= crowds.MOST_UNPROVEN
        link.close()


def test_unproven_ones_are_bounded_and_the_oldest_silent_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MOST_UNPROVEN", 3)
    link = TcpLink("b", [], SECRET)
    with ExitStack() as stack:
        idle = held_open(link, 3, b"", stack)
        for _ in range(2):
            held_open(link, 1, b"", stack)
            while len(link._crowd) + len(link._peers) != 6:
                link.poll(0.01)
        assert [sock.recv(1 << 16)[-1:] != b"" for sock in idle] == [True] * 3  # its greeting
        gone = [sock.recv(1) == b"" for sock in idle[:2]]
        assert gone == [True, True] and len(link._crowd) == 3
        idle[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            idle[2].recv(1)
    link.close()


def test_who_has_proven_itself_is_not_in_the_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MOST_UNPROVEN", 2)
    link = TcpLink("b", [], SECRET)
    peers = [TcpLink(f"a{nth}", [], SECRET, listen=None) for nth in range(5)]
    heard: list[bytes] = []
    for peer in peers:
        peer.send(link.address, peer.name.encode())
        limit = time.monotonic() + DEADLINE
        while peer.name.encode() not in heard:
            assert time.monotonic() < limit
            peer.poll(0.001)
            heard += [news.data for news in link.poll(0.001) if isinstance(news, Message)]
    assert len(link._crowd) == 0 and len(link._peers) == 5
    for made in (*peers, link):
        made.close()


def test_too_many_open_files_cost_the_crowd_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    link = TcpLink("b", [], SECRET)

    class Full:
        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            raise OSError(24, "Too many open files")

    with ExitStack() as stack:
        held_open(link, 1, b"", stack)
        while not len(link._crowd):
            link.poll(0.01)
        real, link._server = link._server, Full()  # type: ignore[assignment]
        link._accept()
        link._accept()
        link._server = real
        assert [news.reason for news in link.poll() if isinstance(news, Lost)] == ["there are too many open files"]
    link.close()


def test_one_address_does_not_push_out_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who speak and have had no time yet: one of the address with the most goes, by lot."""
    monkeypatch.setattr(crowds, "MOST_UNPROVEN", 20)
    crowd: Crowd[object] = Crowd()
    honest = [object() for _ in range(5)]
    for nth, token in enumerate(honest):
        assert crowd.enter(token, f"10.0.0.{nth}", 0.0) is None
        crowd.heard(token)
    newcomers, turned_away = 0, set()
    for nth in range(300):
        token: object = object()
        leaves = crowd.enter(token, f"2001:db8::{nth:x}", 0.5)  # one host's: it has all of them
        crowd.heard(token)
        if leaves is not None:
            newcomers += leaves is token
            turned_away.add(leaves)
            crowd.leave(leaves)
    assert len(crowd) == 20 and not turned_away & set(honest)
    assert 0 < newcomers < 285
    assert crowd.choose(2.0) is not None and crowd.choose(2.0) not in honest  # all have had their time


def test_nobody_goes_as_silent_before_it_was_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest peer comes together with more of those who all say something: it has its chance in the lot."""
    monkeypatch.setattr(crowds, "MOST_UNPROVEN", 3)
    monkeypatch.setattr(crowds.random, "choice", lambda those: those[0])
    link, honest = TcpLink("b", [], SECRET), TcpLink("honest", [], SECRET, listen=None)
    with ExitStack() as stack:
        stack.callback(link.close)
        stack.callback(honest.close)
        held_open(link, 3, b"Q", stack)
        while any(guest.is_silent for guest in link._crowd._guests.values()) or len(link._crowd) < 3:
            link.poll(0.01)
        honest.send(link.address, b"hello")
        honest.poll()
        more = [stack.enter_context(socket.create_connection(tuple(link.address.split(":")))) for _ in range(2)]
        for sock in more:
            sock.sendall(b"Q")
        heard, limit = list[bytes](), time.monotonic() + DEADLINE
        while not heard:
            assert time.monotonic() < limit
            heard = [news.data for news in link.poll(0.001) if isinstance(news, Message)]
            assert not [news for news in honest.poll() if isinstance(news, Lost)]


def test_who_was_here_longest_without_a_proof_goes_first() -> None:
    crowd: Crowd[str] = Crowd()
    for nth, name in enumerate(("old", "silent", "young")):
        crowd.enter(name, f"10.0.0.{nth}", nth / 10)
        if name != "silent":
            crowd.heard(name)
    assert crowd.choose(0.5) == "silent"
    assert crowd.choose(1.0) == "old"
    crowd.leave("old")
    crowd.leave("old")
    assert crowd.choose(9.0) == "silent" and len(crowd) == 2
    crowd.leave("silent")
    crowd.leave("young")
    assert crowd.choose(9.0) is None and not crowd._by_address


def test_lists_are_as_long_as_they_must_be() -> None:
    assert sockets.ENTRIES < crowds.MOST_UNPROVEN < sockets.BACKLOG
