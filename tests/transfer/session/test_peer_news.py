"""News of one peer concerns that peer's own sessions, asks and orders, and costs no walk over all the others."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from quire import Request
from quire.net.address import joined, split
from quire.net.hmac_authentication import GREETING_BYTES
from quire.transfer import Key, Source, TcpLink
from quire.transfer.links.link import Lost
from quire.transfer.session import handlers
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import hello, layout_of

from ..links.raw_peer import DEADLINE, SECRET
from ..rig import Rig
from ..sides import tokens


class NotWalked(OrderedDict[Any, Any]):
    """A dictionary that is looked into by key alone."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("somebody walks over all of them")

    items = values = keys = __iter__  # type: ignore[assignment]


def busy() -> Rig:
    """The sender has a session with a receiver each, an early ask and an order of three peers; the last is not `d`."""
    rig = Rig()
    rig.ends["p"] = rig.end("p", orders=True)
    shape = rig.p._registry.shape
    for nth, name in enumerate(("x", "y", "z")):
        link = rig.hub.link(name, rig.sides["d"].pages)
        link.send("p", wire.encode(hello(layout_of(shape, name))))
        request = Request(name, tokens(nth, range(21)))
        rig.sides["p"].compute(request)
        content = rig.p.send(Key(name), name).content
        wants = tuple(wire.GroupWant(6, (), group == 2) for group in range(3))
        link.send("p", wire.encode(wire.Ask(*Key(name), 0, 1, 22, content, wants, 0, 5.0)))
        link.send("p", wire.encode(wire.Ask(*Key(name, 1), 0, 1, 22, content, wants, 0, 5.0)))
        link.send("p", wire.encode(wire.Order(*Key(name, 2), b"a prompt")))
    rig.step()
    return rig


def test_a_lost_peer_ends_its_own_and_nothing_is_walked_over() -> None:
    rig = busy()
    registry = rig.p._registry
    assert len(registry.early.asks) == 3 and [order.key.epoch for order in rig.p.take_orders()] == [2, 2, 2]
    for owner, name in (
        (registry, "dispatches"), (registry, "arrivals"), (registry.early, "asks"), (registry.early, "_answered"),
        (registry.orders, "_by"), (registry.orders, "_given"),
    ):  # fmt: skip
        setattr(owner, name, NotWalked(dict(getattr(owner, name))))
    handlers.lost(registry, "a stranger", "it is gone", 0.0)
    handlers.lost(registry, "y", "it is gone", 0.0)
    verdicts = {name: registry.dispatches[Key(name)].session.verdict for name in ("x", "y", "z")}
    assert verdicts["x"] is None and verdicts["z"] is None
    assert verdicts["y"] is not None and verdicts["y"].reason == "y was lost"
    assert rig.p.take_withdrawn() == [Key("y", 2)]
    assert [(Key(name, 1), name) in registry.early.asks for name in ("x", "y", "z")] == [True, False, True]


def test_a_peer_that_refuses_ends_what_was_asked_of_it() -> None:
    rig = Rig()
    rig.serve(Request("r", tokens(range(22))), Key("r"))
    session = rig.ask(Request("r", tokens(range(22))), Key("r"))
    rig.links["p"].send("d", wire.encode(wire.Refuse("not you")))
    rig.d.step()
    assert session.verdict is not None and "p does not fit: not you" in session.verdict.reason


# -- what an operator reads ------------------------------------------------------------------------------------------


def test_the_log_says_who_came_and_went_and_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "quire.transfer")
    rig = Rig()
    rig.serve(Request("r", tokens(range(22))), Key("r"))
    rig.ask(Request("r", tokens(range(22))), Key("r"))
    rig.step()
    rig.ask(Request("s", tokens(range(9))), Key("s"))
    rig.hub.kill("p")
    rig.step(names=("d",))
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("DEBUG", "receiving r#0: delivered ''") in said and ("DEBUG", "sending r#0: delivered ''") in said
    assert [text.partition(":")[0] for level, text in said if level == "INFO"] == ["peer d is known", "peer p is known"]
    lost = [text for level, text in said if level == "WARNING"]
    assert lost == ["peer p is lost: 'it has died'", "receiving s#0: failed 'p was lost'"]


def test_the_log_says_who_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.ends["p"] = rig.end("p", layout=layout_of(rig.p._registry.shape, "p", model="another"))
    assert rig.d.receive(Key("r"), Request("r", tokens(range(9))), Source(("p",))) is None
    rig.step()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(text.startswith("peer d does not fit:") and "another" in text for text in said)
    assert any(text.startswith("peer p refuses us:") for text in said)


def test_the_log_says_which_connection_was_refused_and_not_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "quire.transfer")
    link = TcpLink("b", [], SECRET)
    host, port = split(link.address)
    with socket.create_connection((host, port)) as stranger:
        stranger.sendall(bytes(GREETING_BYTES))
        limit = time.monotonic() + DEADLINE
        while not any(isinstance(news, Lost) for news in link.poll(0.01)):
            assert time.monotonic() < limit
        name = "?@" + joined(*stranger.getsockname())
    link.close()
    (text,) = [record.getMessage() for record in caplog.records]
    assert name in text and "does not speak this version" in text and SECRET.decode() not in text


def test_nothing_is_printed_unless_the_program_sets_logging_up() -> None:
    """Python prints warnings of a logger that has no handler, nor one above it."""
    act = "import logging, quire.transfer; logging.getLogger('quire.transfer').warning('a peer is lost')"
    done = subprocess.run([sys.executable, "-c", act], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
