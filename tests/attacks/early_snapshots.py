"""A reader of states asks whenever it can, also between a commit at a snapshot's edge and the plan that copies it: what
it finds and no open plan writes has its bytes, and is there once that plan is finished.

Random lives over states, windows and full attention, on both stores, with real bytes in device and host memory.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np

from quire import Found
from quire.core.records.plan import Kind, MoveColumn, Plan
from tests.tiers.shared.machine import FULL, STATE, Int32, Machine, content, text

from .checks import Checks, run

LIVES, STEPS = 40, 60


class Reader:
    """Follows docs/outside.md: it reads what it finds, unless an open plan still writes there."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.seen = machine, Counter[str]()

    def look(self, tokens: Int32, when: str) -> int:
        """How far a text is found, every byte of it compared."""
        one = self.machine
        with one.cache.find(one.request(tokens)) as found:
            for group in range(len(one.groups)):
                self._read(found, tokens, group, when)
            return found.end

    def _read(self, found: Found, tokens: Int32, group: int, when: str) -> None:
        one, size = self.machine, self.machine.groups[group].page_bytes
        for block, tier, slot in zip(found.blocks(group), found.tiers(group), found.slots(group), strict=True):
            if any(writes(plan, group, int(tier), int(slot)) for plan in one.cache.open_plans()):
                self.seen["still written"] += 1
                continue
            right = content(one.request(tokens).scope, tokens, int(block), group, size)
            good = np.array_equal(one.tiers[tier].view(group)[slot], right)
            self.seen["read"] += good
            self.seen[f"WRONG {when}"] += not good
            self.seen[f"{one.groups[group].name} {when}"] += 1


def writes(plan: Plan, group: int, tier: int, slot: int) -> bool:
    """Whether some move of a plan fills this slot; an exchange fills both of its own."""
    mine = plan.moves[plan.moves[:, MoveColumn.GROUP] == group]
    both = mine[mine[:, MoveColumn.KIND] == Kind.EXCHANGE]
    ends = [*mine[:, [MoveColumn.DST_TIER, MoveColumn.DST_SLOT]].tolist()]
    ends += both[:, [MoveColumn.SRC_TIER, MoveColumn.SRC_SLOT]].tolist()
    return [tier, slot] in ends


def live(seed: int, reader: Reader) -> None:
    """Texts come in chunks that end at snapshots' edges or not; the reader looks between any two calls."""
    rng, one = random.Random(seed), reader.machine
    texts = [text(rng.randrange(4), rng.randrange(4), length=rng.choice((16, 24, 40))) for _ in range(8)]
    for _ in range(STEPS):
        tokens = rng.choice(texts)
        batch = one.cache.add_sequence_batch([one.request(tokens)], max_chunk=rng.choice((8, 16, 64)))
        if not batch.sequences:
            one.carry(batch.plan)
            continue
        (sequence,) = batch.sequences
        while True:
            reader.look(tokens, "before the plan")
            if not one.carry(batch.plan):
                raise AssertionError("nothing fails here")
            one._compute(sequence, batch.spans[sequence], one.request(tokens).scope, tokens)
            one.cache.commit([sequence])
            reader.look(tokens, "after the commit")
            if sequence.computed == len(tokens):
                break
            batch = one.cache.add_sequence_batch([], continuing=[sequence], max_chunk=rng.choice((8, 16, 64)))
        one.cache.release(sequence)
        reader.look(tokens, "after the end")


def attack(folder: Path, checks: Checks) -> None:
    """Lives one after the other; what was seen over all of them."""
    for store in ("twin", "compiled"):
        os.environ["QUIRE_STORE"] = store
        seen = Counter[str]()
        for seed in range(LIVES):
            machine = Machine(str(folder / f"{store} {seed}"), FULL, STATE, device=24, host=24)
            reader = Reader(machine)
            live(seed, reader)
            machine.close()
            seen += reader.seen
        wrong = {what: number for what, number in seen.items() if what.startswith("WRONG")}
        checks.held(f"{store}: {seen['read']} pages that were found have their bytes", not wrong, wrong)
        looked = min(seen[f"state {when}"] for when in ("before the plan", "after the commit", "after the end"))
        checks.held(f"{store}: states were read at every place, {looked} times and more", looked > 20, dict(seen))


if __name__ == "__main__":
    run("states before their copies", attack)
