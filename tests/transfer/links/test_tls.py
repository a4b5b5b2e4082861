"""TLS for tcp links: the same contract inside it, and nobody gets in, or is believed, without the right certificate."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.records.errors import InputError
from quire.net.limits import unproven_connections as connection_limit
from quire.transfer import NixlLink, TcpLink, Tls
from quire.transfer.links import connection as connections
from quire.transfer.links.link import Lost, News, Received

from ...net.certificates import Authority, needs_openssl, openssl
from .link_suite import DEADLINE, LinkSuite, Pair, new_pages, rows, slots
from .raw_peer import SECRET
from .test_connection_limit import held_open

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def good(ours: Authority) -> Tls:
    return ours.issue("worker")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Of another authority."""
    return Authority(tmp_path_factory.mktemp("theirs"), "other").issue("stranger")


class TestTls(LinkSuite):
    @pytest.fixture(autouse=True)
    def certificates(self, good: Tls) -> None:
        self.tls = good

    def make(self) -> Pair:
        pages = (new_pages(1), new_pages(2))
        a, b = (TcpLink(name, page, SECRET, tls=self.tls) for name, page in zip("ab", pages, strict=True))
        return Pair(a, b, a.address, b.address, pages)

    def test_what_was_read_with_the_rest_is_not_forgotten(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        """A turn that ends inside a record: no selector tells of what is left of it."""
        monkeypatch.setattr(connections, "BUDGET", 1)
        pair.greet()
        for nth in range(20):
            assert pair.a.send(pair.to_b, bytes([nth]) * 100)
        pair.until(lambda: len(pair.heard("b")) == 21)

    def test_a_message_of_the_largest_size_arrives(self, pair: Pair) -> None:
        assert pair.a.send(pair.to_b, b"y" * connections.MAX_BODY)
        assert pair.a.send(pair.to_b, b"z")
        pair.until(lambda: len(pair.heard("b")) == 2)
        assert pair.heard("b") == [b"y" * connections.MAX_BODY, b"z"]


def tried(server: Tls | None, client: Tls | None, *, secret: bytes = SECRET) -> tuple[list[bytes], list[str]]:
    """One message from one link to another: what was heard, and why somebody was lost."""
    b = TcpLink("b", new_pages(2), SECRET, tls=server)
    a = TcpLink("a", new_pages(1), secret, listen=None, tls=client)
    assert a.send(b.address, b"let me in")
    heard: list[bytes] = []
    lost: list[str] = []
    limit = time.monotonic() + DEADLINE
    while not heard and len(lost) < 2:
        assert time.monotonic() < limit, (heard, lost)
        for link in (a, b):
            news = link.poll(0.001)
            heard += [one.data for one in news if isinstance(one, Received)]
            lost += [one.reason for one in news if isinstance(one, Lost)]
    a.close()
    b.close()
    return heard, lost


def test_one_certificate_is_enough_when_nobody_asks_for_the_other(good: Tls, ours: Authority) -> None:
    assert tried(replace(good, ca=None), Tls(ca=ours.ca)) == ([b"let me in"], [])


def test_who_must_show_a_certificate_and_has_none_stays_out(good: Tls, theirs: Tls, ours: Authority) -> None:
    assert tried(good, good) == ([b"let me in"], [])
    for client in (Tls(ca=ours.ca), replace(theirs, ca=ours.ca)):
        heard, lost = tried(good, client)
        assert not heard and any("certificate" in why.lower() for why in lost)


def test_a_server_of_another_authority_is_not_believed(good: Tls, theirs: Tls) -> None:
    heard, lost = tried(replace(theirs, ca=None), good)
    assert not heard and any("CERTIFICATE_VERIFY_FAILED" in why for why in lost)
    heard, lost = tried(replace(good, ca=None), Tls())  # of the system's authorities, nobody has signed it
    assert not heard and any("CERTIFICATE_VERIFY_FAILED" in why for why in lost)


def test_a_certificate_names_the_host_that_was_dialled(ours: Authority) -> None:
    elsewhere = ours.issue("elsewhere", "DNS:elsewhere.example,IP:10.1.2.3")
    heard, lost = tried(replace(elsewhere, ca=None), Tls(ca=ours.ca))
    assert not heard and any("IP address mismatch" in why for why in lost)


def test_a_certificate_whose_time_is_over_is_not_believed(good: Tls, ours: Authority) -> None:
    old = ours.issue("old", days=-1)
    for server, client in ((old, good), (good, old)):
        heard, lost = tried(server, client)
        assert not heard and any("expired" in reason for reason in lost), lost


def test_older_tls_is_not_spoken(good: Tls) -> None:
    link = TcpLink("b", [], SECRET, tls=Tls(good.cert, good.key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(good.ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, port = link.address.split(":")
    with socket.create_connection((host, int(port)), 120) as raw:
        secure = context.wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
        secure.setblocking(False)
        limit = time.monotonic() + DEADLINE
        lost: list[str] = []
        while not lost:
            assert time.monotonic() < limit and secure.version() is None
            with suppress(ssl.SSLWantReadError, ssl.SSLError, ConnectionError):
                secure.do_handshake()
            lost = [news.reason for news in link.poll(0.001) if isinstance(news, Lost)]
        secure.close()
    assert "UNSUPPORTED_PROTOCOL" in lost[0]
    link.close()


def test_the_secret_is_asked_for_inside(good: Tls) -> None:
    heard, lost = tried(good, good, secret=b"x" * 32)
    assert not heard and "it does not know the secret" in lost


@pytest.mark.parametrize("server", [True, False])
def test_tls_and_plain_do_not_mix(good: Tls, server: bool) -> None:
    heard, lost = tried(good if server else None, None if server else good)
    assert not heard and len(lost) == 2


def test_what_travels_is_not_to_be_read(good: Tls) -> None:
    """A wire tapper between two links sees neither names nor messages nor pages."""
    pages = (new_pages(1), new_pages(2))
    b = TcpLink("b", pages[1], SECRET, tls=good)
    tap = socket.create_server(("127.0.0.1", 0))
    a = TcpLink("a-very-long-name", pages[0], SECRET, listen=None, tls=good)
    to_b = f"127.0.0.1:{tap.getsockname()[1]}"
    a.send(to_b, b"a secret message, quite long")
    inner = tap.accept()[0]
    outer = socket.create_connection(("127.0.0.1", int(b.address.rpartition(":")[2])))
    for end in (inner, outer):
        end.setblocking(False)
    seen, news = bytearray(), list[News]()
    door = b.door(slots([1], []))
    ticket = a.write(to_b, door.number, rows((0, 0, 1)))
    limit = time.monotonic() + DEADLINE
    while not any(getattr(one, "ticket", None) == ticket for one in news):
        assert time.monotonic() < limit
        news += a.poll() + b.poll()
        for source, target in ((inner, outer), (outer, inner)):
            try:
                data = source.recv(1 << 16)
            except BlockingIOError:
                continue
            seen += data
            while data:
                try:
                    data = data[target.send(data) :]
                except BlockingIOError:
                    news += a.poll() + b.poll()
    assert (pages[1][0][1] == pages[0][0][0]).all() and len(seen) > 1 << 20
    for what in (b"secret message", b"a-very-long-name", b"QUIRE", pages[0][0][0][:64].tobytes()):
        assert what not in seen
    for one in (a, b, inner, outer, tap):
        one.close()


def test_a_handshake_that_does_not_go_on_is_dropped_in_time(good: Tls) -> None:
    """Whether it says nothing, or the first part of it: the deadline is that of every unproven peer."""
    link = TcpLink("b", [], SECRET, tls=good, patience=0.05)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = good.outward().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    with ExitStack() as stack:
        for said in (b"", hello[:100], hello):
            held_open(link, 1, said, stack)
        lost, limit = list[str](), time.monotonic() + DEADLINE
        while len(lost) < 3:
            assert time.monotonic() < limit
            lost += [news.reason for news in link.poll(0.01) if isinstance(news, Lost)]
        assert lost == ["it did not answer in time"] * 3 and not len(link._unproven)
    link.close()


def test_idle_connections_keep_nobody_out_of_tls(good: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_UNPROVEN", 8)
    link = TcpLink("b", [], SECRET, tls=good, patience=60)
    with ExitStack() as stack:
        held_open(link, 20, b"", stack)
        peers = [TcpLink(f"a{nth}", [], SECRET, listen=None, tls=good, patience=60) for nth in range(6)]
        for peer in peers:
            stack.callback(peer.close)
            peer.send(link.address, b"here")
        heard, limit = 0, time.monotonic() + DEADLINE
        while heard < 6:
            assert time.monotonic() < limit
            heard += sum(isinstance(news, Received) for news in link.poll(0.001))
            assert not any(isinstance(news, Lost) for peer in peers for news in peer.poll())
        link.close()


def test_a_handshake_waits_for_the_other_end_and_does_not_spin(good: Tls) -> None:
    """There is much to say, and room in the socket; but it is the other end's turn."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = f"127.0.0.1:{silent.getsockname()[1]}"
        link = TcpLink("a", [], SECRET, listen=None, tls=good, patience=60)
        assert link.send(peer, b"hello") and link._peers[peer].interest == selectors.EVENT_WRITE  # it is being dialled
        there = silent.accept()[0]
        link.poll(5)
        assert there.recv(5)[:3] == b"\x16\x03\x01"  # its part of the handshake
        link._listen_to_all()
        assert link._selector.select(0) == [] and link._peers[peer].interest == selectors.EVENT_READ
        there.close()
        link.close()


def test_files_that_are_no_use_are_refused_at_once(good: Tls, ours: Authority, tmp_path: Path) -> None:
    junk, locked = tmp_path / "junk.pem", tmp_path / "locked.key"
    junk.write_text("no certificate")
    openssl("ec", "-in", str(good.key), "-aes256", "-passout", "pass:xyz12345", "-out", str(locked))
    wrong = [
        (Tls(ca=ours.ca), "there is no certificate"),
        (Tls(cert=good.cert), "only one of certificate and key"),
        (Tls(good.cert, tmp_path / "nowhere"), "No such file"),
        (Tls(junk, good.key), "PEM"),
        (Tls(good.cert, locked), "without a password"),
        (replace(good, ca=junk), "give PEM files"),
    ]
    for tls, fact in wrong:
        with pytest.raises(InputError, match=fact):
            TcpLink("a", [], SECRET, tls=tls)
    with pytest.raises(InputError, match="unencrypted"):
        NixlLink("a", [], SECRET, tls=good)
