"""Pages under a caller's own keys, in a store that machines share: for caches of other engines."""

from quire.tiers.shared.keyed.key_lookups import KeyLookups
from quire.tiers.shared.keyed.key_store import KeyStore

__all__ = ["KeyLookups", "KeyStore"]
