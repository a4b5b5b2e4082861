"""Many random replays over a shared store with random trouble: `python -m tests.tiers.shared.many --seconds 60`.

Two machines on their own threads, with small caches of random sizes and groups, some with host memory of which reads
fail, over a folder or a real Redis that is killed, paused, filled or emptied. The store's threads read and write pages
all the while. Every page that is reused is compared with its text. Prints the seed of a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import redis

from quire import Scope
from quire.tiers.shared import FolderStore, SharedStore
from quire.tiers.shared.stores.redis_store import RedisStore
from tests.tiers.shared.machine import FULL, PATIENT, POOLED, STATE, WINDOW, Machine, text
from tests.tiers.shared.redis_server import BINARY, RedisServer

TURNS = 60


class Trouble:
    """A Redis server, and what happens to it."""

    def __init__(self, folder: Path, dice: np.random.Generator) -> None:
        self.server, self.dice, self.running = RedisServer(folder).start(), dice, True
        self.client: Any = redis.Redis(port=self.server.port, socket_timeout=1)

    def store(self) -> SharedStore:
        return RedisStore(self.server.url, timeout=0.2, part_bytes=int(self.dice.choice([64, 4096])))

    def happens(self) -> None:
        """Now and then."""
        what = int(self.dice.integers(40))
        with contextlib.suppress(redis.RedisError):
            if what == 0 and self.running:
                self.server.kill()
                self.running = False
            elif not self.running and what < 8:
                self.server.start()
                self.running = True
            elif what == 1:
                self.client.execute_command("CLIENT", "PAUSE", "150", "ALL")
            elif what == 2:
                self.client.flushall()
            elif what == 3:
                self.client.config_set("maxmemory-policy", str(self.dice.choice(["noeviction", "allkeys-lru"])))
                self.client.config_set("maxmemory", int(self.dice.choice([0, 1 << 21])))
            elif what < 10:
                self.client.set(f"other-{what}", bytes(300_000))

    def close(self) -> None:
        self.client.close()
        self.server.kill()


class Damage(FolderStore):
    """A folder whose files are spoilt now and then, behind its back."""

    def __init__(self, folder: Path, quota: int | None, dice: np.random.Generator) -> None:
        super().__init__(folder, quota=quota)
        self.dice = dice

    def happens(self) -> None:
        files = [Path(place, name) for place, _, names in os.walk(self.folder) for name in names if name[0] != "."]
        if not files or self.dice.random() > 0.3:
            return
        path = files[int(self.dice.integers(len(files)))]
        with contextlib.suppress(OSError):
            raw = bytearray(path.read_bytes())
            match int(self.dice.integers(3)):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(raw[: int(self.dice.integers(len(raw)))])
                case _:
                    raw[int(self.dice.integers(len(raw)))] ^= 1 << int(self.dice.integers(8))
                    path.write_bytes(raw)


def play(seed: int, folder: Path, *, with_redis: bool) -> int:
    """One replay; pages that came."""
    dice = np.random.default_rng(seed)
    groups = [(FULL,), (FULL, WINDOW), (WINDOW,), (FULL, STATE), POOLED][int(dice.integers(5))]
    trouble = Trouble(folder, dice) if with_redis else Damage(folder, int(dice.choice([4000, 1 << 30])), dice)
    each = 2 if groups is POOLED else 1
    sizes = {"device": each * int(dice.integers(14, 30)), "host": each * int(dice.integers(10, 40))}
    settings = {"min_uses": int(dice.integers(1, 3)), "batch_bytes": int(dice.choice([96, 1000, 1 << 20])), **sizes}
    made = trouble.store if isinstance(trouble, Trouble) else lambda: trouble
    worn = [int(seed) if dice.integers(2) else None for seed in dice.integers(1 << 30, size=2)]  # the host's memory
    machines = [Machine(made(), *groups, worn=one, **settings) for one in worn]  # type: ignore[arg-type]
    errors: list[BaseException] = []

    def serve(nth: int) -> None:
        own = np.random.default_rng([seed, nth])
        try:
            for _ in range(TURNS):
                if nth == 0:
                    trouble.happens()
                parts = [int(own.integers(3)) for _ in range(int(own.integers(1, 4)))]
                scope = Scope(salt="x") if own.random() < 0.3 else Scope()
                if own.random() < 0.03:
                    with contextlib.suppress(Exception):
                        machines[nth].shared.forget(Scope(salt="x"), timeout=1)
                prompt = text(*parts, length=8 * len(parts) + int(own.integers(8)))
                machines[nth].serve(prompt, scope, wait=bool(own.random() < 0.5))
        except BaseException as wrong:
            errors.append(wrong)

    threads = [Thread(target=serve, args=(nth,), daemon=True) for nth in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENT)
        assert not thread.is_alive(), "stuck"
    if errors:
        raise errors[0]
    for machine in machines:
        machine.settle()
        for parts in np.ndindex(3, 3):
            machine.has(text(*parts, length=20))
        machine.close()
    if isinstance(trouble, Trouble):
        trouble.close()
    return sum(machine.shared.counts().hits for machine in machines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1 << 60)
    options = parser.parse_args()
    started, hits, done = time.monotonic(), 0, 0
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() - started > options.seconds:
            break
        with tempfile.TemporaryDirectory(prefix="qr", ignore_cleanup_errors=True) as folder:
            try:
                hits += play(seed, Path(folder), with_redis=BINARY is not None and seed % 2 == 1)
            except BaseException:
                print(f"failed: python -m tests.tiers.shared.many --seed {seed} --count 1", file=sys.stderr)
                raise
        done += 1
    print(f"{done} replays, {hits} pages came, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
