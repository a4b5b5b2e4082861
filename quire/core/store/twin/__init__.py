"""The store in plain Python: the readable specification, the test oracle, and the fallback without a compiler.

Owns nothing itself; it names what the package gives out. Read order: reach, chain, tree, page, order, log, pool, evict,
hits, promise, table, chunk, current, admission, offer, leave, commit, growth, fork, life, removal, store; ledger.
"""

from quire.core.store.twin.chain import Chain
from quire.core.store.twin.hits import Hit
from quire.core.store.twin.ledger import Ledger
from quire.core.store.twin.store import Store

__all__ = ["Chain", "Hit", "Ledger", "Store"]
