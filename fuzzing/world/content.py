"""Recognisable bytes: a token's KV is a number made of its scope and all tokens up to it. Owns one cache's arenas.

page   [ plane 0: token 0, token 1, ... | plane 1: token 0, token 1, ... ]      8 bytes a token
state  the number of the last token, in every place of its page
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from queue import SimpleQueue
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fuzzing.compare import Mismatch
from fuzzing.world.build import page_bytes
from fuzzing.world.plain import Identity, World
from quire import Plan
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout, Tier, TierError, TierInfo

Words = NDArray[np.uint64]
_MASK = (1 << 64) - 1
THREADED = 4  # where the rows of a world are a multiple of this, its mover has a thread
_PLANE = np.uint64(0x9E3779B97F4A7C15)


def values(root: int, tokens: Iterable[Identity]) -> list[int]:
    """The KV of each token: it depends on all before it, and on the scope."""
    return list(accumulate(tokens, lambda before, token: hash((before, *token)) & _MASK, initial=root))[1:]


def encoded(root: int, meaning: tuple[object, ...], num_places: int) -> list[int]:
    """The cross KV of each place: it depends on the whole input of the encoder, and on the scope."""
    return [hash((root, *meaning, place)) & _MASK for place in range(num_places)]


class FlakyTier:
    """A colder tier without a view, whose slots fail when told to; what a failed call leaves behind is rubbish."""

    def __init__(self, inner: ArenaTier) -> None:
        self.inner = inner
        self.bad: set[tuple[str, int]] = set()  # verb, slot

    def info(self) -> TierInfo:
        """As the tier below."""
        return self.inner.info()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        """Read, but for the bad slots."""
        self.inner.read(group, slots, out)
        for slot, buffer in zip(slots, out, strict=True):
            if ("read", slot) in self.bad:
                buffer[:] = 0xEE
        self._report("read", group, slots)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        """Write, but for the bad slots."""
        rubbish = [
            np.full_like(one, 0xDD) if ("write", slot) in self.bad else one
            for slot, one in zip(slots, data, strict=True)
        ]
        self.inner.write(group, slots, rubbish)
        self._report("write", group, slots)

    def close(self) -> None:
        """Close the tier below."""
        self.inner.close()

    def _report(self, verb: str, group: int, slots: Sequence[int]) -> None:
        failed = {slot: "told to fail" for slot in slots if (verb, slot) in self.bad}
        if failed:
            raise TierError(self.inner.info().name, group, failed)


class AtOnce:
    """The jobs of a mover done by whoever hands them over: a thread costs more than what small pages need."""

    def __init__(self, mover: Mover) -> None:
        self.get, self._jobs, self._mover = mover._jobs.get, mover._jobs, mover

    def put(self, job: Callable[[], None] | None) -> None:
        """Do it, and carry what it has queued; the last one ends the thread."""
        if job is None:
            self._jobs.put(None)
            return
        job()
        while len(self._mover._queue):
            self._mover._run_next()


class Content:
    """The bytes of one cache, on every tier, and the mover that carries them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.num_planes = max(world.planes, 1)
        size = page_bytes(world)
        sizes = [size] * world.num_groups
        homes = [world.home(group) for group in range(world.num_groups)]
        self.arenas = [ArenaTier(f"tier{number}", slots, sizes, homes) for number, slots in enumerate(world.tiers)]
        self.flaky = [FlakyTier(arena) for arena in self.arenas[1:]] if world.flaky else []
        tiers: list[Tier] = [*self.arenas[:1], *(self.flaky or self.arenas[1:])]
        layout = PageLayout(size, world.planes)
        self.mover = Mover(tiers, [layout] * world.num_groups, world.block_size, staging_bytes=4 * size)
        if world.rows % THREADED:
            self.mover._jobs = cast("SimpleQueue[Callable[[], None] | None]", AtOnce(self.mover))
        self.words: list[list[Words]] = [
            [self._words(arena.view(group)) for group in range(world.num_groups)] for arena in self.arenas
        ]
        self.planes = (np.arange(self.num_planes, dtype=np.uint64) * _PLANE)[:, None]

    def _words(self, arena: Bytes) -> Words:
        return arena.view(np.uint64).reshape(len(arena), self.num_planes, self.world.block_size)

    def run(self, plan: Plan, bad: Iterable[tuple[int, str, int]] = ()) -> list[int]:
        """Carry out a plan while some (tier, verb, slot) fail; the moves that failed."""
        for tier, verb, slot in bad:
            self.flaky[tier - 1].bad.add((verb, slot))
        failed = self.mover.run(plan)
        for flaky in self.flaky:
            flaky.bad.clear()
        return failed

    def write(self, group: int, slots: NDArray[np.int32], numbers: list[int], places: Iterable[int]) -> None:
        """Compute tokens: their numbers go into the pages behind these device slots."""
        which = np.fromiter(places, np.int64)
        blocks, inside = np.divmod(which, self.world.block_size)
        if not (slots[blocks] >= 0).all():
            raise Mismatch(f"a token to compute has no slot in group {group}")
        self.words[0][group][slots[blocks], :, inside] = (np.array(numbers, np.uint64)[which] ^ self.planes).T

    def wrong(self, group: int, slots: NDArray[np.int32], numbers: list[int], blocks: Iterable[int]) -> int | None:
        """The first token of these blocks whose KV, read through these device slots, is not its own."""
        for block in blocks:
            first = block * self.world.block_size
            slot = slots[block] if block < len(slots) else -1
            what = np.array(numbers[first : first + self.world.block_size], np.uint64) ^ self.planes
            if slot < 0 or not (self.words[0][group][slot, :, : what.shape[1]] == what).all():
                return first
        return None

    def copy(self, move: Sequence[int], fails: bool) -> None:
        """One page from a slot to another, at whatever time; rubbish if that fails."""
        group, source, slot, target, room = move
        self.words[target][group][room] = np.uint64(0xDD) if fails else self.words[source][group][slot]

    def put(self, group: int, place: tuple[int, int], numbers: list[int]) -> None:
        """A whole page comes from outside into a slot of a tier; of a state group the state after its last token."""
        tier, slot = place
        what = np.array(numbers, np.uint64)
        if self.world.kinds[group].kind == "state":
            what[:] = what[-1]
        self.words[tier][group][slot] = what ^ self.planes

    def write_state(self, group: int, slot: int, number: int) -> None:
        """The state after some tokens takes the place of the one before."""
        if slot < 0:
            raise Mismatch(f"a state to compute has no slot in group {group}")
        self.words[0][group][slot] = np.uint64(number) ^ self.planes

    def is_state(self, group: int, tier: int, slot: int, number: int) -> bool:
        """Whether the state after some tokens is in a slot."""
        return bool(slot >= 0 and (self.words[tier][group][slot] == np.uint64(number) ^ self.planes).all())

    def wrong_copy(self, group: int, numbers: list[int], slots: Sequence[int]) -> int | None:
        """The first tier whose copy of a page does not begin with these numbers; a state has one."""
        what = np.array(numbers, np.uint64) ^ self.planes
        if self.world.kinds[group].kind == "state":
            what = np.repeat(what[:, -1:], self.world.block_size, axis=1)
        for tier, slot in enumerate(slots):
            if slot >= 0 and not (self.words[tier][group][slot, :, : what.shape[1]] == what).all():
                return tier
        return None

    def close(self) -> None:
        """End the mover's thread."""
        self.mover.close()
