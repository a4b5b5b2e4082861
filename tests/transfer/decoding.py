"""Decoding: valid messages, orders, auxiliary data, frames and greetings, changed in every way that bytes can be, given
to everything that reads them.

    python -m tests.transfer.decoding --cases 1000000 --seed 1 [--only orders]

Nothing is raised but the documented error, and memory goes by the length of what came. A failure says how to repeat it.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quire.core.records.errors import InputError, QuireError
from quire.core.records.span import Span
from quire.net.address import split
from quire.net.hmac_authentication import HmacAuthentication
from quire.transfer.geometry.byte_rows import from_bytes, to_bytes
from quire.transfer.geometry.ranks import Grid
from quire.transfer.geometry.shards import PageShape, Section, Shard
from quire.transfer.geometry.slices import Spans
from quire.transfer.links.connection import DATA, DONE, MESSAGE, Broken, Connection
from quire.transfer.links.sockets import WRONG
from quire.transfer.links.tcp import WORD, TcpLink
from quire.transfer.links.writes import WRITE
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import Aux, AuxRoom, _tag, pack, unpack, with_logits
from quire.transfer.wire.layout import from_hello, hello, layout_of, misfits, uncovered
from quire.transfer.wire.verdict import Key, Limits

from .rig import Rig
from .sides import GROUPS, QuireSide

KEY, SECRET, ROOM = Key("r", 1), b"sixteen bytes or more", AuxRoom(logits=4096)
MEASURED = 61  # every so many cases memory is looked at
NUMBERS = [
    0, 1, 2, 5, 6, 7, -1, -2, 63, 64, 65, 128, 4095, 4096, 4097, 65535, 65536, 65537, 2**22 - 1, 2**22, 2**22 + 1,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**56, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**31),
    -(2**63),
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, 0.5, -0.0, 1e9, 1e9 + 1, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), "", "r",
    "x" * 1024, "x" * 1025, "\0", b"", b"\xff" * 3, bytes(4), bytes(64), bytes(65), [], [[]], {}, {"": ""}, [0] * 300,
    [None] * 9, msgspec.msgpack.Ext(5, b"x"), msgspec.Raw(b"\xd9\x02\xc3\x28"), msgspec.Raw(b"\xc1"),
    msgspec.Raw(b"\xd6\xff\0\0\0\1"),
]  # fmt: skip
HEADS = [bytes([kind]) + b"\xff" * 4 for kind in (0xDD, 0xDF, 0xC6, 0xDB, 0xDC, 0xC9)]  # longer than anything
DEPTHS = (1, 15, 100, 900, 2_000, 100_000)


class Target(NamedTuple):
    """Something that reads bytes of others: valid ones, how to dress a changed body, and the errors it may raise."""

    samples: list[bytes]
    read: Callable[[bytes], object]
    dress: Callable[[bytes], bytes] = bytes
    undress: Callable[[bytes], bytes] = bytes
    is_packed: bool = True  # msgpack
    errors: tuple[type[BaseException], ...] = (InputError,)


def read_message(data: bytes) -> None:
    """The message, and everything that is unpacked from it later."""
    message = wire.decode(data)
    if isinstance(message, wire.Hello):
        theirs = from_hello(message)
        if misfits(MINE, theirs) is None:
            uncovered(MINE, [theirs])
    elif isinstance(message, wire.Ask):
        for want in message.wants:
            if want.blocks <= 64:  # a sender looks at no list that is longer than its own
                wire.wanted_places(want)
    elif isinstance(message, wire.DeliveryReport):
        session = Receiving(KEY, ALL_BLOCKS, ["x"], expected=1, limits=Limits(), now=0.0, aux_room=ROOM)
        session.heard("x", message, 0.0)
    elif not isinstance(message, wire.Beat | wire.Refuse):
        wire.key_of(message)


SHAPE = QuireSide().view.shape()
PAGES = [PageShape((3, 4), (Section("k", group.page_bytes // 2, Shard(2, 1), 2),)) for group in GROUPS]
MINE = layout_of(SHAPE, "mine", model="m", dtype="bf16", pages=PAGES, grid=Grid(2), rank=1)
ALL_BLOCKS: tuple[Spans, ...] = tuple((Span(0, 6),) for _ in GROUPS)
TWO_RUNS = wire.GroupWant(6, ((0, bytes(4)), (4, bytes(8))))
WANTS = (wire.GroupWant(6, ((0, bytes(range(24))),)), TWO_RUNS, wire.GroupWant(6, (), True, 22))
SPANS = ((((0, 6),), ((4, 6),), ((5, 6),)), (((0, 2), (3, 6)), (), ()))
MESSAGES: list[wire.AnyMessage] = [
    wire.Ask("r", 1, 0, 9, 22, b"c" * 32, WANTS, 0, 5.0),
    *(wire.DeliveryReport("r", 1, 0, True, True, spans, 99, "", pack(Aux((7,)), KEY, ROOM)) for spans in SPANS),
    wire.DeliveryReport("r", 1, 0, True, False, (), 0, "why not"),
    wire.Order("r", 1, b"body"),
    wire.Cancel("r", 1, "no"),
    wire.Beat((("r", 1), ("s", 2))),
    wire.Refuse("why"),
    hello(MINE),
    hello(layout_of(SHAPE, "x")),
]


def link_target() -> Target:
    """Frames of a peer that knows the secret: kind and body, as a link is handed them."""
    link = TcpLink("b", [np.zeros((8, 64), np.uint8), np.zeros((4, 16), np.uint8)], SECRET, listen=None)
    door = link.door([np.array([1, 2], np.int32), np.array([0], np.int32)])
    rows = [(0, 0, 64, 64), (0, 64, 128, 32), (1, 0, 0, 16)]
    head = WRITE.pack(door.number, 7, True)
    bodies = {
        DATA: [head + to_bytes(np.array(rows[:count], np.int64).reshape(-1, 4)) for count in range(4)],
        DONE: [WORD.pack(7, True), WORD.pack(7, False) + b"its door is shut"],
        MESSAGE: [b"", b"x"],
    }
    pages = [page.copy() for page in link.pages]

    def read(data: bytes) -> None:
        connection = Connection("x@1.2.3.4:5", HmacAuthentication(SECRET, "b", dialled=False), link, 0.0)
        views = link.frame(connection, data[0], data[1:]) if data else None
        for view in views or ():  # nothing but the door's slots, or nowhere
            view[:] = bytes(len(view))
        if views is not None:
            link.filled(connection)
        link._gone(connection, "over")
        link._news.clear()
        for group, slots in ((0, (1, 2)), (1, (0,))):
            for slot in set(range(len(pages[group]))) - set(slots):
                assert np.array_equal(link.pages[group][slot], pages[group][slot])

    samples = [bytes([kind]) + body for kind, many in bodies.items() for body in many]
    return Target(samples, read, is_packed=False, errors=(*WRONG, Broken, struct.error))


def greeting_target() -> Target:
    samples = [HmacAuthentication(SECRET, name, dialled=False).greeting() for name in ("a", "x" * 200, "\u00e9")]

    def read(data: bytes) -> None:
        seal = HmacAuthentication(SECRET, "me", dialled=True)
        seal.greeted(data.ljust(len(samples[0]), b"\0")[: len(samples[0])])
        assert not seal.proven(data[:32].ljust(32, b"\0"))

    return Target(samples, read, is_packed=False)


def order_target() -> Target:
    from quire.core.records.identity import Scope
    from quire.engine.disagg import prefill_orders as orders
    from quire.engine.sampling.params import Sampling

    tokens = np.arange(9, dtype=np.int32)
    scopes = [Scope(), Scope("lora", b"salt", 3), Scope(5, "x", None)]
    sampling = [Sampling(), Sampling(temperature=0.7, top_p=0.9, top_k=5), Sampling(beams=2, n=2)]
    return Target([orders.pack(tokens, s, 11, scope) for s in sampling for scope in scopes], orders.unpack)


def endpoint_target() -> Target:
    """Everything that a peer says to an endpoint: nothing is raised at all, whatever went before."""
    rig = Rig()
    rig.ends["p"] = rig.end("p", orders=True)
    link = rig.hub.link("x", rig.sides["d"].pages)
    turns = iter(range(sys.maxsize))

    def read(data: bytes) -> None:
        nonlocal link
        turn = next(turns)
        if turn % 500 == 0:
            rig.hub.kill("x")
            rig.step()
            link = rig.hub.link("x", rig.sides["d"].pages)
        for name in "pd":
            link.send(name, data)
            rig.ends[name].step()
        rig.clock.now += 0.1
        if turn % 100 == 0:
            rig.p.take_orders(), rig.p.take_withdrawn(), link.poll()

    good = [wire.encode(message) for message in MESSAGES]
    return Target(good, read, dress=_with_version, undress=_body, errors=())


def _with_version(body: bytes) -> bytes:
    return bytes((wire.VERSION,)) + body


def _body(data: bytes) -> bytes:
    return data[1:]


def address_target() -> Target:
    samples = [b"127.0.0.1:80", b"[::1]:0", b"host.example:65535", b"a:b:c"]
    return Target(samples, lambda data: split(data.decode(errors="replace")), is_packed=False)


def targets() -> dict[str, Target]:
    made = with_logits(Aux((7, 8), (1, 2), sampling=b"state", cached_tokens=3), np.ones((2, 5), np.float32))
    aux = [pack(parcel, KEY, ROOM) for parcel in (Aux(), Aux((7,)), made)]
    found = {
        "messages": Target(list(map(wire.encode, MESSAGES)), read_message, _with_version, _body),
        "aux": Target(aux, lambda data: unpack(data, KEY, ROOM).logits_array(),
                      lambda body: _tag(body, KEY) + body, lambda data: data[16:]),
        "rows": Target([to_bytes(np.array([(0, 0, 0, 64)] * 3, np.int64))], from_bytes, is_packed=False),
        "frames": link_target(),
        "greetings": greeting_target(),
        "addresses": address_target(),
        "endpoint": endpoint_target(),
    }  # fmt: skip
    try:
        found["orders"] = order_target()
    except (ImportError, QuireError) as missing:
        print(f"orders are left out: {missing}")
    return found


# -- change ----------------------------------------------------------------------------------------------------------


def changed(rng: Random, target: Target) -> bytes:
    """A valid one, changed once or a few times."""
    data = rng.choice(target.samples)
    if target.is_packed and rng.random() < 0.7:
        data = target.dress(restructured(rng, target.undress(data)))
        return data if rng.random() < 0.9 else bitten(rng, data)
    return bitten(rng, data) if rng.random() < 0.97 else rng.choice(target.samples)


def bitten(rng: Random, data: bytes) -> bytes:
    """Bytes changed, left out, put in, taken from elsewhere."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(7):
            case 0 if raw:
                raw[at % len(raw)] = rng.randrange(256)
            case 1 if raw:
                raw[at % len(raw)] ^= 1 << rng.randrange(8)
            case 2:
                del raw[at:]
            case 3:
                raw[at:at] = rng.randbytes(rng.choice((1, 4, 40)))
            case 4:
                del raw[at : at + rng.randrange(1, 9)]
            case 5:
                wide = rng.choice((4, 8))
                raw[at : at + wide] = rng.choice(NUMBERS).to_bytes(9, "little", signed=True)[:wide]
            case _:
                raw[at : at + rng.choice((0, 1, 5))] = rng.choice([*HEADS, b"\x91" * rng.choice(DEPTHS)])
    return bytes(raw)


def restructured(rng: Random, body: bytes) -> bytes:
    """The same msgpack with some of its parts replaced, left out, doubled or nested."""
    whole = msgspec.msgpack.decode(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        whole = _change(rng, whole)
    return msgspec.msgpack.encode(whole)


def _change(rng: Random, node: Any) -> Any:
    """Somewhere below, or here."""
    if isinstance(node, list) and node and rng.random() < 0.85:
        at = rng.randrange(len(node))
        match rng.randrange(8):
            case 0:
                return node[:at] + node[at + 1 :]
            case 1:
                return [*node[:at], node[at], *node[at:]]
            case 2:
                return [*node[:at], _new(rng), *node[at:]]
            case _:
                return [*node[:at], _change(rng, node[at]), *node[at + 1 :]]
    if isinstance(node, dict) and node and rng.random() < 0.85:
        name = rng.choice(list(node))
        return {**node, name: _change(rng, node[name])} if rng.random() < 0.7 else {**node, _text(rng): _text(rng)}
    if isinstance(node, int) and rng.random() < 0.5:
        return max(min(node + rng.choice((-2, -1, 1, 2, 2**31, 2**62)), 2**64 - 1), -(2**63))
    if isinstance(node, bytes) and node and rng.random() < 0.6:
        return bitten(rng, node)
    return _new(rng)


def _text(rng: Random) -> str:
    return rng.choice(("", "model", "block size", "group 0", "x" * 1025, str(rng.randrange(99))))


def _new(rng: Random) -> Any:
    match rng.randrange(10):
        case 0:
            return msgspec.Raw(b"\x91" * rng.choice(DEPTHS) + b"\xc0")
        case 1:
            return msgspec.Raw(rng.choice(HEADS))
        case 2:
            return msgspec.Raw((b"\x81\xa1x" * rng.choice(DEPTHS)) + b"\xc0")
        case 3 | 4 | 5 | 6:
            return rng.choice(NUMBERS)
        case _:
            return rng.choice(OTHERS)


# -- run -------------------------------------------------------------------------------------------------------------


def run(name: str, target: Target, cases: int, seed: int) -> Counter[str]:
    """So many cases; what became of them. A case depends on its number alone; an endpoint hears one after the other."""
    seen: Counter[str] = Counter()
    for case in range(seed, seed + cases):
        data = changed(Random(f"{name} {case}"), target)
        measured = case % MEASURED == 0 and name != "endpoint"
        if measured:
            tracemalloc.start()
        try:
            target.read(data)
            seen["read"] += 1
        except target.errors as wrong:
            assert str(wrong), "an error says something"
            seen["refused"] += 1
        except BaseException as wrong:
            first = seed if name == "endpoint" else case
            again = f"python -m tests.transfer.decoding --only {name} --cases {case - first + 1} --seed {first}"
            raise AssertionError(f"{again}: {type(wrong).__name__}: {wrong}") from wrong
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < (1 << 20) + 64 * len(data), f"{name} {case}: {peak} bytes"
    return seen


def main() -> None:
    """By hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="for each kind of input")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--only")
    options = parser.parse_args()
    for name, target in targets().items():
        if options.only in (None, name):
            print(name, dict(run(name, target, options.cases, options.seed)), flush=True)


if __name__ == "__main__":
    main()
