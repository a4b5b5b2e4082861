"""What tests of incidents share: lives of the fuzzer with recorded caches, and what of two caches must be equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzzing.driver import Driver
from fuzzing.subject import StoreName, Subject
from fuzzing.weights import VERBS
from quire import Cache
from quire.core.colder_tiers import registry_of
from quire.incidents import Incident, Incidents, load


class Life:
    """One random world with a recorded cache for each store."""

    def __init__(self, name: str, stores: Sequence[StoreName], folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.incidents: list[Incidents] = []

        def watchers() -> list[Incidents]:
            self.incidents.append(Incidents(folder / str(len(self.incidents)), thread=False, apart=False))
            return self.incidents[-1:]

        patch.setattr(Subject, "watchers", staticmethod(watchers))
        self.driver = Driver(name, stores)
        self.caches = [subject.cache for subject in self.driver.trial.subjects]

    def flies(self, depth: int) -> None:
        """Its engine has so many steps in flight at once, whose device fails often; and it decodes with drafts."""
        self.driver.depth = depth
        habits = self.driver.habits
        more = (*habits.more, ("crash", 4.0), ("land", 25.0), ("step", 20.0), ("grow", 50.0), ("trim", 12.0))
        self.driver.shares = replace(habits, more=more).shares(self.driver.world.slow, True)

    def live(self, calls: int, middle: int) -> list[tuple[Incident, Any]]:
        """So many random calls; what was saved behind some of them and at the end."""
        saved: list[tuple[Incident, Any]] = []
        try:
            for nth in range(calls):
                getattr(self.driver, self.driver.rng.choices(VERBS, cum_weights=self.driver.shares)[0])()
                if nth == middle:
                    saved = self.saved()
        finally:
            self.driver.trial.close()
        return saved + self.saved()

    def saved(self) -> list[tuple[Incident, Any]]:
        """What each cache has lived through, and its state."""
        return [(load(one.save()), state_of(cache)) for one, cache in zip(self.incidents, self.caches, strict=True)]


def state_of(cache: Cache) -> list[Any]:
    """Rows, slots, pages, free counts and statistics; what lies behind orders shows in the slots of later calls."""
    found: list[Any] = []
    for stream in registry_of(cache).setup.streams:
        store = stream.store
        arrays: list[Any] = [store.length, store.computed, store.handed, store.launched, store.committed]
        for more in (store.slots, store.pages, store.capacity, store.currents, store.counters):
            arrays += more
        found += [np.asarray(array).tolist() for array in arrays]
        dump = store.dump()
        found += [group.orders for group in dump.groups] + [group.free_pages for group in dump.groups]
    found += [
        (step.number, *map(np.ndarray.tolist, (step.rows, step.starts, step.ends))) for step in cache.open_steps()
    ]
    found.append(sorted(registry_of(cache).in_flight.ending))
    config = cache.config
    usages = [cache.usage(tier, group) for group in range(len(config.groups)) for tier in range(len(config.tiers))]
    return [*found, *[replace(usage, ghost_bytes=0, index_bytes=0) for usage in usages]]
