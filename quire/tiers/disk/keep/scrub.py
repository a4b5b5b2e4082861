"""Scrubber: reads pages now and then that no request asked for, so that damage is found early. Owns a thread
and its pace; what happens to a bad page is up to `on_bad`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import numpy as np

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.disk.keep.disk_health import is_bug
from quire.tiers.disk.pages.slots import Failed, NoVerdict
from quire.tiers.disk.pages.tier import DiskTier
from quire.tiers.disk.ranks.ranked_tier import RankedTier

AT_ONCE = 8  # pages
SOUND = NoVerdict()
OnBad = Callable[[int, Failed], None]  # the first group of a pool, and why for each bad slot


class Scrubber:
    """Samples the pages of a tier at so many bytes a second, until it is closed."""

    def __init__(
        self, tier: DiskTier | RankedTier, on_bad: OnBad, *, bytes_per_second: float = 4e6, seed: int | None = None
    ) -> None:
        if not bytes_per_second > 0:
            raise InputError(say("a scrubber", f"{bytes_per_second} bytes a second", "give a pace above 0"))
        self._tier = tier
        self._on_bad = on_bad
        self._dice = np.random.default_rng(seed)
        self._pace = bytes_per_second
        self._closing = Event()
        self.num_looked_at = self.num_bad = 0
        self._on_error: Callable[[BaseException], None] = lambda error: None
        self._thread = Thread(target=self._work, name="quire-scrub", daemon=True)

    def start(self, on_error: Callable[[BaseException], None] = lambda error: None) -> Scrubber:
        """From now on by itself; `on_error` hears what ends it before it is closed."""
        self._on_error = on_error
        self._thread.start()
        return self

    def close(self, seconds: float | None = None) -> bool:
        """End the thread; False: it has not ended in so many seconds."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(None if seconds is None else max(0.0, seconds))
        return not self._thread.is_alive()

    @property
    def stopped(self) -> str:
        """Why it looks at nothing any more, though it is open; empty: it does."""
        ended = self._thread.ident is not None and not self._thread.is_alive() and not self._closing.is_set()
        return "its thread has ended" if ended else ""

    def look(self, count: int = AT_ONCE) -> int:
        """Read some pages of a pool by chance, and report the bad ones; how many bytes that was."""
        pools = sorted(set(self._tier.info().first_of))
        filled = [np.flatnonzero(self._tier.known(group)) for group in pools]
        total = sum(map(len, filled))
        if not total:
            return 0
        nth = int(self._dice.choice(len(filled), p=[len(slots) / total for slots in filled]))
        group = pools[nth]
        slots = self._dice.choice(filled[nth], min(count, len(filled[nth])), replace=False).astype(np.int32)
        before = self._tier.sums(group, slots)
        failed = self._tier.verify(group, slots.tolist())
        after = self._tier.sums(group, slots)
        same = (before[0] == after[0]) & before[1] & after[1]  # else it was written meanwhile, which proves nothing
        bad = {slot: why for slot in slots[same].tolist() if not isinstance(why := failed.get(slot, SOUND), NoVerdict)}
        self.num_looked_at += len(slots)
        self.num_bad += len(bad)
        if bad:
            self._on_bad(group, bad)
        return len(slots) * self._tier.info().page_bytes[group]

    def _work(self) -> None:
        done = 0
        while not self._closing.wait(max(done / self._pace, 0.1)):
            try:
                done = self.look()
            except StateError:  # the tier was closed
                return
            except BaseException as error:
                self._on_error(error)
                if is_bug(error):
                    return
                done = int(self._pace)  # the disk may come round: look again in a second
