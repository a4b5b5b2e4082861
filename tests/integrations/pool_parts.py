"""What a pool engine is made of: vLLM's block pool with its prefix cache, and a mover that copies tags late and badly.

A tag stands for a block's bytes. There is one pool for all groups, as in vLLM: a block that one group lets go of may be
another group's next.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from quire.integrations.vllm.common.worker_orders import BadPage, Copy
from quire.integrations.vllm.worker.host_pages import Ended

Tag = Any  # what a block or a page holds; no two texts have the same
Key = tuple[int, int]  # a group, and the hash of a text with all that its KV depends on


class BlockPool:
    """Blocks with counts of who has them; who has ended leaves his blocks findable until they are handed out."""

    def __init__(self, blocks: int, rng: random.Random) -> None:
        self.rng = rng
        self.free = list(range(1, blocks))
        self.holders = [0] * blocks
        self.keys: dict[int, Key] = {}
        self.cached: dict[Key, int] = {}
        self.given: list[int] = []  # handed out since they were last taken note of

    def take(self) -> int:
        """Mostly the one that was free for longest."""
        at = 0 if self.rng.random() < 0.6 else self.rng.randrange(len(self.free))
        block = self.free.pop(at)
        self._forget(block)
        self.holders[block] = 1
        self.given.append(block)
        return block

    def _forget(self, block: int) -> None:
        key = self.keys.pop(block, None)
        if key is not None and self.cached.get(key) == block:
            del self.cached[key]

    def share(self, block: int) -> None:
        """One more has it."""
        if not self.holders[block]:
            self.free.remove(block)
        self.holders[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """One less has each of them."""
        for block in blocks:
            if block:
                self.holders[block] -= 1
                assert self.holders[block] >= 0
                if not self.holders[block]:
                    self.free.insert(0 if block not in self.keys else len(self.free), block)

    def name(self, block: int, key: Key) -> None:
        """It will hold that text."""
        if block and block not in self.keys and key not in self.cached:
            self.keys[block], self.cached[key] = key, block

    def clear(self) -> None:
        """Nothing of it is found."""
        self.keys.clear()
        self.cached.clear()


class TagMover:
    """One rank's pages, as tags: `device` by block, `host` by slot, of all groups together.

    A copy is made at any time between its order and its end.
    """

    def __init__(self, rng: random.Random, blocks: int, slots: int, faults: dict[str, float]) -> None:
        self.rng, self.faults = rng, faults
        self.device: list[Tag] = [None] * blocks
        self.host: list[Tag] = [None] * slots
        self.open: list[tuple[Copy, bool]] = []
        self.ended: list[Ended] = []
        self.spoilt = 0

    def _is_so(self, fault: str) -> bool:
        return self.rng.random() < self.faults.get(fault, 0.0)

    def load(self, copy: Copy) -> None:
        if self._is_so("load raises"):
            raise OSError("a load that fails")
        self._begin(copy, is_load=True)

    def store(self, copy: Copy) -> None:
        if self._is_so("store raises"):
            raise OSError("a store that fails")
        self._begin(copy, is_load=False)

    def _begin(self, copy: Copy, is_load: bool) -> None:
        self.open.append((copy, is_load))
        if not self._is_so("late"):
            self._run(copy, is_load)

    def _run(self, copy: Copy, is_load: bool) -> None:
        self.open.remove((copy, is_load))
        bad = []
        for part in copy.parts:
            for block, slot in zip(part.blocks, part.slots, strict=True):
                assert block, "the null block is copied"
                if self._is_so("page fails"):
                    bad.append(BadPage(part.group, slot))
                    self.spoilt += 1
                    if is_load:
                        self.device[block] = ("spoilt", self.spoilt)
                    else:
                        self.host[slot] = ("spoilt", self.spoilt)
                elif is_load:
                    self.device[block] = self.host[slot]
                else:
                    self.host[slot] = self.device[block]
        self.ended.append(Ended(copy, is_load, bad))

    def flush(self, jobs: Iterable[int]) -> None:
        wanted = set(jobs)
        if self._is_so("flush raises"):
            raise OSError("it cannot be waited for")
        for copy, is_load in list(self.open):
            if copy.job in wanted:
                self._run(copy, is_load)

    def take_ended(self) -> list[Ended]:
        for copy, is_load in list(self.open):
            if self.rng.random() < 0.4:
                self._run(copy, is_load)
        if self._is_so("unheard"):
            return []
        ended, self.ended = self.ended, []
        return ended
