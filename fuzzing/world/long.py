"""Long worlds: hundreds of slots and texts of as many pages, so that one call evicts runs of them. Knows no cache.

The compiled store takes slots in runs, where the reference takes one after the other. A run is as long as what a call
takes, and ends where something lies in its way: a page that is claimed, held or read, one of another priority, a fork,
a copy.
"""

from __future__ import annotations

from random import Random

from fuzzing.world.plain import FULL, SMALL, Group, World

ORDERS = ("lru", "release order", "adaptive", "adaptive")
BLOCKS = (40, 80, 80, 150, 300)  # of the longest sequence
FORGETFUL = (40, 40, 60)  # where a group forgets: what it may forget takes the oracle long to say
HOST_ONLY = 0.1  # share of worlds without a device: slots are taken for what comes from outside
OWN = ("f", "f", "f", "f", "ff", "ff", "fw", "fs", "w")  # f full, w window, s state


def long_world(rng: Random) -> World:
    """One or two groups, each in a pool of its own; a device, mostly over a host, now and then over a third tier."""
    size, own = rng.choice((2, 2, 3)), rng.choice(OWN)
    blocks = rng.choice(BLOCKS if own.strip("f") == "" else FORGETFUL)
    groups = tuple(_group(rng, letter, size, blocks) for letter in own)
    order, receipts = rng.choice(ORDERS), rng.random() < 0.3
    return World(
        block_size=size,
        tiers=_tiers(rng, blocks, len(groups)),
        rows=rng.randint(3, 6),
        max_length=max(blocks * size, 2 * SMALL),
        partial=rng.random() < 0.8,
        copy_on=rng.random() < 0.75,
        shadows=rng.random() < 0.4,
        offload_min=rng.choice((0, 30, 30, 36)),
        release_order=order == "release order",
        adaptive=order == "adaptive",
        doubles_at=blocks if order == "adaptive" and receipts else 0,
        ghosts=rng.choice((0, 1, 1, 2)),
        min_uses=rng.choice((1, 1, 2)) if order == "adaptive" else 1,
        planes=rng.choice((0, 1)),
        flaky=rng.random() < 0.25,
        groups=() if own.strip("f") == "" else groups,
        max_chunk=rng.choice((5, 17)) * size if rng.random() < 0.15 else None,
        receipts=receipts,
        scopes=rng.choice((0, 8)) if receipts else 0,
        spacing=rng.choice((0, 3, 20, 100)) * size,
    )


def _group(rng: Random, letter: str, size: int, blocks: int) -> Group:
    """Windows and the gaps between snapshots are a part of a text."""
    if letter == "w":
        return Group("window", window=rng.randint(size, blocks * size // 3), sinks=rng.choice((0, 0, size)))
    if letter == "s":
        return Group("state", every=rng.choice((0, 2, 9)) * size, at_end=rng.random() < 0.7, inside=rng.random() < 0.5)
    return FULL


def _tiers(rng: Random, blocks: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """So many slots that the longest text fits once or twice; what is below has fewer than that, or more."""
    device = rng.randint(blocks + 8, 2 * blocks + 8)
    if rng.random() < HOST_ONLY:
        return (0,) * groups, (device,) * groups
    below = [rng.choice((0.1, 0.5, 1.0, 1.5)) for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2)))]
    return tuple((max(3, int(device * share)),) * groups for share in (1.0, *below))
