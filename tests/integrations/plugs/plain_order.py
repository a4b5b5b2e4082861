"""What a policy should evict: the core's own order, told of the same events by the shortest way. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from quire.core.outside.key_ranking import KeyRanking
from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.store.interface import KeyOrder
from quire.core.store.reuse import LATER, NUM_CELLS, SOON

BACK = {"soon": 1, "later": 2, "never": 3}


def shuffle(dice: np.random.Generator, *orders: KeyOrder) -> None:
    """All evict in the same order, by chance: so each class and age counts before anything has been learned."""
    cells = dice.permutation(NUM_CELLS).astype(np.int32)
    for order in orders:
        order.set_rank(cells, False)


class PlainOrder:
    """For requests whose wishes are well-formed. A beginning that was never asked for was on the device."""

    def __init__(self, size: int, eviction: Literal["adaptive", "lru"], clock: Callable[[], float]) -> None:
        self.ranking = KeyRanking(size, eviction, clock=clock)
        self.come, self.go = self.ranking.order.come, self.ranking.order.drop
        self.hold, self.let_go = self.ranking.order.hold, self.ranking.order.let_go
        self.take, self.clear = self.ranking.take, self.ranking.clear
        self.met: dict[str, list[int]] = {}  # blocks that were here before, and the last one's class

    def miss(self, keys: Sequence[bytes], context: Any) -> None:
        """A request computes these."""
        known, last = self.ranking.meet(keys)
        if known:
            before = self.met.get(context.req_id, [0, 0])
            self.met[context.req_id] = [before[0] + known, last]

    def finish(self, groups: Sequence[Sequence[bytes]], reused: set[bytes], context: Any) -> None:
        """A request is over; its groups have as many blocks each."""
        met, met_last = self.met.pop(context.req_id, [0, 0])
        groups = [group for group in groups if group]
        if not groups:
            return
        for group in groups:
            self.ranking.order.chain(group)
        keys = sorted((key for group in groups for key in group), key=context.get_offload_key_position)
        ends = [context.get_offload_key_position(key) for key in max(groups, key=len)[:2]]
        before = ends[0] // (ends[1] - ends[0]) - 1 if len(ends) > 1 else 0
        known = max(0, before) + met + len(reused)
        last = self.ranking.use(keys, reused, known > 0 and max(0, before) + len(keys) <= 2 * known)
        said = (context.kv_transfer_params or {}).get("quire", {})
        for group in groups:
            back = said.get("back", "")
            if back and (back != "later" or (met_last if met else last) in (SOON, LATER)):
                self.ranking.order.hint(group, BACK[back])
            if "priority" in said and said["priority"] != DEFAULT_PRIORITY:
                self.ranking.retain(group, said["priority"], said.get("seconds"))
