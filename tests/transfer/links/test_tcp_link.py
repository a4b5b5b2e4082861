"""The tcp link keeps the contract of links, and trusts nobody who does not know the secret."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest

from quire.core.records.errors import InputError, StateError
from quire.net.hmac_authentication import MAGIC
from quire.transfer.geometry.byte_rows import to_bytes
from quire.transfer.links import connection as connections
from quire.transfer.links.connection import DONE, HEAD
from quire.transfer.links.link import Lost, Received, WriteDone
from quire.transfer.links.tcp import WORD, TcpLink
from quire.transfer.links.writes import WRITE

from .link_suite import LinkSuite, Pair, inside, new_pages, rows, slots
from .raw_peer import SECRET, RawPeer


class TestTcp(LinkSuite):
    def make(self) -> Pair:
        pages = (new_pages(1), new_pages(2))
        a, b = (TcpLink(name, page, SECRET) for name, page in zip("ab", pages, strict=True))
        return Pair(a, b, a.address, b.address, pages)

    def test_a_peer_without_the_secret_is_turned_away(self) -> None:
        pages = (new_pages(1), new_pages(2))
        a, b = TcpLink("a", pages[0], b"x" * 32), TcpLink("b", pages[1], SECRET)
        pair = Pair(a, b, a.address, b.address, pages)
        a.send(b.address, b"let me in")
        pair.until(lambda: any(isinstance(n, Lost) for n in pair.news["a"]))
        pair.until(lambda: any(isinstance(n, Lost) for n in pair.news["b"]))
        assert pair.heard("b") == []
        reasons = [n.reason for side in "ab" for n in pair.news[side] if isinstance(n, Lost)]
        assert "it does not know the secret" in reasons
        a.close()
        b.close()

    @pytest.mark.parametrize("junk", [b"GET / HTTP/1.0\r\n\r\n" * 20, bytes(400), MAGIC[:-1] + b"\x09" + bytes(300)])
    def test_junk_closes_the_connection_and_nothing_else(self, pair: Pair, junk: bytes) -> None:
        host, port = pair.to_b.split(":")
        with socket.create_connection((host, int(port)), 120) as sock:
            sock.sendall(junk)
            pair.until(lambda: any(isinstance(n, Lost) for n in pair.news["b"]))
        pair.greet()

    def test_a_silent_connection_is_dropped(self) -> None:
        b = TcpLink("b", new_pages(2), SECRET, patience=0.05)
        host, port = b.address.split(":")
        limit = time.monotonic() + 120
        with socket.create_connection((host, int(port)), 120):
            while not any(isinstance(news, Lost) for news in b.poll(0.01)):
                assert time.monotonic() < limit
        b.close()

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("changed", "a frame's tag is wrong"),
            ("short", "requires a buffer"),
            ("unknown", "a frame of kind 99"),
            ("rows", "rows from a peer"),
            ("bytes", "bytes at once"),
            ("huge", "a frame of 2147483648 bytes"),
        ],
    )
    def test_a_frame_that_is_wrong_ends_the_connection(self, pair: Pair, kind: str, reason: str) -> None:
        """From a peer that knows the secret: changed on the way, too short, too large, or of no kind."""
        with RawPeer(pair.b) as peer:
            head, body = self.spoilt(kind)
            peer.say(head + peer.seal.tag(head + (b"ok" if kind == "changed" else body)) + body)
            assert reason in peer.why_lost()
            assert not any(isinstance(news, Received) for news in peer.news)

    def spoilt(self, kind: str) -> tuple[bytes, bytes]:
        """The head and the body of a frame that no link sends."""
        number, body = {
            "changed": (1, b"no"),
            "short": (3, b"x"),
            "unknown": (99, b"x"),
            "rows": (2, b"\0" * 17 + b"x"),
            "bytes": (2, WRITE.pack(1, 1, True) + to_bytes(np.array([(0, 0, 0, 1 << 30)], np.int64))),
            "huge": (1, b""),
        }[kind]
        return HEAD.pack(number, len(body) if kind != "huge" else 1 << 31), body

    def test_what_is_refused_is_not_sent_to_its_end(self, pair: Pair) -> None:
        """32 GiB would take too long: after the first refusal the rest stays at home; the next write is served."""
        pair.greet()
        many = np.concatenate([rows(*((0, nth, 7 - nth) for nth in range(8)))] * 4_000)
        assert pair.move(77, many) == "its door is shut"
        door = pair.b.door(slots([1], []))
        assert pair.move(door.number, rows((0, 0, 1))) is None
        assert not inside(pair.b)._spoilt and not inside(pair.a)._outgoing

    def test_a_write_that_is_told_as_landed_too_early_has_failed(self, pair: Pair) -> None:
        """64 MiB, and a good word after the first of them: pages stay in use until the frame on its way has left."""
        pair.greet()
        a = inside(pair.a)
        door = pair.b.door(slots(list(range(8)), []))
        ticket = pair.a.write(pair.to_b, door.number, np.concatenate([rows(*((0, n, n) for n in range(8)))] * 8))
        pair.a.poll()
        connection = a._peers[pair.to_b]
        a.frame(connection, DONE, WORD.pack(ticket, True))
        assert connection.is_sending_bytes and ticket in a._outgoing
        assert not any(isinstance(n, WriteDone) for n in a._news)
        pair.until(lambda: any(isinstance(n, WriteDone) for n in pair.news["a"]))
        pair.greet()
        over = [n for n in pair.news["a"] if isinstance(n, WriteDone)]
        assert over == [WriteDone(ticket, "it counted as landed before it had left")] and not inside(pair.b)._spoilt

    def test_a_good_word_counts_once_the_last_frame_has_left(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        pair.greet()
        door = pair.b.door(slots([], [1]))
        monkeypatch.setattr(connections, "BUDGET", 1)  # one call a turn: nothing asks for the frame after the last
        ticket = pair.a.write(pair.to_b, door.number, rows((1, 0, 1)))
        pair.a.poll()
        a = inside(pair.a)
        write = a._outgoing[ticket]
        assert write.is_handed_out and not write.flushed and not a._peers[pair.to_b].is_sending_bytes
        for _ in range(20):
            pair.b.poll(0.005)
        assert pair.a.poll(5) == []  # its head
        assert pair.a.poll(5) == [WriteDone(ticket, None)]

    def test_what_waits_for_a_peer_is_bounded(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "MAX_FRAMES", 4)
        assert [pair.a.send(pair.to_b, b"x") for _ in range(5)] == [True] * 4 + [False]
        assert pair.a.poll() == [Lost(pair.to_b, "4 frames, 4 bytes wait for it")]

    @pytest.mark.parametrize("host", ["a\0b", "\u00e9" * 100, "\ud800"])
    def test_a_host_that_is_no_name_is_out_of_reach(self, pair: Pair, host: str) -> None:
        assert not pair.a.send(f"{host}:80", b"")
        ticket = pair.a.write(f"{host}:80", 1, rows((0, 0, 1)))
        assert pair.a.poll() == [WriteDone(ticket, "it is out of reach")]

    def test_huge_frames_are_refused_before_memory_is_taken(self, pair: Pair) -> None:
        with pytest.raises(InputError, match="send at most"):
            pair.a.send(pair.to_b, bytes((32 << 20) + 1))

    def test_bad_input_is_refused_at_once(self) -> None:
        with pytest.raises(InputError, match="16 bytes or more"):
            TcpLink("a", [], b"short")
        with pytest.raises(InputError, match="host and a port"):
            TcpLink("a", [], SECRET, listen="nowhere")
        link = TcpLink("a", [], SECRET)
        with pytest.raises(InputError, match="host and a port"):
            link.send("nowhere", b"")
        with pytest.raises(StateError, match="choose a free address"):
            TcpLink("b", [], SECRET, listen=link.address)
        link.close()
        deaf = TcpLink("a", [], SECRET, listen=None)
        with pytest.raises(StateError, match="does not listen"):
            _ = deaf.address
        deaf.close()


def test_an_address_that_is_none_fails_the_session_and_holds_nothing() -> None:
    from quire import Request
    from quire.transfer import Endpoint, Key, Outcome, Source

    from ..sides import QuireSide, tokens

    side = QuireSide()
    end = Endpoint(TcpLink("a", side.pages, SECRET), side.view)
    end.expect(Key("q"), Source(("nowhere",)))
    session = end.receive(Key("r"), Request("r", tokens(range(9))), Source(("nowhere",)))
    assert session is not None and session.verdict is not None and session.verdict.outcome is Outcome.FAILED
    assert end.step() == [session] and side.taken() == [0, 0, 0]
    assert "host and a port" in end._registry.last_refusal
    assert end.close()
