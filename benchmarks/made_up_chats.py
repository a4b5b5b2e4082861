"""Pages that the live page's chats reuse, by eviction order: python benchmarks/made_up_chats.py

Full attention and a window of 256, each with pages of its own, on the device and in host memory. The clock ticks a
millisecond with each call, so that the numbers are the same every time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from quire import Cache
from quire.core.records.config import Eviction
from quire.viewer.made_up_traffic import MadeUpTraffic, demo_cache

LOADS = ((20, 5, 1000, 1000, 400), (20, 6, 1000, 1000, 400), (40, 1, 1500, 3000, 800), (60, 2, 3000, 4500, 1200))


def reused(order: Eviction, users: int, seed: int, device: int, host: int, steps: int) -> tuple[int, int]:
    """Pages reused, and those of them that came up from the host."""
    ticks = count()
    config = replace(demo_cache(device, host, 16 if users == 20 else 48).config, eviction=order)
    traffic = MadeUpTraffic(Cache(config, clock=lambda: next(ticks) * 1e-3), users, seed)
    for _ in range(steps):
        traffic.step()
    counts = traffic.cache.stats()
    return counts.reused, counts.onboarded


def main() -> None:
    orders: tuple[Eviction, ...] = ("lru", "adaptive")
    print(f"{'users, seed, device, host, steps':34} {'lru':>14} {'adaptive':>14}")
    for load in LOADS:
        found = [reused(order, *load) for order in orders]
        print(f"{', '.join(map(str, load)):34} " + " ".join(f"{pages:7} ({up:4})" for pages, up in found))


if __name__ == "__main__":
    main()
