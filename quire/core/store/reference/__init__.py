"""The store in plain Python: the readable specification, the test oracle, and the fallback without a compiler.

Owns nothing itself; it names what the package gives out. The compiled store is cut into the same parts. Read order,
each part knowing only those before it: token_list, hash, chain, point_kinds, node, tree, resume_points, log, ages,
order, expiry, ghosts, rival, cells, notes, tenure, room, lru, release_order, adaptive, listing, pool, group, reserve,
state, checks, tables, events, attach, priority, hinted_text, offload, evict, background, lasting, columns, walk_result,
partial, walk, claim, explain, state_snapshots, seat, teach, settle, extend, commit, grow, recut, fork, hold, write,
restore, release, remove, dump, maps, key_order, ledger, opening, row_calls,
page_calls, store.
"""

from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.keys.token_list import read_tokens
from quire.core.store.reference.orders.key_order import KeyOrder
from quire.core.store.reference.published.ledger import Ledger
from quire.core.store.reference.store import Store

__all__ = ["Chain", "Hit", "KeyOrder", "Ledger", "Store", "read_tokens"]
