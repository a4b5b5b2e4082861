"""The order "release_order": as "lru", but empty slots queue with pages of the default priority, and nothing is passed.

Knows nothing of why.
"""

from typing import TypeVar

from quire.core.store.reference.orders.lru import Lru

K = TypeVar("K")


class ReleaseOrder(Lru[K]):
    """Whatever became free first goes first."""

    __slots__ = ()
    empties_wait = True
