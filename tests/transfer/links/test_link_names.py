"""A peer's host name is looked up beside the work: nothing waits for it, and what comes of it is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quire.core.records.errors import InputError
from quire.net import lookup
from quire.transfer.links.link import Lost, WriteDone
from quire.transfer.links.tcp import TcpLink

from .link_suite import Pair, inside, new_pages, rows, slots
from .raw_peer import SECRET

ANSWER = socket.getaddrinfo


class SlowNames:
    """A resolver that answers names when it is told to; numbers at once."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.lock = threading.Lock()
        self.asked = self.inside = self.most = 0

    def __call__(self, host: bytes | str, port: int, *, type: int = 0, flags: int = 0) -> Any:
        if flags & socket.AI_NUMERICHOST:
            return ANSWER(host, port, type=type, flags=flags)
        with self.lock:
            self.asked += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.answer.wait(120)
        with self.lock:
            self.inside -= 1
        return ANSWER("127.0.0.1", port, type=type, flags=flags)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    names = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    yield names
    names.answer.set()


def make(patience: float = 20.0, listen: str = "127.0.0.1:0") -> Pair:
    pages = (new_pages(1), new_pages(2))
    a = TcpLink("a", pages[0], SECRET, patience=patience)
    b = TcpLink("b", pages[1], SECRET, listen=listen)
    return Pair(a, b, a.address, b.address, pages)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = make()
    yield made
    for link in (made.a, made.b):
        link.close()


def named(pair: Pair, host: str = "localhost") -> str:
    return f"{host}:{pair.to_b.rpartition(':')[2]}"


def lost(pair: Pair, peer: str) -> list[str]:
    return [news.reason for news in pair.news["a"] if isinstance(news, Lost) and news.peer == peer]


def test_a_name_is_dialled_like_a_number(pair: Pair) -> None:
    pair.to_b = named(pair)
    door = pair.b.door(slots([3], []))
    for nth in range(20):
        assert pair.a.send(pair.to_b, bytes([nth]))
    assert pair.move(door.number, rows((0, 1, 3))) is None
    assert pair.heard("b") == [bytes([nth]) for nth in range(20)]
    assert (pair.pages[0][0][1] == pair.pages[1][0][3]).all()


def test_others_are_served_while_a_name_is_looked_up(pair: Pair, slow: SlowNames) -> None:
    name = named(pair, "far.example")
    assert pair.a.send(name, b"late")
    ticket = pair.a.write(name, 1, rows((0, 0, 1)))
    door = pair.b.door(slots([1], []))
    assert pair.move(door.number, rows((0, 0, 1))) is None
    assert slow.inside == 1 and pair.heard("b") == []
    assert not any(isinstance(news, WriteDone) and news.ticket == ticket for news in pair.news["a"])
    slow.answer.set()
    pair.until(lambda: pair.heard("b") == [b"late"])
    pair.until(lambda: WriteDone(ticket, "its door is shut") in pair.news["a"])


def test_the_answer_ends_a_wait_for_news(pair: Pair, slow: SlowNames) -> None:
    """The link sleeps in `poll`: only the answer can wake it before its patience is at an end."""
    pair.a.send(named(pair, "far.example"), b"x")
    threading.Timer(0.05, slow.answer.set).start()
    assert pair.a.poll(60) == []
    pair.until(lambda: pair.heard("b") == [b"x"])


def test_no_thread_for_a_name_is_a_reason_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert pair.a.send("far.example:80", b"x")
    assert pair.a.poll(5) == [Lost("far.example:80", "its name leads nowhere: can't start new thread")]


def test_a_name_that_leads_nowhere_is_lost_with_the_reason(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(host: Any, *rest: Any, flags: int = 0, **named: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    assert pair.a.send("nobody.example:80", b"x")
    tickets = [pair.a.write("nobody.example:80", 1, rows((0, 0, 1))) for _ in range(2)]
    pair.until(lambda: bool(lost(pair, "nobody.example:80")))
    (reason,) = lost(pair, "nobody.example:80")
    assert reason.startswith("its name leads nowhere") and "not known" in reason
    assert [news for news in pair.news["a"] if isinstance(news, WriteDone)] == [
        WriteDone(nth, reason) for nth in tickets
    ]


def test_an_answer_that_does_not_come_is_not_waited_for(slow: SlowNames) -> None:
    pair = make(patience=0.05)
    name = named(pair, "far.example")
    ticket = pair.a.write(name, 1, rows((0, 0, 1)))
    pair.until(lambda: bool(lost(pair, name)))
    assert lost(pair, name) == ["its name was not found in time"]
    assert WriteDone(ticket, "its name was not found in time") in pair.news["a"]
    slow.answer.set()  # too late: nobody is dialled for it
    for _ in range(20):
        pair.turn()
    assert not inside(pair.a)._peers and len(lost(pair, name)) == 1
    pair.a.close()
    pair.b.close()


def test_a_link_is_closed_while_names_are_looked_up(slow: SlowNames) -> None:
    pair = make()
    hosts = [named(pair, f"far{nth}.example") for nth in range(20)]
    tickets = [pair.a.write(host, 1, rows((0, 0, 1))) for host in hosts]
    assert pair.a.close() and slow.inside <= lookup.MOST_AT_ONCE
    news = pair.a.poll()
    assert [one for one in news if isinstance(one, WriteDone)] == [WriteDone(ticket, "closed") for ticket in tickets]
    assert [one for one in news if isinstance(one, Lost)] == [Lost(host, "closed") for host in hosts]
    slow.answer.set()
    pair.b.close()


def test_only_a_few_names_are_looked_up_at_once(pair: Pair, slow: SlowNames) -> None:
    hosts = [named(pair, f"far{nth}.example") for nth in range(20)]
    assert all(pair.a.send(host, host.encode()) for host in hosts)
    pair.until(lambda: slow.inside == lookup.MOST_AT_ONCE)
    pair.a.close(hosts[19])  # its turn has not come: it is never looked up
    slow.answer.set()
    pair.until(lambda: len(pair.heard("b")) == 19)
    assert sorted(pair.heard("b")) == sorted(host.encode() for host in hosts[:19])
    assert slow.most == lookup.MOST_AT_ONCE and slow.asked == 19


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_in_brackets() -> None:
    pair = make(listen="[::1]:0")
    assert pair.to_b.startswith("[::1]:")
    back = pair.greet()
    assert back.startswith("a@[::1]:")
    assert pair.b.send(back, b"and back")
    pair.until(lambda: pair.heard("a") == [b"and back"])
    door = pair.b.door(slots([3], []))
    assert pair.move(door.number, rows((0, 1, 3))) is None
    pair.a.close()
    pair.b.close()


@pytest.mark.parametrize("address", ["::1:80", "[::1]", "[::1]80", "[localhost]:80", ":80", "[]:80", "a:b", "a:65536"])
def test_an_address_that_is_none_is_an_error(pair: Pair, address: str) -> None:
    with pytest.raises(InputError, match="an IPv6 host in brackets"):
        pair.a.send(address, b"")
