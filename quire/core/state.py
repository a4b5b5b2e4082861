"""State: what one cache owns, in one place: store, sequences, open claims, unfinished plans. Decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from quire.core.config import CacheConfig
from quire.core.identity import Scope
from quire.core.plan import NO_MOVES, Plan
from quire.core.retain import TICKS_PER_SECOND
from quire.core.store import StoreName, open_store

if TYPE_CHECKING:
    from quire.core.claim import Claims
    from quire.core.hold import Hold
    from quire.core.sequence import Sequence
    from quire.core.store.twin import Chain, Store

NO_ROOT = -1


class State:
    """One cache's belongings; the functions of claim, admit, life and finish act on it under the door's lock."""

    __slots__ = (
        "block_size",
        "chain",
        "clock",
        "config",
        "free_rows",
        "groups",
        "holds",
        "lock",
        "next_plan",
        "nothing",
        "open_claims",
        "plans",
        "policy",
        "room",
        "roots",
        "sequences",
        "store",
        "timed",
    )

    def __init__(self, config: CacheConfig, clock: Callable[[], float], store: StoreName) -> None:
        module = open_store(store)
        tiers = config.tiers
        groups = [(g.tail, g.sink, [tier.of_group(i) for tier in tiers]) for i, g in enumerate(config.groups)]
        order = 1 if config.eviction == "release_order" else 0
        self.config = config
        self.block_size = config.block_size
        self.groups = range(len(config.groups))
        self.nothing = (0,) * len(config.groups)
        self.room = min(tiers[0].of_group(group) for group in self.groups)  # device slots of the smallest group
        self.policy = (
            (2 if config.copy_on_partial_reuse else 1) if config.partial_reuse else 0
        )  # the store's word for it
        self.clock = clock
        self.lock = threading.RLock()  # the door's; nothing below it knows threads
        self.chain: type[Chain] = module.Chain
        self.store: Store = module.Store(
            config.block_size, groups, config.max_sequences, config.columns,
            order, config.shadows, config.offload_min_priority, config.events, config.max_events,
        )  # fmt: skip
        self.roots = Roots(self.store, config.events)
        self.sequences: dict[Hashable, Sequence] = {}
        self.free_rows = list(range(config.max_sequences - 1, -1, -1))
        self.open_claims: dict[Claims, None] = {}  # in the order they were made
        self.holds: dict[Hold, None] = {}
        self.plans: dict[int, Plan] = {}
        self.next_plan = 0
        self.timed = False  # some page may have a duration

    def now(self) -> int:
        """The clock in the store's ticks."""
        return int(self.clock() * TICKS_PER_SECOND)

    def take_plan(self) -> Plan:
        """Everything the store decided to move since the last plan; one without moves needs no finishing."""
        number = self.next_plan
        self.next_plan = number + 1
        if not self.store.num_moves:
            return Plan(number, NO_MOVES)
        moves = self.store.take_moves()
        moves.flags.writeable = False
        plan = self.plans[number] = Plan(number, moves)
        self.store.inherit = False
        return plan

    def close_plan(self, number: int) -> None:
        """A plan is finished; when none is under way the store may trust every copy again."""
        self.plans.pop(number, None)
        self.store.inherit = not self.plans


class Roots:
    """Scope -> root node of its tree. A root goes when nothing is left below it."""

    __slots__ = ("_gone", "_nodes", "_scopes", "_store", "_told")

    def __init__(self, store: Store, told: bool) -> None:
        self._store = store
        self._told = told  # events are on: a scope is named until its last events were taken
        self._gone: dict[int, Scope] = {}
        self._nodes: dict[bytes, int] = {}
        self._scopes: dict[int, tuple[bytes, Scope]] = {}  # by node

    def find(self, key: bytes) -> int:
        """The root of a scope, NO_ROOT when nothing was ever stored in it."""
        return self._nodes.get(key, NO_ROOT)

    def make(self, key: bytes, scope: Scope) -> int:
        """The root of a scope, new if need be."""
        node = self._nodes.get(key, NO_ROOT)
        if node == NO_ROOT:
            self._sweep()
            node = self._nodes[key] = self._store.new_root(scope.event_hash())
            self._scopes[node] = (key, scope)
        return node

    def _sweep(self) -> None:
        for node in self._store.dead_roots():
            key, scope = self._scopes.pop(node)
            del self._nodes[key]
            if self._told:
                self._gone[scope.event_hash()] = scope
            self._store.free_root(node)

    def forget(self) -> None:
        """The store has cleared its tree, roots included."""
        if self._told:
            self._gone.update((scope.event_hash(), scope) for _, scope in self._scopes.values())
        self._nodes.clear()
        self._scopes.clear()

    def take_names(self) -> dict[int, Scope]:
        """Scopes by the number that events name them with; those that are gone are told one last time."""
        gone, self._gone = self._gone, {}
        return gone | {scope.event_hash(): scope for _, scope in self._scopes.values()}
