"""Machines that serve the same texts over one store while it is killed, restarted, paused, filled and emptied.

Every page that is reused is compared with the bytes of its text: nothing wrong, nothing stuck.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import redis

from quire import LayerGroup, Scope
from quire.tiers.shared import FolderStore, SharedStore
from quire.tiers.shared.stores.redis_store import RedisStore
from tests.tiers.shared.machine import FULL, PATIENT, WINDOW, Machine, text
from tests.tiers.shared.redis_server import RedisServer
from tests.waits import until

TURNS = 40
Trouble = Callable[[int], None]


def nothing(_: int) -> None:
    """No trouble."""


def replay(
    make: Callable[[], SharedStore], trouble: Trouble = nothing, *groups: LayerGroup, turns: int = TURNS
) -> list[Machine]:
    """Two machines, each on its own thread, with caches too small for all texts; `trouble` hears each turn of one."""
    machines = [Machine(make(), *groups, device=14, host=22) for _ in range(2)]
    errors: list[BaseException] = []

    def serve(nth: int) -> None:
        dice = np.random.default_rng(nth)
        try:
            for turn in range(turns):
                if nth == 0:
                    trouble(turn)
                parts = [int(dice.integers(3)) for _ in range(int(dice.integers(1, 4)))]
                scope = Scope(salt="x") if dice.random() < 0.2 else Scope()
                machines[nth].serve(
                    text(*parts, length=8 * len(parts) + int(dice.integers(8))), scope, wait=bool(dice.random() < 0.5)
                )
        except BaseException as wrong:
            errors.append(wrong)

    threads = [Thread(target=serve, args=(nth,)) for nth in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENT)
        assert not thread.is_alive(), "stuck"
    assert not errors, errors[0]
    return machines


def end(machines: list[Machine]) -> None:
    """Every page that is still there has the right bytes; nothing is left open."""
    for machine in machines:
        machine.settle()
        for parts in np.ndindex(3, 3):
            for scope in (Scope(), Scope(salt="x")):
                machine.has(text(*parts, length=20), scope)
        machine.close()


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)])
def test_a_folder_that_works(tmp_path: Path, groups: tuple[LayerGroup, ...]) -> None:
    machines = replay(lambda: FolderStore(tmp_path), nothing, *groups)
    hits = sum(machine.shared.counts().hits for machine in machines)
    assert hits > 20
    end(machines)


def test_a_folder_below_a_small_quota(tmp_path: Path) -> None:
    machines = replay(lambda: FolderStore(tmp_path, quota=3000))
    assert any(machine.shared.counts().hits for machine in machines)  # how many: as the threads fall
    end(machines)


def make_redis(server: RedisServer) -> Callable[[], SharedStore]:
    return lambda: RedisStore(server.url, timeout=0.2)


def test_a_server_that_is_killed_and_comes_back(redis_server: RedisServer) -> None:
    def trouble(turn: int) -> None:
        if turn == TURNS // 3:
            redis_server.kill()
        if turn == 2 * TURNS // 3:
            redis_server.start()

    machines = replay(make_redis(redis_server), trouble)
    for machine in machines:
        until(lambda one=machine: one.shared.client.reachable)  # type: ignore[misc]
    assert sum(machine.shared.counts().openings for machine in machines) >= 1
    before = [machine.shared.counts().sent for machine in machines]
    for machine in machines:
        machine.serve(text(8, 8, length=24))
        machine.settle()
    assert [machine.shared.counts().sent for machine in machines] != before
    end(machines)


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_a_server_that_is_full(redis_server: RedisServer, policy: str) -> None:
    client: Any = RedisStore(redis_server.url)._client
    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory-policy", policy)
    client.config_set("maxmemory", used + 1_000_000)

    def trouble(turn: int) -> None:
        if policy == "allkeys-lru":
            client.set(f"other-{turn}", bytes(60_000))
        elif turn == 5:
            for size in (100_000, 5_000, 100):
                with contextlib.suppress(redis.OutOfMemoryError):
                    for number in range(1000):
                        client.set(f"other-{size}-{number}", bytes(size))

    machines = replay(make_redis(redis_server), trouble)
    counts = [machine.shared.counts() for machine in machines]
    full = sum(count.drops.get("full", 0) for count in counts)
    assert sum(count.hits for count in counts) > 5 and (full > 0) == (policy == "noeviction")
    assert policy == "noeviction" or client.info("stats")["evicted_keys"] > 0
    client.close()
    end(machines)


def test_a_server_that_pauses(redis_server: RedisServer) -> None:
    client: Any = RedisStore(redis_server.url)._client

    def trouble(turn: int) -> None:
        if turn % 20 == 10:
            client.execute_command("CLIENT", "PAUSE", "300", "ALL")

    machines = replay(make_redis(redis_server), trouble)
    client.close()
    end(machines)


def test_a_server_that_is_emptied(redis_server: RedisServer) -> None:
    client: Any = RedisStore(redis_server.url)._client
    machines = replay(make_redis(redis_server), lambda turn: client.flushall() if turn % 7 == 0 else None)
    client.close()
    end(machines)
