# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True
"""Everything that works per block: keys, tree, pools, rows, log. `quire.core.store.twin` is the same in plain Python.

State lives in flat C arrays, no Python object per block. The parts are plain C structs with functions over them, each part
knowing only those above it; `Store`, `Hit` and `Chain` at the end are the doors. Memory a call may need is reserved before
its first change, so that what follows cannot fail.
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

include "memory.pxi"      # growable blocks, borrowed buffers
include "hash.pxi"        # multiply-fold, private keys
include "siphash.pxi"     # event hashes
include "chain.pxi"       # Chain: tokens and their keys
include "tree.pxi"        # nodes, roots, the index of full blocks
include "children.pxi"    # siblings in token order, the partial candidate
include "log.pxi"         # moves and events
include "order.pxi"       # per tier: slots in eviction order
include "pool.pxi"        # per group: pages, copies, retention
include "expiry.pxi"      # durations, the heap of expiries
include "promise.pxi"     # a row's part in a group: its own pages, what it is promised
include "state.pxi"       # all of it together: rows, attach, detach
include "tell.pxi"        # what the log says about pages, and about all of them
include "evict.pxi"       # take, evict, onboard, offload
include "reach.pxi"       # what a walk found, and which of it a claim is on
include "hit.pxi"         # the walk; Hit
include "admission.pxi"   # claim, seat
include "settle.pxi"      # settle, extend
include "current.pxi"     # pages outside the columns
include "life.pxi"        # commit
include "window.pxi"      # columns that leave
include "growth.pxi"      # grow, trim
include "share.pxi"       # fork, hold, recut
include "leave.pxi"       # release, truncate, clear, lose
include "dump.pxi"        # introspection
include "holders.pxi"     # who has a published page
include "shelf.pxi"       # published pages by event hash, and their sums
include "ledger.pxi"      # Ledger: who has which published page
include "tables.pxi"      # construction: arrays, NumPy views
include "door.pxi"        # Door: roots, claims
include "desk.pxi"        # Desk: rows and what they get
include "store.pxi"       # Store: everything else
