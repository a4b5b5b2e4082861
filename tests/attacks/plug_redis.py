"""A plug over a real Redis: pages changed, exchanged, cut and gone in the server; a server that is killed, stopped,
emptied, full, or drops its connections while the plug goes on. No wrong byte is loaded, and every job ends.

Knows no plug. Beside it a disk, every second time: what the store does keeps nothing from that.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ..tiers.shared.redis_server import FAULTS, RedisServer
from .checks import PATIENT, Checks, within
from .plugged import Key, Make, opened

COUNT = 20
BETWEEN = 8  # turns from one fault to the next


def redis_damage(plug: tuple[Make, Key], folder: Path, server: RedisServer, checks: Checks) -> None:
    """What lies in the server is not what was stored."""
    make, key_of = plug
    keys, dice = [key_of(one) for one in range(COUNT)], np.random.default_rng(0)

    def changed(raw: bytes) -> bytes:
        data = bytearray(raw)
        data[int(dice.integers(len(data)))] ^= 1 << int(dice.integers(8))
        return bytes(data)

    for way in ("flipped", "exchanged", "cut", "longer", "gone", "a list"):
        with server.client() as there:
            there.flushall()
            engine = opened(make, folder / way, "store", url=server.url)
            for start in range(0, COUNT, 5):
                engine.store(keys[start : start + 5])
            engine.settle()
            checks.held(f"redis, {way}: all that was stored comes", engine.load_all(keys) == COUNT)
            engine.close()
            names = sorted(there.keys())
            before = [there.get(name) for name in names]
            after = before[1:] + before[:1]
            for nth, (name, raw) in enumerate(zip(names, before, strict=True)):
                if way == "exchanged":
                    there.set(name, after[nth])
                elif nth % 4 == 0:
                    there.delete(name)
                    if way == "a list":
                        there.rpush(name, b"x")
                    elif way != "gone":
                        there.set(name, {"flipped": changed(raw), "cut": raw[:-7], "longer": raw + b"x"}[way])
            again = opened(make, folder / way, "store", url=server.url)
            came = within(lambda: again.load_all(keys))  # noqa: B023  # raises at a wrong byte
            least = 0 if way in ("exchanged", "a list") else 1
            good = isinstance(came, int) and least <= came < COUNT and (way != "exchanged" or came == 0)
            checks.held(f"redis, {way}: what is not as it was does not come, the rest does", good, came)
            if way == "a list":
                there.flushall()  # nothing can be written over it
            again.store(keys)
            again.settle()
            checks.held(f"redis, {way}: computed again, all comes", within(lambda: again.load_all(keys)) == COUNT)  # noqa: B023
            again.close()


def unsteady(plug: tuple[Make, Key], folder: Path, server: RedisServer, turns: int, checks: Checks) -> None:
    """Random lives over a server that has one fault after the other, with a disk and without."""
    make, key_of = plug
    for kind in ("store", "both"):
        dice, wrong = np.random.default_rng([len(kind), turns]), list[str]()
        engine = opened(make, folder / f"unsteady-{kind}", kind, url=server.url)
        for turn in range(turns):
            fault = FAULTS[turn // BETWEEN % len(FAULTS)] if turn % BETWEEN == BETWEEN - 1 else ""
            server.suffer(fault)
            first = int(dice.integers(40))
            engine.store([key_of(first + nth) for nth in range(int(dice.integers(1, 6)))])
            engine.load([key_of(one) for one in dice.choice(46, 3, replace=False).tolist()])
            engine.look()
            if fault:
                if within(engine.settle) is not None:
                    wrong.append(f"turn {turn}: jobs do not end ({fault})")
                server.mend()
        server.mend()
        came, number, late = 0, 60, time.monotonic() + PATIENT
        while came < 5 and time.monotonic() < late:  # connections that it has dropped, and a pause after failures
            fresh = [key_of(one) for one in range(number, number + 5)]
            engine.store(fresh)
            engine.settle()
            came, number = engine.load_all(fresh), number + 5
        what = f"{kind}: every job ends whatever Redis does, no wrong byte, {engine.failed} pages not moved"
        checks.held(what, not wrong and engine.failed > 0, wrong)
        checks.held(f"{kind}: when it is whole again pages come again ({engine.loaded} in all)", came == 5, came)
        engine.close()
