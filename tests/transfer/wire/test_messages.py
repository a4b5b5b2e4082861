"""Whatever a peer sends: it is decoded, refused or noted, and never more than that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.records.errors import InputError
from quire.transfer.geometry.ranks import Grid
from quire.transfer.geometry.shards import PageShape, Section, Shard
from quire.transfer.links.link import Received
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import from_hello, hello, layout_of, misfits
from quire.transfer.wire.verdict import Key
from tests.effort import cases

from ..rig import Rig
from ..sides import QuireSide

ROOT = Path(__file__).resolve().parents[3]
SHAPE = QuireSide().view.shape()
WANTS = (wire.GroupWant(6, ((0, b"\0" * 24),)), wire.GroupWant(6, ()), wire.GroupWant(6, ()))
BITES = st.tuples(st.integers(0, 400), st.integers(0, 255), st.booleans())
SAMPLES = (
    wire.Ask("r", 1, 0, 9, 22, b"c" * 32, WANTS, 0, 5.0),
    wire.DeliveryReport("r", 1, 0, True, True, (((0, 6),), (), ()), 99, "", b"aux"),
    wire.Cancel("r", 1, "no"),
    wire.Beat((("r", 1),)),
    wire.Refuse("why"),
    hello(layout_of(SHAPE, "x")),
)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_messages_round_trip(message: wire.AnyMessage) -> None:
    assert wire.decode(wire.encode(message)) == message


@given(st.binary(max_size=200))
def test_junk_is_an_input_error(data: bytes) -> None:
    try:
        wire.decode(data)
    except InputError as wrong:
        assert "a message from a peer" in str(wrong)


@pytest.mark.long
@settings(max_examples=cases(50, 150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SAMPLES), BITES), max_size=12))
def test_an_endpoint_survives_any_peer(spoilt: list[tuple[wire.AnyMessage, tuple[int, int, bool]]]) -> None:
    """Valid and bitten messages in any order, from a stranger: nothing raises, nothing of a session is left behind."""
    rig = Rig()
    stranger = rig.hub.link("x", rig.sides["d"].pages)
    for message, (place, byte, whole) in spoilt:
        data = bytearray(wire.encode(message))
        if not whole:
            data[place % len(data)] = byte
        for name in ("p", "d"):
            stranger.send(name, bytes(data))
    rig.step()
    rig.step(200)
    assert rig.empty() and [side.taken() for side in rig.sides.values()] == [[0, 0, 0]] * 2


def test_too_much_is_refused_before_it_is_kept() -> None:
    rig = Rig()
    stranger = rig.hub.link("x", [])
    stranger.send("p", wire.encode(hello(layout_of(SHAPE, "x"))))
    big = wire.GroupWant(1 << 22, ((0, bytes(4 << 22)),))
    for nth in range(8):
        stranger.send("p", wire.encode(wire.Ask("r", nth, 0, 1, 1, b"", (big,), 0, 1.0)))
    rig.p.step()
    assert len(rig.p._registry.early.asks) == 3  # 16 MiB each, room for 64
    answer, *refused = [wire.decode(news.data) for news in stranger.poll() if isinstance(news, Received)]
    assert isinstance(answer, wire.Hello)
    reasons = [report.reason for report in refused if isinstance(report, wire.DeliveryReport)]
    assert len(refused) == len(reasons) == 5 and all("too many asks wait" in reason for reason in reasons)


def test_a_layout_survives_the_wire_and_says_what_differs() -> None:
    page = PageShape((3, 4), (Section("k", 16, Shard(2, 1), 4), Section("v", 16, Shard(2, 1), 4)))
    groups = (SHAPE.groups[0],)
    one = type(SHAPE)(groups, 4)
    made = layout_of(one, "x", model="m", dtype="bf16", pages=[page], grid=Grid(2), rank=1)
    assert from_hello(hello(made)) == made and misfits(made, made) is None
    other = layout_of(one, "y", model="n", dtype="bf16", pages=[page], grid=Grid(2), rank=1)
    assert misfits(made, other) == "model: 'm' here, 'n' there"
    with pytest.raises(InputError, match="to the byte"):
        layout_of(one, "x", pages=[PageShape((0,), (Section("k", 63),))])
    with pytest.raises(InputError):
        from_hello(wire.Hello("x", {}, (0, (1,), 1, 1), 0, ()))
    with pytest.raises(InputError):
        from_hello(wire.Hello("x", {}, (1, (1,), 1, 1), 5, ()))


def test_nothing_is_ever_unpickled() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "quire" / "transfer").rglob("*.py")]
    assert len(sources) > 20
    for word in ("import pickle", "import marshal", "import shelve", "deserialize_descs", "eval(", "exec("):
        assert not any(word in source for source in sources), word


def test_without_msgspec_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['msgspec'] = None\nimport quire.transfer"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert ran.returncode and "pip install 'quire-kv[transfer]'" in ran.stderr


def test_keys_print_shortly() -> None:
    assert str(Key("r", 3)) == "r#3"
