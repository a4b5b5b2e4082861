"""Pages: the record of one page id of one group.

Owns the fields and the questions about one page. Knows nothing of orders: the pool keeps fields and orders in step.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.core.store.twin.tree import Node

DEFAULT_PRIORITY = 35
NEVER = -1


class Page:
    """The KV of one block for one group: who holds it, where its copies are, how long it should stay."""

    __slots__ = ("claims", "duration", "expiry", "holders", "node", "number", "priority", "slots", "stamp", "turn")

    def __init__(self, number: int, num_tiers: int) -> None:
        self.number = number
        self.stamp = 0
        self.node: Node | None = None
        self.holders = 0
        self.claims = 0
        self.slots = [-1] * num_tiers
        self.priority = DEFAULT_PRIORITY
        self.duration = NEVER
        self.expiry = NEVER
        self.turn = 0  # when the expiry was noted

    @property
    def hottest(self) -> int:
        """Tier of the hottest copy, -1 without copies."""
        return next((tier for tier, slot in enumerate(self.slots) if slot >= 0), -1)

    @property
    def is_idle(self) -> bool:
        return self.node is not None and self.holders == 0

    @property
    def is_open(self) -> bool:
        return self.node is None and self.holders > 0

    @property
    def is_free(self) -> bool:
        return self.node is None and self.holders == 0
