"""StayLoads: what a stay was offered, and the load of it. Owns the find that holds those pages."""

from __future__ import annotations

from quire.core.outside.find import Found
from quire.integrations.vllm.common.worker_orders import Part
from quire.integrations.vllm.requests.jobs import CopyJob
from quire.integrations.vllm.requests.tables import NULL, Tables


class StayLoads:
    """`found` is what it was offered, or loads; `there` are the tokens that were, here or on vLLM's device, then."""

    __slots__ = ("found", "job", "there")

    def __init__(self) -> None:
        self.found: Found | None = None
        self.job: CopyJob | None = None
        self.there = 0

    def parts(self, tables: Tables, external: int, size: int) -> list[Part] | None:
        """Which page goes into which of vLLM's blocks; None when the two do not agree on what is needed."""
        found = self.found
        if found is None or found.end - found.start != external:
            return None
        first, last, parts = found.start // size, found.end // size, []
        for group, table in enumerate(tables):
            slots = found.slots(group).tolist()
            edge = last - len(slots)  # what is there are mostly the last ones: a window has passed the others
            ids = table[edge:last]
            if edge < first or len(ids) != len(slots) or not all(ids) or any(table[first:edge]):  # NULL is 0
                at = dict(zip(found.blocks(group).tolist(), slots, strict=True))
                wanted = [nth for nth, block in enumerate(table[first:last], first) if block != NULL]
                if not at.keys() >= set(wanted):
                    return None
                ids, slots = [table[nth] for nth in wanted], [at[nth] for nth in wanted]
            elif edge > first and slots and found.blocks(group)[0] != edge:  # ascending, and none behind `last`
                return None
            if ids:
                parts.append(Part(group, ids, slots))
        return parts

    def let_go(self) -> None:
        """Close what it was offered, unless that is being loaded."""
        if self.found is not None and self.job is None:
            self.found.close()
            self.found = None
