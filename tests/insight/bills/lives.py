"""Random lives of billed caches: the fuzzer's worlds, whose requests come from a few tenants, on a clock of its own."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from fuzzing.driver import Driver
from fuzzing.subject import StoreName, Subject
from fuzzing.weights import VERBS
from fuzzing.world import build
from quire import Cache, Request
from quire.core.state.sequence import Sequence as LiveSequence
from quire.insight.bills import Bill, Bills

DAY = datetime(2026, 1, 2, tzinfo=UTC)
TENANTS = ("alice", "bob", "carol", None)


class Seen:
    """Every sequence that was admitted, forks aside: what it says of itself at the end."""

    def __init__(self) -> None:
        self.sequences: list[LiveSequence] = []

    def admitted(self, sequences: Iterable[LiveSequence]) -> None:
        """They began."""
        self.sequences += sequences

    def ending(self, sequence: LiveSequence, store: bool) -> None:
        """It ends."""


class BilledLife:
    """One random world with a billed cache for each store; what memory was held is counted here once more."""

    def __init__(self, name: str, stores: Sequence[StoreName], patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.time, self.bills, self.seen = 0, list[Bills](), list[Seen]()
        self.dice = Random(name)

        def watchers() -> list[Any]:
            self.bills.append(Bills(clock=lambda: self.time, now=lambda: DAY, **options))
            self.seen.append(Seen())
            return [self.bills[-1], self.seen[-1]]

        plain = build.request

        def request(ask: Any) -> Request:
            made, number = plain(ask), zlib.crc32(ask.name.encode())
            session = f"s{number % 5}" if number % 3 == 0 and made.session is None else made.session
            return replace(
                made, tenant=TENANTS[number % 4], session=session if options.get("sessions") else made.session
            )

        patch.setattr(build, "request", request)
        patch.setattr(Subject, "watchers", staticmethod(watchers))
        self.driver = Driver(name, stores)
        self.caches = [subject.cache for subject in self.driver.trial.subjects]
        self.held = [Counter[str]() for _ in self.caches]

    def live(self, calls: int) -> list[Bill]:
        """So many random calls; the bills then."""
        try:
            for _ in range(calls):
                self.pass_time(self.dice.choice((0, 1, 7, 10**9)))
                getattr(self.driver, self.driver.rng.choices(VERBS, cum_weights=self.driver.shares)[0])()
        finally:
            self.driver.trial.close()
        return [one.bill() for one in self.bills]

    def pass_time(self, ticks: int) -> None:
        """Time goes on, and what is held is held so long."""
        for cache, held in zip(self.caches, self.held, strict=True):
            for tier, number in bytes_held(cache).items():
                held[tier] += number * ticks
        self.time += ticks


def bytes_held(cache: Cache) -> Counter[str]:
    """Of all copies in each tier now, as the cache itself counts its slots."""
    config, found = cache.config, Counter[str]()
    for pool in range(config.num_pools):
        group = config.pool_of.index(pool)
        for number, tier in enumerate(config.tiers):
            usage = cache.usage(number, group)
            found[tier.name] += (usage.capacity - usage.empty - usage.filling) * (config.groups[group].page_bytes or 1)
    return found


def counted(cache: Cache) -> tuple[Counter[str], int]:
    """Bytes that were read from colder tiers, by tier, and those that were evicted, as the cache counts them."""
    loaded, evicted = Counter[str](), 0
    for group in range(len(cache.config.groups)):
        numbers, size = cache.stats(group), cache.config.groups[group].page_bytes or 1
        for tier, pages in enumerate(numbers.reused_from[1:], 1):
            loaded[cache.config.tiers[tier].name] += pages * size
        loaded[cache.config.tiers[-1].name] += numbers.prefetched * size
        evicted += numbers.dropped * size
    return +loaded, evicted
