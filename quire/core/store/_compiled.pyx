# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True
"""Everything that works per block: keys, tree, pools, rows, log. `reference` is the same in plain Python.

State lives in flat C arrays, no Python object per block. The parts are plain C structs with functions over them. Each
part knows only those above it; the reference store is cut into the same parts. `Chain`, `Hit`, `KeyOrder`, `Ledger` and
`Store` are what Python sees. A call reserves all memory that it may need before its first change, so that what follows
cannot fail.
"""

import os

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport fputs, stderr
from libc.stdlib cimport abort, calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from quire.core.records.errors import BrokenInvariant
from quire.core.store.reuse import ADAPTIVE, AGE_EDGES, FIRST_RANK, LRU, RELEASE_ORDER
from quire.core.store.mapped import SlotState
from quire.core.store.dumped import (
    LOST, NONE, Dump, DumpedCells, DumpedGhost, DumpedGroup, DumpedKinds, DumpedNode, DumpedPage, DumpedReuse, DumpedRow,
    PageInfo,
)

cdef int32_t SLOT_EMPTY = SlotState.EMPTY, SLOT_OPEN = SlotState.OPEN, SLOT_HELD = SlotState.HELD
cdef int32_t SLOT_CLAIMED = SlotState.CLAIMED, SLOT_IDLE = SlotState.IDLE
cdef int32_t SLOT_SHADOW = SlotState.SHADOW, SLOT_COMING = SlotState.COMING

include "compiled/keys/memory.pxi"            # growable blocks, borrowed buffers
include "compiled/keys/token_list.pxi"        # token ids out of a list
include "compiled/keys/hash.pxi"              # multiply-fold, private keys, event hashes
include "compiled/keys/chain.pxi"             # Chain: tokens and their keys
include "compiled/tree/point_kinds.pxi"             # guessed and named resume points: which earn their pages
include "compiled/tree/node.pxi"              # nodes and pages, the index of full blocks
include "compiled/tree/tree.pxi"              # siblings in token order, roots, pruning; ways through the tree
include "compiled/tree/resume_points.pxi"            # where a request is likely to resume
include "compiled/pools/log.pxi"              # moves and events as arrays
include "compiled/learned/ages.pxi"           # age bins and classes of the adaptive order
include "compiled/pools/order.pxi"            # per tier: slots in eviction order
include "compiled/pools/expiry.pxi"           # durations, the heap of expiries
include "compiled/learned/ghosts.pxi"         # pages that are gone
include "compiled/learned/rival.pxi"          # what LRU would have kept
include "compiled/learned/cells.pxi"          # what the adaptive order knows, and its lists
include "compiled/pools/notes.pxi"            # changes in the slow tier, until they are reported
include "compiled/pools/tenure.pxi"           # pages whose copies have changed, until they are reported
include "compiled/pools/room.pxi"             # per pool: what groups may share
include "compiled/orders/lru.pxi"             # what came first goes first
include "compiled/orders/release_order.pxi"   # the same, with empty slots
include "compiled/orders/adaptive.pxi"        # cells in the order that was learned
include "compiled/pools/listing.pxi"          # per group: where its slots are listed, which is taken next
include "compiled/pools/pool.pxi"             # per group: pages, copies, holders, claims
include "compiled/pools/group.pxi"            # columns and pages that a length takes
include "compiled/pools/reserve.pxi"          # what a row has of a group, asks of it, has reserved there
include "compiled/pools/state.pxi"            # all of it together: rows
include "compiled/pools/construct.pxi"        # memory and NumPy arrays of a store
include "compiled/pools/checks.pxi"           # of arguments
include "compiled/pools/tables.pxi"           # cells and rows that an engine copies
include "compiled/moves/events.pxi"           # what the log says about pages, and about all of them
include "compiled/moves/attach.pxi"           # pages take their places in the tree and leave them
include "compiled/moves/priority.pxi"         # change of priority, by request or by time
include "compiled/moves/hinted_text.pxi"      # which text a hint speaks of
include "compiled/moves/offload.pxi"          # early copies in colder tiers (shadows)
include "compiled/moves/evict.pxi"            # take, evict, copies down to colder tiers, new pages
include "compiled/moves/cell_runs.pxi"        # many slots at a time, in the adaptive order
include "compiled/moves/runs.pxi"             # many slots at a time
include "compiled/moves/background.pxi"       # copies into the slow tier and up from it
include "compiled/moves/lasting.pxi"          # what changed in the slow tier, as arrays
include "compiled/moves/columns.pxi"          # pages in a row's columns: brought up, made, given up
include "compiled/hits/walk_result.pxi"       # Hit: what a walk found, and which of it a claim is on
include "compiled/hits/partial.pxi"           # the partial hit: found, taken over, copied
include "compiled/hits/walk.pxi"              # which leading blocks of a chain are cached
include "compiled/hits/claim.pxi"             # claim, unclaim; blocks that steps in flight compute for others
include "compiled/hits/explain.pxi"           # why the blocks behind a hit are missing
include "compiled/rows/state_snapshots.pxi"   # pages outside the columns
include "compiled/rows/seat.pxi"              # a claimed hit becomes a row
include "compiled/rows/teach.pxi"             # what an admission teaches the adaptive order
include "compiled/rows/settle.pxi"            # a seated row gets its pages
include "compiled/rows/extend.pxi"            # and those of a later part of its prompt
include "compiled/rows/commit.pxi"            # full blocks become findable, columns leave
include "compiled/rows/grow.pxi"              # grow, trim
include "compiled/rows/recut.pxi"             # spoilt blocks get pages of the row's own
include "compiled/rows/fork.pxi"              # a second row on the first one's pages
include "compiled/rows/hold.pxi"              # hold, unhold
include "compiled/rows/named.pxi"             # blocks or pages that a caller names
include "compiled/rows/spare.pxi"             # slots that cost only other texts
include "compiled/rows/write.pxi"             # pages whose bytes come from outside
include "compiled/rows/restore.pxi"           # blocks and pages of an earlier process
include "compiled/rows/release.pxi"           # rows end
include "compiled/rows/remove.pxi"            # truncate, clear, lose
include "compiled/dump.pxi"                   # introspection
include "compiled/maps.pxi"                   # slots, their order and nodes as arrays, to be drawn
include "compiled/orders/key_lists.pxi"       # what is known of a caller's keys
include "compiled/orders/key_order.pxi"       # KeyOrder: which of them go next
include "compiled/published/holders.pxi"      # which workers have a published page
include "compiled/published/holder_table.pxi" # published pages by event hash, and their sums
include "compiled/published/ledger.pxi"       # Ledger: who has which published page
include "compiled/opening.pxi"                # how a store is opened
include "compiled/row_calls.pxi"              # what steps call
include "compiled/page_calls.pxi"             # what comes and goes without a row
include "compiled/store.pxi"                  # Store: the whole, what it reports and can be asked
