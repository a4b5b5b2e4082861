"""Guessed and named resume points by definition: which there are, what they cost and gained, which of them count."""

from __future__ import annotations

from collections import Counter

from fuzzing.oracle import reach
from fuzzing.world.plain import Group, Path, World

NEAR = (2, 4, 8, 16, 32, 64)  # blocks before a prompt's end: the last of each bin
SPACED, END, NAMED = 1, 2 + len(NEAR), 3 + len(NEAR)
LOOKS_BACK = 512  # blocks
WORTH = 2  # pages of each group that a block is worth


class Points:
    """Of one stream. Kinds are numbers; 0 is none."""

    def __init__(self, world: World, kinds: list[Group], slots: list[int]) -> None:
        size = world.block_size
        ranked = [nth for nth, kind in enumerate(kinds) if kind.kind in ("window", "state")]
        self.matter = bool(ranked) and not world.release_order
        self.states = any(kind.kind == "state" for kind in kinds)
        every = max(size, *(kind.every for kind in kinds if kind.kind == "state"), 1)
        self.spacing = -(-world.spacing // every) * (every // size)  # blocks
        self.slots = max(1, slots[ranked[0]]) if ranked else 1
        whole = sum(1 if kinds[nth].kind == "state" else reach.keeps(kinds[nth], size) for nth in ranked)
        self.prices = {SPACED: whole, END: whole, NAMED: whole} | {2 + bin: len(ranked) for bin in range(len(NEAR))}
        self.worth = WORTH * len(kinds)
        self.cost = [0] * (NAMED + 1)
        self.gain = [0] * (NAMED + 1)
        self.kept = {NAMED}
        self.at: dict[Path, int] = {}
        self.reached: Counter[str] = Counter()  # how often what happened
        self.doubted: set[Path] = set()  # put since it was last looked which of them exist

    def counts(self, path: Path) -> bool:
        """Whether somebody is expected there for its kind's sake."""
        return self.at.get(path, 0) in self.kept

    def guess(self, depth: int, edge: int) -> int:
        """What is at a depth of a prompt whose last block edge is at `edge`."""
        if not self.spacing or depth > edge:
            return 0
        if depth == edge:
            return END
        if not self.states and edge - depth <= NEAR[-1]:
            return 2 + next(bin for bin, last in enumerate(NEAR) if edge - depth <= last)
        return SPACED if depth % self.spacing == 0 else 0

    def put(self, path: Path, kind: int) -> None:
        """One is there now; prompts' ends say more than guesses, names more than both."""
        known = self.at.get(path, 0)
        if kind == 0 or (known and not (kind in (END, NAMED) and kind > known)):
            return
        self.reached["point named" if kind == NAMED else "point guessed"] += 1
        self.at[path] = kind
        self.doubted.add(path)
        self.cost[kind] += self.prices[kind]
        if self.cost[kind] >= 2 * self.slots:
            self.cost[kind], self.gain[kind] = self.cost[kind] // 2, self.gain[kind] // 2
        self._judge(kind)

    def serve(self, path: Path, stop: int) -> None:
        """Somebody would resume at a path, the next that he could resume at anyway being so deep: which would serve?"""
        above = [path[: depth + 1] for depth in range(len(path) - 1, stop, -1)]
        found = next((one for one in above if self.at.get(one)), None)
        if found is not None:
            self.reached["point would have served"] += 1
            self.gain[self.at[found]] += len(found) - 1 - stop
            self._judge(self.at[found])

    def _judge(self, kind: int) -> None:
        worth = 0 < self.cost[kind] <= self.worth * self.gain[kind]
        counts = worth or (kind == NAMED and self.cost[kind] <= self.slots // 4)
        self.reached["kind of point counts"] += counts and kind not in self.kept
        self.reached["kind of point counts no more"] += kind in self.kept and not counts
        (self.kept.add if counts else self.kept.discard)(kind)
