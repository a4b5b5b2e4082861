"""Plain data turned into what the cache takes: configs, requests, scopes. Knows no state."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fuzzing.compare import Mismatch
from fuzzing.world import plain
from fuzzing.world.plain import Ask, Budget, Identity, Runs, World
from quire import CacheConfig, Encoder, LayerGroup, Media, Request, RetainRange, Retention, Scope, Span, TierConfig
from quire.core.records.encoder import places_of, scope_over

WORD = 8  # bytes one token writes into each plane of a page
SEED = b"a seed of events"  # one in all runs: a failure repeats
SCOPES = (Scope(), Scope(lora="a"), Scope(lora=0), Scope(salt=b"a"), Scope(lora="a", epoch=1))
PATTERNS = (  # what a scope to be forgotten names, and the scopes that have it
    (Scope(lora="a"), (1, 4)), (Scope(lora=0), (2,)), (Scope(salt=b"a"), (3,)), (Scope(epoch=1), (4,)),
)  # fmt: skip
ORIGINS: dict[int, tuple[int, plain.Encoder | None]] = {}  # root -> whose tokens stand under it
ROOTS = tuple(scope.event_hash(SEED) for scope in SCOPES)
DIGESTS = (b"sunflower-photograph", b"another-image-entirely", b"one-more-content-digest")
Int32 = NDArray[np.int32]


def page_bytes(world: World) -> int:
    """Bytes of one page."""
    return max(world.planes, 1) * world.block_size * WORD


def config(world: World) -> CacheConfig:
    """The cache of a world, with events on."""
    return CacheConfig(
        tiers=tuple(
            TierConfig(f"tier{number}", _of_pools(world, slots), slow=number == world.slow_tier)
            for number, slots in enumerate(world.tiers)
        ),
        prefetch_share=world.share,
        lasting=world.slow,
        block_size=world.block_size,
        groups=tuple(layer_group(world, g) for g in range(world.num_groups)),
        max_sequences=world.rows,
        max_length=world.max_length,
        max_chunk=world.max_chunk,
        max_encoder_length=world.encoder_most,
        reuse=world.reuse,
        partial_reuse=world.partial,
        copy_on_partial_reuse=world.copy_on,
        shadows=world.shadows,
        offload_min_priority=world.offload_min,
        eviction="adaptive" if world.adaptive else "release_order" if world.release_order else "lru",
        eviction_cost="compute" if world.doubles_at else "tokens",
        compute_doubles_at=world.doubles_at or 30_000,
        ghosts=world.ghosts,
        min_uses=world.min_uses,
        resume_every=world.spacing,
        receipts=world.receipts,
        receipt_scopes=world.scopes,
        share_pending=world.share_pending,
        events=True,
        event_seed=SEED,
    )


def _of_pools(world: World, slots: tuple[int, ...]) -> tuple[int, ...]:
    """Slots by pool, of slots by group."""
    return tuple(number for group, number in enumerate(slots) if world.home(group) == group)


def layer_group(world: World, number: int) -> LayerGroup:
    """One group of a world."""
    group = world.groups[number] if world.groups else plain.FULL
    return LayerGroup(
        f"group{number}",
        page_bytes(world),
        world.planes,
        window=group.window if group.kind == "window" else None,
        sinks=group.sinks,
        snapshot_every=group.every if group.kind == "state" else None,
        snapshot_at_end=group.at_end,
        snapshot_decoding=group.decoding,
        snapshot_inside=group.inside,
        cross=group.kind == "cross",
        extra_tokens=group.extra,
        pool=f"pool{world.home(number)}" if world.pools.count(world.home(number)) > 1 else None,
    )


def encoder(given: plain.Encoder | None) -> Encoder | None:
    """What the encoder read; all inputs begin alike, and contents of one length differ in the last token only."""
    if given is None:
        return None
    if given.told == "tokens":
        return Encoder(given.length, int32([*[0] * (given.length - 1), given.content]))
    return Encoder(given.length, digest=DIGESTS[given.content] if given.told == "digest" else None)


def int32(numbers: tuple[int, ...] | list[int]) -> Int32:
    """Tokens as they travel."""
    return np.array(numbers, np.int32)


def request(ask: Ask) -> Request:
    """The request itself."""
    by: Literal["first", "max"] = "max" if ask.by == "max" else "first"
    kept = None
    if ask.ranges or ask.decode is not None:
        ranges = tuple(RetainRange(*item) for item in ask.ranges)
        kept = Retention(ranges, by=by) if ask.decode is None else Retention(ranges, *ask.decode, by=by)
    return Request(
        ask.name,
        int32(ask.tokens),
        SCOPES[ask.scope],
        length=ask.length,
        extra_ids=np.array(ask.extra_ids, np.int64) if ask.extra_ids else None,
        media=tuple(Media(DIGESTS[which], tuple(Span(*run) for run in runs)) for which, runs in ask.media),
        retention=kept,
        reuse=ask.reuse,
        reuse_limit=ask.reuse_limit,
        redo_blocks=ask.redo,
        beams=ask.beams,
        extra_tokens=ask.extra_tokens,
        max_new_tokens=ask.max_new_tokens,
        resume_points=tuple(at for at in ask.snapshots if at <= len(ask.tokens)),
        encoder=encoder(ask.encoder),
        uncut=tuple(Span(*one) for one in ask.uncut),
        session=None if ask.session is None else f"s{ask.session}",
    )


def identities(made: Request) -> tuple[Identity, ...]:
    """What makes each token of a request itself: token and extra words."""
    words = made.words()
    rows = [[0, 0, 0]] * len(made.tokens) if words is None else words.tolist()
    return tuple((token, *extra) for token, extra in zip(made.tokens.tolist(), rows, strict=True))


@lru_cache(maxsize=256)
def places(given: plain.Encoder | None, block_size: int) -> tuple[Identity, ...]:
    """What makes each place of an encoder's stream itself."""
    read = encoder(given)
    if read is None:
        return ()
    tokens, words = places_of(read, block_size)
    rows = [[0, 0, 0]] * len(tokens) if words is None else words.tolist()
    return tuple((token, *extra) for token, extra in zip(tokens.tolist(), rows, strict=True))


def named(ask: Ask, block_size: int) -> Ask:
    """The ask, which is new, told its scope's number and the identities of its tokens."""
    mine = tuple([(token, 0, 0, 0) for token in ask.tokens])
    if ask.extra_ids or ask.media:
        mine = identities(request(ask))
    root = _root(ask.scope, ask.encoder)
    ORIGINS[root] = (ask.scope, ask.encoder)
    known = places(ask.encoder, block_size)
    ask.name_tokens(mine, known, (root, ROOTS[ask.scope]))
    return ask


@lru_cache(maxsize=256)
def space(given: plain.Encoder | None) -> object:
    """What sets text over an encoder's input apart from other text of its scope."""
    read = encoder(given)
    scope = None if read is None else scope_over(read, SCOPES[0])
    return None if scope is None else scope.space


@lru_cache(maxsize=256)
def _root(scope: int, given: plain.Encoder | None) -> int:
    """The scope's number; that of text over an encoder's input is of both, and of one without a name like no other."""
    read = encoder(given)
    if read is None or given is None:
        return ROOTS[scope]
    both = scope_over(read, SCOPES[scope])
    return given.serial + (1 << 60) if both is None else both.event_hash(SEED)


def resumed(ask: Ask, tokens: tuple[Identity, ...], kept: int) -> Ask:
    """The ask that goes on where a suspended one stopped; its first `kept` tokens are still the prompt's."""
    made = len(tokens) - kept
    return replace(
        ask,
        tokens=tuple(identity[0] for identity in tokens),
        extra_ids=(*ask.extra_ids[:kept], *([0] * made)) if ask.extra_ids else (),
        media=cut(ask.media, kept),
        identities=tokens,
        length=None,
        reuse_limit=None,
        ranges=tuple((at, max(kept, at) if end is None else end, value, time) for at, end, value, time in ask.ranges),
        beams=1 if made else ask.beams,
        uncut=tuple((start, min(stop, kept)) for start, stop in ask.uncut if start < kept),
        snapshots=tuple(at for at in ask.snapshots if at <= kept),
        max_new_tokens=max(ask.max_new_tokens - made, 0),
    )


def cut(media: Runs, end: int) -> Runs:
    """Media of the first `end` tokens."""
    short = ((which, tuple((start, min(stop, end)) for start, stop in runs if start < end)) for which, runs in media)
    return tuple((which, runs) for which, runs in short if runs)


def encoder_meanings(ask: Ask) -> list[tuple[object, ...]]:
    """The same of the encoder's places: they depend on the whole of what it read."""
    given = ask.encoder
    if given is None or given.told == "nothing":
        return []
    return [(*given.meaning, place) for place in range(len(ask.places))]


def meanings(ask: Ask) -> list[tuple[object, ...]]:
    """What each token's identity must express, however it is coded: token, extra id, content and place in it."""
    found: list[tuple[object, ...]] = [
        (token, ask.extra_ids[i] if ask.extra_ids else 0, -1, -1) for i, token in enumerate(ask.tokens)
    ]
    for which, runs in ask.media:
        place = 0
        for start, end in runs:
            for at in range(start, end):
                found[at] = (*found[at][:2], which, place)
                place += 1
    return found


class Known:
    """Every identity met so far and its meaning: one to one, or the coding of identities is wrong."""

    def __init__(self) -> None:
        self.meaning: dict[tuple[bool, Identity], tuple[object, ...]] = {}
        self.identity: dict[tuple[bool, tuple[object, ...]], Identity] = {}

    def learn(self, ask: Ask) -> None:
        """Compare an ask's identities with all known ones."""
        if ask.extra_ids or ask.media:
            self._learn(False, ask.identities, meanings(ask))
        self._learn(True, ask.places, encoder_meanings(ask))

    def _learn(self, across: bool, identities: tuple[Identity, ...], meant: list[tuple[object, ...]]) -> None:
        for identity, meaning in zip(identities, meant, strict=False):  # an encoder's may have no meaning
            if self.meaning.setdefault((across, identity), meaning) != meaning:
                raise Mismatch(f"{identity} means {meaning} and something else")
            if self.identity.setdefault((across, meaning), identity) != identity:
                raise Mismatch(f"{meaning} is coded in two ways")


def limits(budget: Budget) -> dict[str, int | bool | None]:
    """Keyword arguments of an admission."""
    return {
        "token_budget": budget.token_budget,
        "max_chunk": budget.max_chunk,
        "all_or_nothing": budget.all_or_nothing,
    }
