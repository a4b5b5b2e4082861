"""A cache that machines share: stores, their client, and the glue to a cache. Re-exports what a user needs."""

from quire.tiers.shared.client import StoreClient
from quire.tiers.shared.counters import StoreCounts
from quire.tiers.shared.fetch import Fetch
from quire.tiers.shared.folder_store import FolderStore
from quire.tiers.shared.quota import Quota
from quire.tiers.shared.settings import SharedConfig, open_store
from quire.tiers.shared.shared_cache import Forgotten, SharedCache
from quire.tiers.shared.store import Miss, SharedStore, StoreError
from quire.tiers.shared.turns import Turns

__all__ = [
    "Fetch",
    "FolderStore",
    "Forgotten",
    "Miss",
    "Quota",
    "SharedCache",
    "SharedConfig",
    "SharedStore",
    "StoreClient",
    "StoreCounts",
    "StoreError",
    "Turns",
    "open_store",
]
