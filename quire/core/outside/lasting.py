"""What lasts: changes of the slow tier for those who keep them beyond the process, and their way back into a new cache.

Owns the checks of what comes back and the numbers of blocks where there are several streams. Knows no files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup
from quire.core.state.stream import TokenStream

Int64 = NDArray[np.int64]
DIGEST_BYTES = 64


def take_changes(registry: Registry) -> LastingChanges:
    """What changed in the slow tier since the last call."""
    setup = registry.setup
    if not setup.config.lasting:
        fact = "this cache does not note what changes in its slow tier"
        raise StateError(say("lasting_changes", fact, "build it with CacheConfig(lasting=True)"))
    return _joined([_named(setup, nth, stream) for nth, stream in enumerate(setup.streams)])


def _named(setup: Setup, nth: int, stream: TokenStream) -> LastingChanges:
    """A stream's part, in the numbering of the cache: blocks of different streams have different numbers."""
    freed, blocks, start, tokens, words, word_at, roots, pages = stream.store.take_changes()
    streams = len(setup.streams)
    parent = np.where(blocks[:, 1] > 0, blocks[:, 1] * streams + nth, blocks[:, 1])
    digests = tuple(stream.roots.digest(root) for root in roots)
    nodes = BlockNodes(blocks[:, 0] * streams + nth, parent, start, tokens, words, word_at, digests)
    where = LastingPages(
        (pages[:, 0] + stream.first).astype(np.int32), pages[:, 1].astype(np.int32), pages[:, 2] * streams + nth
    )
    return LastingChanges(freed[:, 0] + np.int32(stream.first), freed[:, 1].copy(), nodes, where)


def _joined(parts: list[LastingChanges]) -> LastingChanges:
    if len(parts) == 1:
        return parts[0]
    roots: dict[bytes, int] = {}
    parents, starts, word_ats, at = [], [np.zeros(1, np.int64)], [], 0
    for part in parts:
        own = np.array([roots.setdefault(digest, len(roots)) for digest in part.nodes.roots], np.int64)
        parent = part.nodes.parent.copy()
        first = parent < 0
        parent[first] = -1 - own[-1 - parent[first]]
        parents.append(parent)
        starts.append(part.nodes.start[1:] + at)
        word_ats.append(part.nodes.word_at + at)
        at += len(part.nodes.tokens)
    nodes = BlockNodes(
        np.concatenate([part.nodes.number for part in parts]),
        np.concatenate(parents),
        np.concatenate(starts),
        np.concatenate([part.nodes.tokens for part in parts]),
        np.concatenate([part.nodes.words for part in parts]),
        np.concatenate(word_ats),
        tuple(roots),
    )
    pages = LastingPages(
        np.concatenate([part.pages.group for part in parts]),
        np.concatenate([part.pages.slot for part in parts]),
        np.concatenate([part.pages.node for part in parts]),
    )
    freed = [np.concatenate([getattr(part, name) for part in parts]) for name in ("freed_group", "freed_slot")]
    return LastingChanges(freed[0], freed[1], nodes, pages)


def restore_pages(registry: Registry, nodes: BlockNodes, pages: LastingPages) -> int:
    """Put an earlier cache's blocks and pages into an empty one; how many pages. A refusal has changed nothing."""
    setup = registry.setup
    _check_empty(registry)
    parent = _check_blocks(setup, nodes)
    place = _check_pages(setup, nodes, pages)
    now = setup.now()  # before the first change: a caller's clock may raise
    made: list[TokenStream] = []
    try:
        for nth, stream in enumerate(setup.streams):
            made.append(stream)
            _restore_stream(setup, nth, stream, (nodes, parent), (pages, place), now)
    except ValueError as twice:
        for stream in made:
            stream.store.clear()
            stream.roots.forget()
        raise InputError(say("restore", str(twice), "restore what a cache has reported")) from None
    return len(pages.slot)


def _restore_stream(
    setup: Setup, nth: int, stream: TokenStream, blocks: tuple[BlockNodes, Int64], pages: tuple[LastingPages, Int64],
    now: int,
) -> None:  # fmt: skip
    nodes, parent = blocks
    streams = len(setup.streams)
    mine = nodes.number % streams == nth
    moved = np.cumsum(mine) - 1  # place of each block among those of the stream
    above = parent[mine]
    used = np.unique(-1 - above[above < 0])
    roots = [stream.roots.restore(nodes.roots[root]) for root in used.tolist()]
    above = np.where(above < 0, -1 - np.searchsorted(used, -1 - above), moved[above])
    tokens, words, word_at = nodes.tokens, nodes.words, nodes.word_at
    if streams > 1:
        at, inside = np.divmod(word_at, setup.block_size)
        words, word_at = words[mine[at]], (moved[at] * setup.block_size + inside)[mine[at]]
        tokens = tokens.reshape(-1, setup.block_size)[mine].reshape(-1)
    where, place = pages
    own = mine[place]
    rows = np.column_stack([where.group[own] - stream.first, where.slot[own], moved[place[own]]]).astype(np.int32)
    numbered = np.column_stack([nodes.number[mine] // streams, above])
    stream.store.restore(
        roots, np.ascontiguousarray(numbered, np.int64), np.ascontiguousarray(tokens, np.int32),
        np.ascontiguousarray(words, np.uint64), np.ascontiguousarray(word_at, np.int64),
        np.ascontiguousarray(rows), now,
    )  # fmt: skip


def _check_empty(registry: Registry) -> None:
    setup, config = registry.setup, registry.setup.config
    if setup.slow_tier < 0:
        raise StateError(say("restore", "this cache has no slow tier", "give the coldest tier slow=True"))
    stored = any(stream.store.num_nodes for stream in setup.streams)
    tiers = range(len(config.tiers))
    used = any(
        setup.usage(tier, group).empty != setup.usage(tier, group).capacity for group in setup.groups for tier in tiers
    )
    if stored or used or registry.sequences or registry.open_claims:
        raise StateError(say("restore", "this cache has been used", "restore into a new one"))


def _refuse(what: str, fact: str) -> InputError:
    return InputError(say(f"restore of {what}", fact, "restore what a cache has reported"))


def _check_blocks(setup: Setup, nodes: BlockNodes) -> Int64:
    """Place of each block's parent, or -1 - root."""
    count, size = len(nodes.number), setup.block_size
    if (
        nodes.parent.shape != (count,)
        or nodes.start.shape != (count + 1,)
        or nodes.words.shape != (len(nodes.word_at), 3)
    ):
        raise _refuse("blocks", "their arrays do not fit each other")
    sizes = np.diff(nodes.start)
    if nodes.start[0] != 0 or nodes.start[-1] != len(nodes.tokens) or (sizes != size).any():
        raise _refuse("blocks", f"they have {size} tokens each, one behind the other")
    if len(nodes.word_at) and not (
        nodes.word_at[0] >= 0 and nodes.word_at[-1] < len(nodes.tokens) and (np.diff(nodes.word_at) > 0).all()
    ):
        raise _refuse("words", "they are of tokens, ascending")
    if any(not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES for digest in nodes.roots):
        raise _refuse("roots", f"a digest of a scope has {DIGEST_BYTES} bytes")
    if len(set(nodes.roots)) != len(nodes.roots):
        raise _refuse("roots", "a scope stands twice among them")
    order = np.argsort(nodes.number, kind="stable")
    known = nodes.number[order]
    if count and (known[0] < 1 or (np.diff(known) == 0).any()):
        raise _refuse("blocks", "a number is below 1 or stands for two")
    parent = _places_of(order, known, nodes.parent)
    first = nodes.parent < 0
    if (nodes.parent[first] < -len(nodes.roots)).any() or (nodes.parent == 0).any():
        raise _refuse("blocks", "a parent is none of the roots")
    if (parent[~first] < 0).any() or (parent[~first] >= np.arange(count)[~first]).any():
        raise _refuse("blocks", "a parent is unknown, or comes behind its child")
    streams = nodes.number % len(setup.streams)
    if (streams[parent[~first]] != streams[~first]).any():
        raise _refuse("blocks", "a parent is of another stream")
    return np.where(first, nodes.parent, parent)


def _places_of(order: Int64, known: Int64, numbers: Int64) -> Int64:
    """Where blocks of these numbers are, -1: nowhere."""
    if not len(known):
        return np.full(len(numbers), -1, np.int64)
    at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[at] == numbers, order[at], -1).astype(np.int64)


def _check_pages(setup: Setup, nodes: BlockNodes, pages: LastingPages) -> Int64:
    """Place of each page's block."""
    if not len(pages.group) == len(pages.slot) == len(pages.node):
        raise _refuse("pages", "their arrays do not fit each other")
    tier = setup.config.tiers[setup.slow_tier]
    capacity = np.array([setup.config.slots_of(setup.slow_tier, group) for group in setup.groups], np.int64)
    if len(pages.group) and not 0 <= pages.group.min() <= pages.group.max() < len(capacity):
        raise _refuse("pages", f"there are {len(capacity)} groups")
    if (pages.slot < 0).any() or (pages.slot >= capacity[pages.group]).any():
        raise _refuse("pages", f"tier {shown(tier.name)} has {capacity.tolist()} slots")
    order = np.argsort(nodes.number, kind="stable")
    place = _places_of(order, nodes.number[order], pages.node)
    if (place < 0).any():
        raise _refuse("pages", "a block is unknown")
    pools = np.array(setup.pool_of, np.int64)[pages.group]
    if np.bincount(pools * int(capacity.max()) + pages.slot, minlength=1).max() > 1:
        raise _refuse("pages", "a slot stands twice among those of a group, or of groups that share a pool")
    if np.bincount(pages.group.astype(np.int64) * len(nodes.number) + place, minlength=1).max() > 1:
        raise _refuse("pages", "a block stands twice among those of a group")
    of_stream = np.array([nth for nth, stream in enumerate(setup.streams) for _ in stream.store.pages], np.int64)
    if (of_stream[pages.group] != pages.node % len(setup.streams)).any():
        raise _refuse("pages", "a group does not read the stream of its block")
    return place
