"""A cache that machines share: stores, their client, and the glue to a cache. Re-exports what a user needs."""

from quire.tiers.shared.calls.client import StoreClient
from quire.tiers.shared.calls.counters import StoreCounts
from quire.tiers.shared.calls.quota import Quota
from quire.tiers.shared.fetch import Fetch
from quire.tiers.shared.rank_parts import LocalSharedRank, SharedRank
from quire.tiers.shared.shared_cache import Forgotten, SharedCache
from quire.tiers.shared.shared_config import SharedConfig, open_store
from quire.tiers.shared.stores.folder_store import FolderStore
from quire.tiers.shared.stores.store import SharedStore, StoreError, StoreMiss
from quire.tiers.shared.turns import Turns

__all__ = [
    "Fetch",
    "FolderStore",
    "Forgotten",
    "LocalSharedRank",
    "Quota",
    "SharedCache",
    "SharedConfig",
    "SharedRank",
    "SharedStore",
    "StoreClient",
    "StoreCounts",
    "StoreError",
    "StoreMiss",
    "Turns",
    "open_store",
]
