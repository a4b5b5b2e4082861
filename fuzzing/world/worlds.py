"""Random worlds: caches so small that everything happens soon, of full groups only or of any mix. Knows no cache.

Those in which pages go in runs are large: `long.py`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fuzzing.oracle.charge import Charge
from fuzzing.world.long import long_world
from fuzzing.world.plain import FULL, Ask, Encoder, Group, World

TALKS = "talks"  # of sessions, hints and named points
MIXES = ("full", "mixed", "any", "cold", "slow", TALKS)
LONG = "long"  # few of these: they take long
OWN = ("w", "fw", "fw", "ww", "fww", "s", "fs", "fs", "ws", "fws", "fss", "f", "ff")  # f full, w window, s state
TIGHT = {"full": (4, 5, 6), "window": (4, 5, 6), "state": (2, 3, 4), "cross": (2, 3, 4)}
HOSTS = ((1, 2), (2, 3, 4), (6, 8, 12))  # few slots: exchanges; many: onboards
HOST_ONLY = 0.05  # share of worlds without a device
SLOW = 0.25  # share of worlds with a slow tier, in mixes that do not name them
UNTOLD = ", spacing=0, pools=(), share_pending=False, doubles_at=0"  # not in the text that later dice are made of
PENDING = 0.6  # share of worlds in which claims find what steps in flight compute
SHARED = 0.4  # share of worlds with several groups in which some have one pool
COLD = 0.4  # share of worlds in which pages come and go between tiers, in mixes that do not name them
DEVICE = {"full": (5, 6, 7, 8, 10), "window": (4, 5, 6, 7, 8), "state": (2, 3, 4, 5, 6, 7), "cross": (2, 3, 4, 5, 6)}


def random_world(rng: Random, mix: str = "any") -> World:
    """Any world of that mix."""
    return shared(rng, long_world(rng)) if mix == LONG else small_world(rng, mix)


def small_world(rng: Random, mix: str) -> World:
    """Any but a long one."""
    size, max_length = rng.randint(2, 4), rng.choice((24, 32, 40))
    cold = mix in ("cold", "slow") or rng.random() < COLD
    if mix == "full" or (mix in ("any", "cold", "slow") and rng.random() < 0.5):
        groups = (FULL,) * (2 if rng.random() < 0.15 else 1)
    else:
        groups = random_groups(rng, size, max_length)
    world = World(
        block_size=size,
        tiers=cold_tiers(rng, groups) if cold else random_tiers(rng, groups),
        rows=rng.randint(3, 8),
        max_length=max_length,
        reuse=rng.random() < 0.97,
        partial=rng.random() < 0.85,
        copy_on=rng.random() < 0.75,
        shadows=rng.random() < (0.25 if cold else 0.7),
        offload_min=rng.choice((0, 0, 0, 30) if cold else (0, 30, 30, 30, 36, 101)),
        release_order=(order := rng.random()) < 0.15,
        adaptive=order > 0.5,
        ghosts=rng.choice((0, 1, 1, 2, 4)),
        min_uses=rng.choice((1, 1, 2, 3)) if order > 0.5 else 1,
        planes=rng.choice((0, 1, 2)),
        flaky=rng.random() < (0.75 if cold else 0.5),
        groups=() if groups in ((FULL,), (FULL, FULL)) else groups,
        max_chunk=rng.choice((1, size - 1, size, 2 * size, 2 * size + 1, 3 * size)) if rng.random() < 0.35 else None,
        encoder_most=rng.choice((size, 2 * size)) if rng.random() < 0.1 else None,
    )
    text = repr(world).replace("decoding=None, inside=False, ", "").replace(UNTOLD, "")
    told = Random(text)  # of its own: receipts change nothing, and so not what a seed makes either
    world = replace(world, receipts=told.random() < 0.7, scopes=told.choice((0, 0, 8)))
    kept = Random(f"{text} inside")
    inside = replace(world, groups=tuple(kept_otherwise(kept, group, size) for group in world.groups))
    world = shared(Random(f"{text} pools"), pointed(Random(f"{text} points"), inside))
    world = replace(world, doubles_at=Random(f"{text} cost").choice((0, 0, 1, 3, 12)) * world.adaptive)
    if mix == "any" and rng.random() < HOST_ONLY:
        world = replace(world, tiers=together(world, host_only(rng, len(groups))))
    elif rng.random() < 0.25:
        world = fitted(rng, world)
    return slowed(told, world) if mix == "slow" or told.random() < SLOW else world


def pointed(rng: Random, world: World) -> World:
    """The same world, in most cases with resume points that are guessed, and with pending blocks."""
    spacing = rng.choice((0, 1, *(blocks * world.block_size for blocks in (2, 3, 5))))
    return replace(world, spacing=spacing, share_pending=rng.random() < PENDING)


def host_only(rng: Random, groups: int) -> tuple[tuple[int, ...], ...]:
    """No device."""
    return (0,) * groups, tuple(rng.choice((5, 6, 8, 12)) for _ in range(groups))


def shared(rng: Random, world: World) -> World:
    """In some worlds groups share pools: all of the sequence's own, or the first and another."""
    own = world.num_own
    if own < 2 or rng.random() > SHARED:
        return world
    partner = rng.randrange(1, own)
    homes = [0] * own if rng.random() < 0.6 else [0 if group == partner else group for group in range(own)]
    world = replace(world, pools=(*homes, *range(own, world.num_groups)))
    return replace(world, tiers=together(world, world.tiers))


def together(world: World, tiers: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Slots by tier and group, those of groups that share a pool put together."""
    groups = range(world.num_groups)
    sharers = [[one for one in groups if world.home(one) == world.home(group)] for group in groups]
    return tuple(tuple(sum(slots[one] for one in some) for some in sharers) for slots in tiers)


def slowed(rng: Random, world: World) -> World:
    """The same world with a slow tier below its host's."""
    host = world.tiers[1] if len(world.tiers) > 1 and all(world.tiers[1]) else None
    few = rng.random() < 0.5
    more = tuple(rng.choice((1, 2, 3, 4) if few else (6, 8)) for _ in world.kinds) if host is None else ()
    slow = tuple(rng.choice((2, 4, 6, 12)) for _ in world.kinds)
    tiers = (world.tiers[0], host or together(world, (more,))[0], *together(world, (slow,)))
    return replace(
        world, tiers=tiers, slow=True, share=rng.choice((0.3, 1.0, 1.0)), offload_min=min(world.offload_min, 30)
    )


def is_cold(world: World) -> bool:
    """Its device is so small, and its colder tiers so ready, that pages come and go between them."""
    most = together(world, (tuple(max(TIGHT[one.kind]) for one in world.kinds),))[0]
    tight = all(slots <= limit for slots, limit in zip(world.tiers[0], most, strict=True))
    return any(world.tiers[0]) and tight and len(world.tiers) > 1 and all(world.tiers[1]) and world.offload_min <= 30


def fitted(rng: Random, world: World) -> World:
    """The same world with device pools that one request fits into, and nothing larger."""
    size, beams = world.block_size, rng.choice((1, 1, 2, 3))
    ask = Ask(
        "", (0,) * rng.randint(1, 16 // beams), beams=min(beams, world.rows), extra_tokens=rng.choice((0, 0, 0, 2)),
        max_new_tokens=rng.choice((0, 0, 1, 3, 5)), reuse=rng.random() < 0.95,
        encoder=Encoder(size + 1, 0) if world.num_own < world.num_groups else None,
    )  # fmt: skip
    purpose = rng.choice(("compute", "compute", "compute", "decode"))
    own = [Charge(world, ask, kind).worst(purpose) for kind in world.kinds[: world.num_own]]
    device = together(world, ((*own, *(2 for _ in world.kinds[world.num_own :])),))[0]
    return replace(world, tiers=(device, *world.tiers[1:]), snug=ask)


def random_tiers(rng: Random, groups: tuple[Group, ...]) -> tuple[tuple[int, ...], ...]:
    """Slots by tier and group."""
    if all(group is FULL for group in groups):
        tiers = [tuple(rng.choice((4, 4, 5, 5, 6, 7, 8, 10)) for _ in groups)]
    else:
        tiers = [tuple(rng.choice(DEVICE[group.kind]) for group in groups)]
    if rng.random() < 0.8:
        tiers.append(tuple(rng.choice((0, 1, 2, 3, 4, 5, 6, 6)) for _ in groups))
        if rng.random() < 0.4:
            tiers.append(tuple(rng.randint(0, 4) for _ in groups))
    return tuple(tiers)


def cold_tiers(rng: Random, groups: tuple[Group, ...]) -> tuple[tuple[int, ...], ...]:
    """A tight device over colder tiers that take what it cannot keep."""
    host = rng.choice(HOSTS)
    tiers = [tuple(rng.choice(TIGHT[group.kind]) for group in groups), tuple(rng.choice(host) for _ in groups)]
    if rng.random() < 0.3:
        tiers.append(tuple(rng.randint(0, 6) for _ in groups))
    return tuple(tiers)


def random_groups(rng: Random, size: int, max_length: int) -> tuple[Group, ...]:
    """One to four groups; with windows, states, a draft's group, cross groups."""
    makers = {"f": full_group, "w": window_group, "s": state_group}
    own = [makers[letter](rng, size) for letter in rng.choice(OWN)]
    if rng.random() < 0.05:
        own.append(Group("window", window=max_length))  # reads everything after all
    rng.shuffle(own)
    cross = rng.choice((0, 0, 0, 1, 1, 2)) if len(own) < 3 else rng.choice((0, 0, 1))
    return (*own, *(Group("cross") for _ in range(cross)))


def full_group(rng: Random, size: int) -> Group:
    """Full attention, perhaps with room for drafts."""
    return Group(extra=draft_room(rng, size))


def window_group(rng: Random, size: int) -> Group:
    """A window of one token to a little more than three blocks."""
    sinks = rng.randint(1, 2 * size) if rng.random() < 0.35 else 0
    return Group("window", window=rng.randint(1, 3 * size + 1), sinks=sinks, extra=draft_room(rng, size))


def state_group(rng: Random, size: int) -> Group:
    """A recurrent state with snapshots now and then."""
    return Group("state", every=rng.choice((0, 1, 1, 2, 3)) * size, at_end=rng.random() < 0.7)


def kept_otherwise(rng: Random, group: Group, size: int) -> Group:
    """Of states, half are written inside a step, and some are kept more or less often while decoding."""
    if group.kind != "state":
        return group
    decoding = rng.choice((0, 1, 2, 3)) * size if rng.random() < 0.3 else None
    return replace(group, inside=rng.random() < 0.5, decoding=decoding)


def draft_room(rng: Random, size: int) -> int | None:
    """Mostly what the request says."""
    return rng.randint(0, size + 2) if rng.random() < 0.15 else None
