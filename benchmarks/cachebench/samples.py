"""Every row by its name: what is sampled, on which cache, how often. Caches are made when a row first asks for one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cached_property

from cachebench import workload as load
from cachebench.groups import ONE, THREE, Mix
from cachebench.rows import Decode, Rows

REPEATS = 21  # samples of a row in a round
ROWS = (
    "cold_8k_us",
    "hit90_8k_us",
    "release_8k_us",
    "life_1k_us",
    "full_8k_us",
    "full_host_8k_us",
    "admit_64x8k_us",
    "decode_1024_us",
    "rich_cold_8k_us",
    "one_group_cold_8k_us",
    "three_groups_cold_8k_us",
    "one_group_hit75_8k_us",
    "three_groups_hit75_8k_us",
    "one_group_decode_1024_us",
    "three_groups_decode_1024_us",
)

OWNERS = {  # of rows that have a cache of their own
    "full_8k_us": "full",
    "full_host_8k_us": "full_host",
    "admit_64x8k_us": "full",
    "rich_cold_8k_us": "rich",
    "decode_1024_us": "decode",
}
LOOKS = ("claim_drop_8k_us", "find_8k_us", "probe_8k_us")  # not compared with states that have no find


def fewest_us(sample: Callable[[], int], repeats: int) -> float:
    """The fewest microseconds of a few samples, with the collector off."""
    gc.collect()
    gc.disable()
    try:
        return min(sample() for _ in range(repeats)) / 1000
    finally:
        gc.enable()


class Samples:
    """The rows of one process."""

    def row(self, name: str) -> tuple[Callable[[], int], int]:
        """One sample in nanoseconds, and how many make a round."""
        if name not in ROWS + LOOKS:
            raise ValueError(f"there is no row {name!r}; there are {', '.join(ROWS)}")
        repeats = {"admit_64x8k_us": 3}.get(name, 2 * load.BLOCK if "decode" in name else REPEATS)
        kind, _, rest = name.partition("_group_" if name.startswith("one_") else "_groups_")
        if rest:
            return getattr(getattr(self, kind), rest), repeats
        return getattr(getattr(self, OWNERS.get(name, "plain")), name), repeats

    @cached_property
    def plain(self) -> Rows:
        """Room for everything."""
        return _warmed()

    @cached_property
    def full(self) -> Rows:
        """No slot is empty."""
        rows = _warmed()
        rows.fill()
        return rows

    @cached_property
    def full_host(self) -> Rows:
        """No slot is empty, on the device or below. Time stands: where pages are of many ages, an order that learns may
        keep older ones on the host, and drop what leaves the device."""
        rows = Rows(load.make_cache(slots=load.DEVICE, host=load.HOST, tick=0.0))
        rows.fill_host()
        return rows

    @cached_property
    def rich(self) -> Rows:
        """A host tier and events."""
        return _warmed(host=20_000, events=True)

    @cached_property
    def decode(self) -> Decode:
        """1,024 running sequences."""
        return Decode()

    @cached_property
    def one(self) -> Mix:
        """A full group."""
        return Mix(ONE)

    @cached_property
    def three(self) -> Mix:
        """A full group, a window and a state."""
        return Mix(THREE)


def _warmed(*, host: int = 0, events: bool = False) -> Rows:
    cache = load.make_cache(host=host, events=events)
    load.warm(cache)
    return Rows(cache)
