"""The store's interface, once: what a chain, a hit, a ledger and a store can do, in both implementations.

Owns the names and types that the layers above use, in parts by subject. `docs/reference/store.md` says what each call
does, the reference store how. A call that raises or refuses has changed nothing. Nothing here is thread-safe: the layer
above has the lock.
"""

from quire.core.store.interface.arrays import (
    AskNumbers,
    BoolArray,
    Changes,
    EventArrays,
    Explained,
    GroupNumbers,
    Int8Array,
    Int16Array,
    Int32Array,
    Int64Array,
    Need,
    SourceState,
    UInt8Array,
    UInt64Array,
)
from quire.core.store.interface.key_order import KeyOrder
from quire.core.store.interface.ledger import Ledger
from quire.core.store.interface.store import Store, StoreModule
from quire.core.store.interface.texts import Chain, Hit

__all__ = [
    "AskNumbers",
    "BoolArray",
    "Chain",
    "Changes",
    "EventArrays",
    "Explained",
    "GroupNumbers",
    "Hit",
    "Int8Array",
    "Int16Array",
    "Int32Array",
    "Int64Array",
    "KeyOrder",
    "Ledger",
    "Need",
    "SourceState",
    "Store",
    "StoreModule",
    "UInt8Array",
    "UInt64Array",
]
