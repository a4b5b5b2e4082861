"""Between the keeper's choice of pages and their copy anything may happen: the step's plan that brings them is open, or
fails; others exchange, evict and let windows pass; a page is reported as bad. What is on disk afterwards, and is found
there, has its bytes, also in the next process.

The keeper is stopped on purpose: at each read of the memory above the disk, and when pages have come up.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import Cache, CacheConfig, LayerGroup, Refusal, TierConfig, check
from quire.core.outside.prefetch import Prefetch
from quire.core.records.groups import pools_of
from quire.core.records.plan import Kind
from quire.core.records.request import PLAIN
from quire.core.sequences.setbacks import Finished
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout, Tier, TierError, TierInfo
from quire.tiers.disk import DiskFolder, DiskIO, DiskKeeper, DiskLimits, KeeperPace
from tests.effort import cases
from tests.tiers.shared.machine import (
    FINGERPRINT,
    FULL,
    PATIENT,
    POOLED,
    SIZE,
    STATE,
    WINDOW,
    Int32,
    Machine,
    WornArena,
    text,
)

GROUPS = {"full": (FULL,), "window": (FULL, WINDOW), "pool": POOLED, "state": (FULL, STATE)}
BY_HAND = KeeperPace(look_seconds=600, scrub_bytes_per_second=0, copy_bytes=1 << 11)
DISK = 200


class Stopped:
    """Memory as the keeper reads it: something happens before each read, and after each write."""

    def __init__(self, arena: ArenaTier) -> None:
        self.arena = arena
        self.meddle: Callable[[], None] = lambda: None

    def info(self) -> TierInfo:
        return self.arena.info()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self.meddle()
        self.arena.read(group, slots, out)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self.arena.write(group, slots, data)
        self.meddle()

    def close(self) -> None:
        self.arena.close()


class Worn(WornArena):
    """Writes fail as well, and leave other bytes than the page's."""

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self.arena.write(group, slots, data)
        failed = {slot: "worn out" for slot in slots if self.dice.integers(4) == 0}
        for slot in failed:
            self.arena.view(group)[slot] = 0xEE
        if failed:
            raise TierError("host", group, failed)


class Lasting(Machine):
    """A machine with a disk in place of a store."""

    def __init__(self, folder: Path, groups: tuple[LayerGroup, ...], rng: random.Random, worn: int | None) -> None:
        self.groups, self.rng, self.seen = groups, rng, Counter[str]()
        sizes, pools = [group.page_bytes for group in groups], pools_of(groups)
        tiers = (TierConfig("device", 14), TierConfig("host", 16), TierConfig("disk", DISK, slow=True))
        self.cache = Cache(
            CacheConfig(tiers, SIZE, groups, max_length=128, max_chunk=64, partial_reuse=False, lasting=True)
        )
        self.tiers = [ArenaTier(tier.name, [tier.of_pool(0)] * len(sizes), sizes, pools) for tier in tiers[:2]]
        self.worn, self.turns, self.wrong, self.computed = worn is not None, None, [], 0
        moved: list[Tier] = [self.tiers[0], self.tiers[1] if worn is None else Worn(self.tiers[1], worn)]
        layouts = [PageLayout(size) for size in sizes]
        self.mover = Mover(moved, layouts, SIZE)
        self.stops = [Stopped(tier) for tier in self.tiers]
        slots = [self.cache.config.slots_of(-1, group) for group in range(len(groups))]
        limits = DiskLimits(pool_of=self.cache.config.pool_of)
        self.folder = DiskFolder(folder, FINGERPRINT, sizes, slots, io=DiskIO(1, 8, 600), limits=limits)
        self.late = deque[Finished]()
        self.keeper = DiskKeeper(
            self.cache, self.folder, self.stops, layouts, pace=BY_HAND, on_setbacks=self.late.append
        )

    def act(self, texts: list[Int32]) -> None:
        """A prompt from its admission to its end; now and then a page of the host is bad instead."""
        if self.rng.random() < 0.4 and self.spoil(texts):
            return
        tokens = self.rng.choice(texts)
        self.go_on(tokens, self.begin(tokens))

    def meddle_by(self, act: Callable[[], None]) -> None:
        """This happens whenever the keeper stops."""
        for one in self.stops:
            one.meddle = act

    def catch_up(self) -> None:
        """Plans that follow from bad pages are run as those of a step."""
        while self.late:
            if (plan := self.late.popleft().plan) is not None:
                self.carry(plan)

    def begin(self, tokens: Int32) -> Callable[[], bool]:
        """Let it in; what carries its plan, later."""
        self.catch_up()
        batch = self.cache.add_sequence_batch([self.request(tokens)])
        self.seen.update({kind.name: batch.plan.count(kind) for kind in Kind})
        self.batch = batch
        return lambda: self.carry(batch.plan)

    def go_on(self, tokens: Int32, carry: Callable[[], bool]) -> None:
        """Its plan, its steps and its end."""
        batch, good = self.batch, carry()
        for sequence in batch.sequences:
            while good and sequence in batch.spans:
                self._compute(sequence, batch.spans[sequence], PLAIN, tokens)
                self.cache.commit([sequence])
                if sequence.computed == len(tokens):
                    break
                batch = self.cache.add_sequence_batch([], continuing=[sequence])
                good = self.carry(batch.plan)
            self.seen["failed plan"] += not good
            if sequence.live:
                self.cache.release(sequence, store=good)

    def spoil(self, texts: list[Int32]) -> bool:
        """A page in the host is reported as bad, and has other bytes from now on; False: none is there."""
        for tokens in self.rng.sample(texts, len(texts)):
            with self.cache.find(self.request(tokens)) as found:
                places = [
                    (group, int(slot))
                    for group in range(len(self.groups))
                    for tier, slot in zip(found.tiers(group), found.slots(group), strict=True)
                    if tier == 1
                ]
            if places:
                group, slot = self.rng.choice(places)
                self.late.append(self.cache.lose(group, [slot], tier=1))
                self.tiers[1].view(group)[slot] = 0xEE
                self.catch_up()
                self.seen["spoilt"] += 1
                return True
        return False

    def ask_while_open(self, texts: list[Int32], threads: ThreadPoolExecutor) -> Future[Any]:
        """Copies down, or a prefetch, while a step's plan is open; one that comes after that plan waits for it."""
        if self.rng.random() < 0.3:
            copying = threads.submit(self.keeper.flush)
            wait([copying], 0.001)  # it has chosen, as a rule
            return copying
        for tokens in self.rng.sample(texts, len(texts)):
            coming = self.keeper.prefetch(self.request(tokens))
            if isinstance(coming, Prefetch):
                coming.close()
            if isinstance(coming, Prefetch) and len(coming.plan) and coming.plan.after == self.batch.plan.number:
                self.seen["prefetch behind a step"] += 1
                asking = threads.submit(self.keeper.idle, PATIENT)
                assert not wait([asking], 0.02).done, "the step's plan may still read what this fills"
                return asking
        return threads.submit(self.keeper.idle, PATIENT)

    def bring(self, tokens: Int32) -> None:
        """What is on disk comes up, as far as there is room."""
        coming = self.keeper.prefetch(self.request(tokens))
        if isinstance(coming, Refusal) and coming.have:
            coming = self.keeper.prefetch(replace(self.request(tokens), reuse_limit=coming.have * SIZE))
        self.keeper.idle(PATIENT)
        if isinstance(coming, Prefetch):
            self.seen["brought up"] += len(coming.plan)
            coming.close()

    def brought(self, tokens: Int32) -> int:
        """How much of it is there then; every byte that is found is right."""
        self.bring(tokens)
        return self.has(tokens)

    def close(self) -> None:
        self.catch_up()
        self.keeper.close()
        self.mover.close()
        check(self.cache)
        assert not self.wrong, self.wrong


def live(one: Lasting, texts: list[Int32], threads: ThreadPoolExecutor) -> None:
    """The keeper copies down while a step's plan is open; whatever it reads, something happens before."""
    busy = [False]

    def meddle() -> None:
        if not busy[0] and one.rng.random() < 0.5:
            busy[0] = True
            one.seen["between"] += 1
            one.act(texts)
            busy[0] = False

    for _ in range(12):
        tokens = one.rng.choice(texts)
        carry = one.begin(tokens)
        if one.rng.random() < 0.7:
            one.go_on(tokens, carry)
            one.meddle_by(meddle)
            one.keeper.flush()
        else:
            asking = one.ask_while_open(texts, threads)
            one.go_on(tokens, carry)
            asking.result(PATIENT)
            one.meddle_by(meddle)
        one.bring(one.rng.choice(texts))
        one.meddle_by(lambda: None)
        one.has(tokens)


@pytest.mark.long
@pytest.mark.parametrize("worn", [None, 1], ids=["sound", "worn"])
@pytest.mark.parametrize("groups", GROUPS)
def test_what_is_on_disk_has_its_bytes_whatever_happens_before_it_is_read(
    groups: str, worn: int | None, tmp_path: Path
) -> None:
    rng, seen = random.Random(f"{groups} {worn}"), Counter[str]()
    wanted = ["between", "spoilt", "OFFLOAD", "ONBOARD", "found again", "failed plan" if worn else "brought up"]
    with ThreadPoolExecutor(1) as threads:
        for life in range(30):
            texts = [text(rng.randrange(3), rng.randrange(999), length=rng.choice((16, 24, 40))) for _ in range(12)]
            one = Lasting(tmp_path / str(life), GROUPS[groups], rng, None if worn is None else worn + life)
            live(one, texts, threads)
            one.close()
            again = Lasting(tmp_path / str(life), GROUPS[groups], rng, None)
            seen += one.seen + Counter({"found again": sum(again.brought(tokens) for tokens in texts)})
            again.close()
            if life >= cases(1, 15) and all(seen[what] > 0 for what in wanted):
                return
    raise AssertionError(seen)
