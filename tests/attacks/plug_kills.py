"""A plug, its engine stubbed: killed a thousand times at any change of its files, on a full disk, on a disk and a store
that do not answer, and all that `plug_damage` does to its files; a quarter of the kills again over a real Redis, and
all that `plug_redis` does to that. No wrong byte is loaded, what was durable is there, every job ends.

Knows no plug: `tier_kills`, `hicache_kills` and `lmcache_kills` say which one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.read_manifest import NAME

from ..tiers.disk.dying import DeadlyFiles, Tell, until_killed
from ..tiers.disk.keyed.durable_keys import DurableKeys, lost
from ..tiers.disk.stand_ins import FullFiles
from ..tiers.disk.test_hanging import GatedFiles
from ..tiers.shared.redis_server import NO_REDIS, redis_there
from ..tiers.shared.test_client import GatedStore
from .checks import Checks, within
from .deadly_stores import make_deadly
from .plug_damage import damage
from .plug_redis import redis_damage, unsteady
from .plugged import KINDS, Key, Make, opened

KILLS, TEXTS, MOST_TURNS = 1000, 60, 3000


def first_text(kind: str, seed: int) -> int:
    """A store without a limit has all of a few texts soon, and nothing is written any more: each life has its own."""
    return 1000 * seed if kind == "store" else 0


def live(plug: tuple[Make, Key], folder: Path, kind: str, seeds: Sequence[int], url: str, tell: Tell) -> None:
    """Serve until it is killed; tells what is durable for certain, and what of it has gone."""
    dice, (make, key_of) = np.random.default_rng(seeds), plug
    files = DeadlyFiles(int(dice.integers(10, 300)), np.random.default_rng([*seeds, 1]))
    engine = opened(make, folder, kind, files, url)
    if engine.shared is not None:
        make_deadly(engine.shared.client.store, int(dice.integers(1, 100)) if kind == "store" else 1000, dice)
    start, durable = first_text(kind, seeds[0]), None if engine.disk is None else DurableKeys(engine.disk, tell)
    for _ in range(MOST_TURNS):  # it dies long before
        first = start + int(dice.integers(TEXTS))
        keys = [key_of(first + nth) for nth in range(int(dice.integers(1, 6)))]
        engine.store(keys)
        if dice.random() < 0.5:
            engine.load([key_of(start + one) for one in dice.choice(TEXTS, 3, replace=False).tolist()])
        engine.look()
        if dice.random() < 0.3:
            engine.settle()
            if durable is not None:
                durable.fence()
            else:
                tell([nth for nth, key in enumerate(keys, first) if engine.has(key)])


def kind_of(seed: int, url: str) -> str:
    """What is killed: of a store that is no folder the two that have one."""
    return KINDS[1 + seed % 2] if url else KINDS[seed % 3]


def kill(plug: tuple[Make, Key], folder: Path, seed: int, url: str = "") -> str:
    """One life and its end; what did not hold."""
    kind, (make, key_of) = kind_of(seed, url), plug
    told = until_killed(lambda tell: live(plug, folder, kind, [seed, 0], url, tell))
    for manifest in (folder / "disk").rglob(NAME):
        report = examine(manifest.parent)
        if report.damaged or report.refused:
            return f"fsck: {report.refused} {report.findings}"
    engine = opened(make, folder, kind, url=url)
    missing: Collection[Any] = () if engine.disk is None else lost(told, engine.disk)
    keys = [key_of(first_text(kind, seed) + one) for one in range(TEXTS + 6)]
    engine.load_all(keys)  # raises at a wrong byte
    if engine.disk is None:
        missing = [one for one in (told[-1] if told else []) if not engine.has(key_of(one))]
    engine.store(keys[:3])
    engine.settle()
    taken, disk = [engine.has(key) for key in keys[:3]], engine.disk
    state = "" if disk is None else f"{len(disk)} pages, broken {disk.broken!r}, stalled {disk.stalled!r}"
    if not engine.close():
        return "closing hangs"
    if not all(taken):
        return f"nothing is stored any more: {taken}, failed {engine.failed}, {state}"
    return f"durable pages are lost: {missing}" if missing else ""


def kills(plug: tuple[Make, Key], folder: Path, count: int, first: int, checks: Checks, url: str = "") -> None:
    """One after the other in one folder, which is emptied now and then."""
    wrong: dict[int, str] = {}
    for seed in range(first, first + count):
        place = folder / kind_of(seed, url)
        if why := kill(plug, place, seed, url):
            wrong[seed] = why
        if seed % 24 < 3:
            rmtree(place, ignore_errors=True)  # a store elsewhere has none
        if (seed - first) % 50 == 49:
            print(f"   {seed - first + 1} kills", flush=True)
    over = f" over {url.partition(':')[0]}" if url else ""
    checks.held(f"{count} kills{over}: no wrong byte, no damage, nothing durable lost", not wrong, wrong)


def full(plug: tuple[Make, Key], folder: Path, checks: Checks) -> None:
    """Neither pages nor records have room; then they have."""
    files, (make, key_of) = FullFiles(), plug
    engine = make(folder, None, files=files)
    engine.store([key_of(one) for one in range(5)])
    engine.settle()
    files.full = {"pages-0", NAME, "manifest.new"}
    for start in range(5, 45, 5):
        engine.store([key_of(start + nth) for nth in range(5)])
    engine.settle()
    checks.held(f"full: {engine.failed} pages were not stored, every job ended", engine.failed > 0)
    engine.load_all([key_of(one) for one in range(45)])
    files.full = set()
    fresh = [key_of(one) for one in range(50, 55)]
    engine.store(fresh)
    engine.settle()
    checks.held("with room again it stores again", engine.load_all(fresh) == 5)
    engine.close()


def hanging(plug: tuple[Make, Key], folder: Path, checks: Checks) -> None:
    """A disk that does not answer calls of one kind, beside a store that does; then the other way round."""
    make, key_of = plug
    for name, what in ((NAME, "sync"), (NAME, "write"), ("pages-0", "sync"), ("pages-0", "write"), ("pages-0", "read")):
        files, place, keys = GatedFiles(), folder / f"{name}-{what}", [key_of(one) for one in range(10)]
        engine = make(place / "d", place / "s", deadline=0.1, files=files)
        engine.store(keys[:5])
        engine.settle()
        files.closed.add((name, what))
        engine.store(keys[5:])
        engine.load(keys[:5])
        where = f"while {name} does not answer a {what}"
        checks.held(f"every job ends {where}", within(engine.settle) is None)
        files.closed.clear()
        files.gate.set()
        checks.held(f"the store has them {where}", within(lambda: engine.load_all(keys)) == 10)  # noqa: B023
        within(engine.close)
    engine = make(folder / "d", folder / "s", wait=0.1)
    assert engine.shared is not None
    gated = engine.shared.client.store = GatedStore(folder / "s")
    gated.hangs = True
    engine.store([key_of(one) for one in range(5)])
    checks.held("every job ends while the store does not answer", within(engine.settle) is None)
    came = within(lambda: engine.load_all([key_of(one) for one in range(8)]))
    checks.held("the disk has them while the store does not answer", came == 5, came)
    gated.hangs = False
    gated.gate.set()
    within(engine.close)


def attack(make: Make, key_of: Key, folder: Path, checks: Checks) -> None:
    """Each in a folder of its own."""
    numbers, plug = [int(word) for word in sys.argv[1:3]], (make, key_of)
    damage(plug, folder, checks)
    full(plug, folder / "full", checks)
    hanging(plug, folder / "hanging", checks)
    count, first = [*numbers, KILLS, 0][:2] if len(numbers) != 1 else (numbers[0], 0)
    kills(plug, folder / "kills", count, first, checks)
    with redis_there() as server:
        if server is None:
            print(f"   left out: {NO_REDIS}", flush=True)
            return
        redis_damage(plug, folder / "redis", server, checks)
        unsteady(plug, folder / "redis", server, 300, checks)
        kills(plug, folder / "redis-kills", count // 4, first, checks, server.url)
