"""Decoding: valid batches, changed in every way that bytes can be, given to everything that reads them.

    python -m tests.events.decoding --cases 1000000 --seed 1

Nothing may be raised, an honest worker in the same index stays EXACT, and memory goes by the length of what came. A
failure says how to repeat it: cases follow each other into one index.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from quire.cli.events_command import _lines, _shown
from quire.core.store import StoreName
from quire.events.follow.index import Index
from quire.events.follow.read import read
from quire.events.follow.stream_state import ReplayRequest, Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names
from quire.events.wire.protocol import NumberedPayload

from .lives import FULL, MIXED, Life, build, ids, run

NUMBERS = [
    0, 1, 2, -1, -2, 7, 8, 9, 63, 64, 65, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32,
    2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, -(2**31), -(2**63),
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, 0.5, 1e308, float("inf"), float("nan"), "", "full_attention", "cross_attention", "x" * 500,
    "\x1b[2J\udcff".encode(errors="surrogatepass"), b"", b"\xff" * 24, bytes(4), bytes(16), [], [[]], {},
    {"quire": None}, [0] * 300, {1: 2}, [None] * 9, msgspec.msgpack.Ext(5, b"x"),
]  # fmt: skip
DEEP = b"deep-mark-of-some-length"  # stands for nesting, which no encoder makes
DEPTHS = (1, 15, 100, 900, 2_000, 100_000)
HEADS = (*(bytes([head]) + b"\xff" * 4 for head in (0xDD, 0xDF, 0xC6, 0xDB)), b"\xdc\xff\xff")
PROMPT = ids(range(500, 524))


def sources() -> list[list[NumberedPayload]]:
    """Streams of a few batches, of caches built in several ways, each with a snapshot and a mark."""
    found = []
    for encoding, groups, host in (("map", FULL, 8), ("array", FULL, 0), ("map", MIXED, 8), ("array", MIXED, 4)):
        cache = build(16, host, groups=groups)
        life, maker = Life(cache, 7), PayloadMaker(Names.from_config(cache.config), encoding, Archive(50, 1 << 24))  # type: ignore[arg-type]
        stream = [maker.make(cache.take_events(whole=True))]
        for _ in range(6):
            life.step()
            stream.append(maker.make(cache.take_events()))
        snapshot = maker.snapshot()
        assert snapshot is not None
        found.append([*stream, snapshot, maker.mark()])
    return found


class Trial:
    """An index with an honest worker, and one whose bytes are made here."""

    def __init__(self, store: StoreName = "auto") -> None:
        self.sources = sources()
        self.index = Index(max_pages=1_000, store=store)
        self.index.add("good")
        self.index.add("bad")
        cache = build(32)
        maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(50, 1 << 24))
        run(cache, 1, PROMPT)
        self.index.hear("good", *maker.make(cache.take_events(whole=True)))
        self.told: Counter[str] = Counter()

    def case(self, seed: int) -> None:
        """One payload, and what an index and people are asked after it."""
        dice = Random(seed)
        if dice.random() < 0.3:
            self.index.remove("bad")
            self.index.add("bad", mendable=dice.random() < 0.5)
        stream = dice.choice(self.sources)
        seq, payload = dice.choice(stream)
        if dice.random() < 0.9:
            payload = mutated(dice, payload, dice.choice(stream)[1])
            self.told["damaged" if "damaged" in read(payload) else "readable"] += 1
        number = dice.choice((seq, seq, seq, dice.choice(NUMBERS), dice.getrandbits(64)))
        request = self.index.hear("bad", number, payload, asked=dice.random() < 0.3)
        if dice.random() < 0.1:
            self.index.answered("bad", request or ReplayRequest(dice.choice((None, 0, 5)), dice.random() < 0.5))
            self.index.check("bad")
        self._judge(payload)

    def _judge(self, payload: bytes) -> None:
        batch = read(payload)
        json.dumps(batch)
        for line in _lines(batch | {"seq": 0, "topic": "", "status": "?"}):
            assert _shown(line).isprintable()
        found = self.index.find(PROMPT)
        assert found["good"].tokens == 24 and found["good"].status is Status.EXACT, "a worker harmed another"
        report, status = self.index.report("bad"), self.index.status("bad")
        assert bool(report.reason) == (status is Status.UNKNOWN), f"{status} because of {report.reason!r}"
        self.told[status.value] += 1


def mutated(dice: Random, payload: bytes, other: bytes) -> bytes:
    """Changed as bytes, as a tree of values, or both."""
    how = dice.random()
    if how < 0.6:
        payload = _pruned(dice, payload)
    if how > 0.5:
        for _ in range(dice.choice((1, 1, 2, 8))):
            payload = _bitten(dice, payload, other)
    return payload


def _pruned(dice: Random, payload: bytes) -> bytes:
    """Some values replaced by others at their limits, dropped, or doubled."""
    try:
        tree = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return payload
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        spots = list(_spots(_field(tree) if dice.random() < 0.6 else tree, dice))
        if spots:
            _change(dice, *dice.choice(spots))
    try:
        data = msgspec.msgpack.encode(tree)
    except RecursionError:  # a part that was put into itself, or as deep as could just be read
        return payload
    depth = dice.choice(DEPTHS)
    return data.replace(msgspec.msgpack.encode(DEEP), dice.choice((b"\x91", b"\x81\x00")) * depth + b"\x90")


def _field(tree: Any) -> Any:
    """Our own, where it still is one."""
    try:
        event = tree[1][-1]
        return event["quire"] if isinstance(event, dict) else event[6]
    except (LookupError, TypeError):
        return tree


DEEPEST = 8  # containers below each other in a batch that anybody would send


def _spots(tree: Any, dice: Random) -> Iterator[tuple[Any, Any]]:
    """Containers and places in them; those of our own field more often.

    Not deeper than DEEPEST: an earlier change may have put a container into itself.
    """
    under_way = [(tree, iter(_keys(tree)))]
    while under_way:
        inside, keys = under_way[-1]
        key = next(keys, None)
        if key is None:
            under_way.pop()
            continue
        yield inside, key
        if len(under_way) < DEEPEST and (key == "quire" or dice.random() < 0.7):
            under_way.append((inside[key], iter(_keys(inside[key]))))


def _keys(tree: Any) -> list[Any]:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return list(keys)[:40]


def _change(dice: Random, place: Any, key: Any) -> None:
    how = dice.random()
    if how < 0.4:
        place[key] = dice.choice(NUMBERS)
    elif how < 0.7:
        place[key] = dice.choice(OTHERS)
    elif how < 0.75:
        place[key] = DEEP
    elif how < 0.85 and isinstance(place[key], bytes):
        raw = bytearray(place[key] * dice.choice((1, 1, 2)))
        for _ in range(dice.choice((1, 3))):
            if raw:
                raw[dice.randrange(len(raw))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
        place[key] = bytes(raw[: dice.choice((len(raw), len(raw) // 2))])
    elif isinstance(place, list):
        place.pop(key) if how < 0.93 else place.insert(key, place[key])
    else:
        place.pop(key)


def _bitten(dice: Random, payload: bytes, other: bytes) -> bytes:
    if not payload:
        return other[:3]
    at, to = sorted(dice.randrange(len(payload) + 1) for _ in range(2))
    match dice.randrange(6):
        case 0:
            return payload[:at]
        case 1:
            return payload[:at] + bytes([dice.randrange(256)]) + payload[at + 1 :]
        case 2:
            return payload[:at] + payload[to:]
        case 3:
            return payload[:at] + other[at:to] + payload[at:]
        case 4:
            return payload[:at] + dice.choice(HEADS) + payload[at:]
    return payload[:at] + bytes([payload[min(at, len(payload) - 1)] ^ 1 << dice.randrange(8)]) + payload[at + 1 :]


def play(seed: int, cases: int, store: StoreName = "auto") -> Counter[str]:
    """That many cases, one seed each; what became of them."""
    trial = Trial(store)
    for number in range(seed, seed + cases):
        try:
            trial.case(number)
        except BaseException as error:
            command = f"python -m tests.events.decoding --seed {seed} --cases {number - seed + 1}"
            raise AssertionError(command) from error
    return trial.told


def main() -> None:
    """Play and say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tracemalloc.start()
    told = play(options.seed, options.cases)
    print(f"{options.cases} cases, {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB at the peak: {dict(told)}")


if __name__ == "__main__":
    main()
