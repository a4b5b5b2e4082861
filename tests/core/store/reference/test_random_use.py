"""The reference store under random use: what is kept up to date equals a count from scratch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.core.store.reference import Hit, Store

from ....effort import cases
from .rig import Rig, T, full, rig, state, window


def recount(store: Store) -> None:
    """What is kept up to date equals what a count from scratch gives."""
    dump = store.dump()
    for number, group in enumerate(dump.groups):
        peaks = [(row.peaks[number], row.owns[number]) for row in dump.rows.values()]
        reserved = sum(max(0, peak - own) for peak, own in peaks if peak)
        listed = {(t, s) for t, order in enumerate(group.orders) for slots in order.values() for s in slots}
        owned = {(t, s): p for p, info in group.pages.items() for t, s in enumerate(info.slots) if s >= 0}
        free = 0
        for place in listed:
            info = group.pages.get(owned.get(place, -1))
            free += place[0] == 0 and (info is None or info.claims == 0)
        assert group.available == free - reserved and store.reserved(number) == reserved
        assert not set(group.pages) & set(group.free_pages)
        for name, page in group.pages.items():
            tiers = [t for t, s in enumerate(page.slots) if s >= 0]
            assert tiers and (page.node >= 0 or page.holders > 0), name
            assert ((tiers[0], page.slots[tiers[0]]) in listed) == (page.holders == 0)
            assert all((t, page.slots[t]) in listed for t in tiers[1:])


def chunked(r: Rig, hit: Hit, tokens: list[int], chunk: int) -> list[tuple[int, int, int]]:
    """Windows get a chunk at a time, all others everything; a state's snapshot stands at the last edge."""
    blocks, edge = -(-len(tokens) // T), len(tokens) // T
    asks = []
    for _, sink, keep, _, _, current, _ in r.groups:
        stop = min(blocks, hit.blocks + chunk) if keep > 0 else blocks
        peak = keep + chunk + sink if stop < blocks else 0
        asks.append((max(edge - 1, 0), edge, 0) if current else (min(hit.blocks, stop), stop, peak))
    return asks


def arrive(r: Rig, dice: random.Random, live: set[int]) -> None:
    tokens = [dice.randrange(2) for _ in range(dice.randrange(1, 16))]
    hit = r.claim(tokens, dice.randrange(3), len(tokens) - 1)
    asks = chunked(r, hit, tokens, dice.choice([1, 2, 9]))
    need = len(tokens) // T + 5
    if any(need > r.store.available(g) for g in range(len(r.groups))):
        r.store.unclaim(hit)
        return
    row = next(n for n in range(8) if n not in live)
    lowest = hit.blocks + (hit.source >= 0)
    asks = [(first, max(stop, lowest), peak) for first, stop, peak in asks]
    r.settle(row, hit, tokens, asks=asks, priority=dice.choice([None, 10, 35, 60]), duration=3)
    live.add(row)


def go_on(r: Rig, row: int) -> None:
    """Compute what there are pages for, then ask for the rest."""
    length = int(r.store.length[row])
    held = (int(c[row]) for c, group in zip(r.store.capacity, r.groups, strict=True) if not group[5])
    r.store.commit_row(row, min(length, T * min(held, default=length)))
    committed, blocks = int(r.store.committed[row]), -(-length // T)
    r.extend(row, *((blocks, blocks) if group[5] else (committed, blocks) for group in r.groups))


def step(r: Rig, dice: random.Random, live: set[int], now: int) -> None:
    rows = sorted(live)
    finished = [row for row, info in r.store.dump().rows.items() if not any(info.peaks)]
    if dice.random() < 0.45 and len(live) < 8:
        arrive(r, dice, live)
    elif not rows:
        return
    elif dice.random() < 0.3:
        tokens = np.array([dice.randrange(2) for _ in finished], np.int32)
        r.store.grow(np.array(finished, np.int32), tokens, 1)
    elif dice.random() < 0.4:
        go_on(r, dice.choice(rows))
    elif dice.random() < 0.2:
        target = next((n for n in range(8) if n not in live), -1)
        if target >= 0 and finished and r.store.fork(dice.choice(finished), target) >= 0:
            live.add(target)
    elif dice.random() < 0.1:
        r.store.truncate(r.root, r.chain([dice.randrange(2) for _ in range(9)]), 9, dice.choice([0, 4]))
    elif dice.random() < 0.2:
        r.store.offload(dice.randrange(len(r.groups)), 2)
    else:
        row = dice.choice(rows)
        r.store.commit(np.array([row], np.int32), r.store.computed[[row]])
        r.store.release(row, dice.random() < 0.8, now)
        live.remove(row)
    r.store.refresh(now)


MIXES = (
    [full(12, 5, 4), window(2, 14, 3, 0, sink=1)],
    [window(1, 16, 2, 3), full(16, 4, 2), state(1, 20, 3, 3)],
    [state(2, 14, 3, 2)],
    [window(3, 18, 0, 4, sink=2, extra=3)],
)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_random_use_keeps_every_count_right(seed: int) -> None:
    dice = random.Random(seed)
    groups = MIXES[seed % len(MIXES)]
    r = rig(groups=groups, order=seed % 2, shadows=seed % 3 > 0, offload_min=20)
    live: set[int] = set()
    for now in range(cases(100, 400)):
        step(r, dice, live, now)
        recount(r.store)
    for row in live:
        r.store.release(row, True, 400)
    r.store.clear()
    recount(r.store)
    for number, (*_, slots) in enumerate(groups):
        assert [r.store.num_empty(number, tier) for tier in range(3)] == slots
