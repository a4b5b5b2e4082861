"""Every plug, its engine stubbed: damaged files, a full disk, a Redis with every fault, and a few of the kills that
`tests.attacks` has by the thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import hicache_kills, lmcache_kills, tier_kills
from tests.attacks.checks import Checks
from tests.attacks.plug_damage import damage
from tests.attacks.plug_kills import full, kill
from tests.attacks.plug_redis import BETWEEN, redis_damage, unsteady
from tests.attacks.plugged import Key, Make
from tests.effort import cases
from tests.tiers.shared.conftest import redis_server  # noqa: F401  # a fixture
from tests.tiers.shared.redis_server import FAULTS, RedisServer

PLUGS: dict[str, tuple[Make, Key]] = {
    "tier": tier_kills.PLUG,
    "hicache": hicache_kills.PLUG,
    "lmcache": lmcache_kills.PLUG,
}


@pytest.fixture(params=PLUGS)
def plug(request: pytest.FixtureRequest) -> tuple[Make, Key]:
    return PLUGS[str(request.param)]


def test_damaged_and_exchanged_pages_are_failed_loads_and_a_cut_manifest_says_less(
    plug: tuple[Make, Key], tmp_path: Path
) -> None:
    damage(plug, tmp_path, checks := Checks())
    assert not checks.broken


def test_a_full_disk_ends_no_job_late_and_takes_pages_when_it_has_room(plug: tuple[Make, Key], tmp_path: Path) -> None:
    full(plug, tmp_path, checks := Checks())
    assert not checks.broken


@pytest.mark.parametrize("seed", range(cases(3, 60)))
def test_a_kill_mixes_no_bytes_and_loses_nothing_durable(plug: tuple[Make, Key], tmp_path: Path, seed: int) -> None:
    assert kill(plug, tmp_path, seed) == "" and kill(plug, tmp_path, seed + 3) == ""


def test_pages_that_are_changed_in_a_redis_do_not_come_and_no_fault_of_it_holds_a_job_up(
    plug: tuple[Make, Key],
    tmp_path: Path,
    redis_server: RedisServer,  # noqa: F811
) -> None:
    redis_damage(plug, tmp_path, redis_server, checks := Checks())
    unsteady(plug, tmp_path, redis_server, BETWEEN * cases(len(FAULTS), 50), checks)
    assert not checks.broken


@pytest.mark.parametrize("seed", range(cases(2, 40)))
def test_a_kill_in_the_middle_of_a_command_to_a_redis_mixes_no_bytes(
    plug: tuple[Make, Key],
    tmp_path: Path,
    redis_server: RedisServer,  # noqa: F811
    seed: int,
) -> None:
    assert kill(plug, tmp_path, seed, redis_server.url) == "" == kill(plug, tmp_path, seed + 2, redis_server.url)
