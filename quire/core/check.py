"""check(cache): every invariant of one state, readable as the specification. Changes nothing.

Owns the list of what must hold; its time goes by the size of the cache. Knows a store by its dump and its arrays.
"""

from __future__ import annotations

from collections import Counter

from quire.core.cache import Cache
from quire.core.colder_tiers import registry_of
from quire.core.invariants.group_view import GroupView
from quire.core.invariants.pool_view import PoolView
from quire.core.records.errors import BrokenInvariant
from quire.core.records.reports.receipt import check_receipt
from quire.core.state.claim import Claim
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup
from quire.core.state.stream import TokenStream
from quire.core.store.dumped import NONE, Dump


def check(cache: Cache) -> None:
    """Check every invariant; raises BrokenInvariant, which names the first that does not hold, also under -O."""
    registry = registry_of(cache)
    try:
        _check_all(registry)
    except BrokenInvariant as wrong:
        if registry.on_broken is not None:
            registry.on_broken("check", wrong)
        raise


def _check_all(registry: Registry) -> None:
    setup = registry.setup
    with setup.lock:
        dumps = [stream.store.dump() for stream in setup.streams]
        for stream, dump in zip(setup.streams, dumps, strict=True):
            views = [GroupView(registry, dump, stream.first + place) for place in range(len(dump.groups))]
            for pool in dict.fromkeys(setup.pool_of[view.group] for view in views):
                PoolView([view for view in views if setup.pool_of[view.group] == pool]).check()
            for view in views:
                view.check()
            the_tree_is_whole(dump, setup.block_size)
            lengths_are_ordered(setup, stream, dump)
        rows_belong_to_sequences(registry, dumps)
        if registry.page_watcher is not None:
            registry.page_watcher.check_sums(copies_by_pool(setup, dumps), registry.sequences.values())
        receipts_account_for_every_token(registry)


def copies_by_pool(setup: Setup, dumps: list[Dump]) -> list[list[int]]:
    """How many slots of each tier hold a copy, by pool."""
    copies = [[0] * len(setup.config.tiers) for _ in setup.sharers]
    for stream, dump in zip(setup.streams, dumps, strict=True):
        for place, group in enumerate(dump.groups):
            found = copies[setup.pool_of[stream.first + place]]
            for page in group.pages.values():
                for tier, slot in enumerate(page.slots):
                    found[tier] += slot >= 0
    return copies


def receipts_account_for_every_token(registry: Registry) -> None:
    """The misses of an open claim cover what it has not, each token once."""
    for claims in registry.open_claims.values():
        for claim in [Claim(promise) for promise in claims if promise.noted is not None]:
            check_receipt(claim.receipt)
            if claim.receipt.reused != claim.start:
                raise BrokenInvariant(f"{claim!r} has a receipt of {claim.receipt.reused} reused tokens")


def the_tree_is_whole(dump: Dump, block_size: int) -> None:
    """Every node's parent exists and is full; a node has a page, a child, or is where a sequence goes on."""
    born: Counter[int] = Counter()
    for number, node in enumerate(dump.nodes):
        if node.size != len(node.tokens):
            raise BrokenInvariant(f"size {node.size} of {node.tokens}")
        if node.parent == NONE and node.size == 0:
            continue  # a root
        if not 0 <= node.parent < number:
            raise BrokenInvariant(f"a node has no parent: {node.tokens}")
        above = dump.nodes[node.parent]
        if above.parent != NONE and above.size != block_size:
            raise BrokenInvariant(f"a partial block is a parent: {above.tokens}")
        if not (any(page >= 0 for page in node.pages) or node.children or node.tips):
            raise BrokenInvariant(f"a node stands for nothing: {node.tokens}")
        born[node.parent] += 1
    if not all(node.children == born[number] for number, node in enumerate(dump.nodes)):
        raise BrokenInvariant("child counts are wrong")
    if len({(node.parent, node.tokens or node.root, node.words) for node in dump.nodes}) != len(dump.nodes):
        raise BrokenInvariant("a block stands twice under its parent")


def lengths_are_ordered(setup: Setup, stream: TokenStream, dump: Dump) -> None:
    """committed <= computed <= known, computed <= launched <= handed out; what is handed out has slots in every group
    with columns, but for prompts whose pages come step by step."""
    size = setup.block_size
    paged = [g for g in range(len(dump.groups)) if not setup.layers[stream.first + g].current]
    for row, facts in dump.rows.items():
        ordered = facts.committed * size <= facts.computed <= min(facts.handed, facts.length)
        ordered = (
            ordered and facts.launched <= facts.handed and (not facts.launched or facts.launched >= facts.computed)
        )
        if not ordered or facts.length != len(facts.tokens):
            raise BrokenInvariant(f"row {row}: {facts.committed}, {facts.computed}, {facts.handed}, {facts.length}")
        if not all(stream.store.capacity[g][row] * size >= max(facts.computed, facts.launched) for g in paged):
            raise BrokenInvariant(f"row {row} lacks slots")


def rows_belong_to_sequences(registry: Registry, dumps: list[Dump]) -> None:
    """Live rows are the live sequences' rows; the others are free, once each."""
    setup, ending = registry.setup, registry.in_flight.ending
    sequences = registry.sequences.values()
    rows = sorted([*(sequence.row for sequence in sequences), *ending])
    live = sorted(dumps[0].rows)
    if rows != live:
        raise BrokenInvariant(f"rows {live} vs sequences {rows}")
    if sorted(rows + registry.free_rows) != list(range(setup.config.max_sequences)):
        raise BrokenInvariant("rows are lost or doubled")
    if setup.cross is not None:
        across = {sequence.row for sequence in sequences if sequence.request.encoder is not None}
        across |= {row for row, (sequence, *_) in ending.items() if sequence.request.encoder is not None}
        if set(dumps[1].rows) != across:
            raise BrokenInvariant("the encoder's stream has other rows")
