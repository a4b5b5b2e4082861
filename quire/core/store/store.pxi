# Owns: the last third of the door: the life and end of rows, the log, introspection.
# Does not know: how anything is done: every method is one act of a part above.


@cython.final
cdef class Store(Desk):
    """Tree, pools and rows of one cache; the contract is the twin's, `quire.core.store.twin`."""

    # life

    def commit(self, rows, computed=None):
        """Make the computed full blocks of the rows findable; the number of pages newly attached."""
        cdef Py_buffer names, lengths
        cdef Py_ssize_t n = borrow(&names, rows, 4, b"il", "rows")
        try:
            if computed is None:
                return self.commit_batch(<const int32_t *> names.buf, NULL, n)
            if borrow(&lengths, computed, 4, b"il", "computed") != n:
                PyBuffer_Release(&lengths)
                raise ValueError("commit: as many lengths as rows")
            try:
                return self.commit_batch(<const int32_t *> names.buf, <const int32_t *> lengths.buf, n)
            finally:
                PyBuffer_Release(&lengths)
        finally:
            PyBuffer_Release(&names)

    def commit_row(self, int32_t row, int32_t computed):
        """The same for one row."""
        return self.commit_batch(&row, &computed, 1)

    cdef object commit_batch(self, const int32_t *rows, const int32_t *computed, Py_ssize_t n):
        refused(&self.state, commit_check(&self.state, rows, computed, n), "commit")
        return commit(&self.state, rows, computed, n)

    @property
    def inherit(self):
        """Whether a page that replaces a cold duplicate takes its copies over; off while a plan may still fail."""
        return bool(self.state.inherit)

    @inherit.setter
    def inherit(self, bint trusted):
        self.state.inherit = trusted

    def grow(self, rows, tokens, Py_ssize_t k):
        """k more tokens for every row, or capacity for them (tokens None); the number of new pages, -1: no room."""
        cdef Py_buffer names, text
        cdef Py_ssize_t n = borrow(&names, rows, 4, b"il", "rows")
        try:
            if k < 0:
                raise ValueError(f"grow: k is {k}")
            if tokens is None:
                return self.grow_batch(<const int32_t *> names.buf, n, NULL, k)
            if borrow(&text, tokens, 4, b"il", "tokens") != n * k:
                PyBuffer_Release(&text)
                raise ValueError(f"grow: {k} tokens for each of {n} rows")
            try:
                return self.grow_batch(<const int32_t *> names.buf, n, <const int32_t *> text.buf, k)
            finally:
                PyBuffer_Release(&text)
        finally:
            PyBuffer_Release(&names)

    cdef object grow_batch(self, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k):
        cdef int32_t i
        cdef int64_t grown
        refused(&self.state, grow_check(&self.state, rows, n, k), "grow")
        for i in range(self.state.num_groups):
            if not self.state.pools[i].current and is_short(self.state.pools + i, self.state.needs[i], 0):
                return -1
        self.check_needs()
        if append(&self.state, rows, n, tokens, k):
            raise MemoryError("grow: no memory for tokens")
        grown = grow(&self.state, rows, 0 if tokens != NULL else k)
        expect(grown >= 0, "grow")
        return grown

    def trim(self, int32_t row, int32_t k):
        """Take back the row's last k tokens and the columns beyond the rest; the number of pages given back."""
        self.check_row(row, True)
        if not 0 <= k <= self.state.length[row] - <int64_t> self.state.committed[row] * self.state.block_size:
            raise ValueError(f"trim: {k} of {self.state.length[row]} tokens, {self.state.committed[row]} blocks final")
        return trim(&self.state, row, k)

    def fork(self, int32_t src, int32_t dst):
        """A second row with the source's tokens, sharing its full pages; the number of slots taken, -1: no room."""
        cdef int taken
        cdef int32_t i
        cdef Chain chain
        self.check_row(src, True)
        self.check_row(dst, False)
        for i in range(self.state.num_groups):
            if stake_of(&self.state, self.state.pools + i, src).peak:
                raise ValueError(f"fork: pages are promised to row {src}")
            if columns_of(self.state.pools + i, self.state.length[src], self.state.block_size) > self.state.num_columns:
                raise ValueError(f"fork: {self.state.length[src]} tokens do not fit a row")
        if fork_check(&self.state, src):
            return -1
        self.check_needs()
        chain = (<Chain> <object> self.state.rows[src].chain).clone()
        taken = fork(&self.state, src, dst, &chain.text)
        Py_INCREF(chain)
        self.state.rows[dst].chain = <PyObject *> chain
        expect(taken >= 0, "fork")
        return taken

    def fork_needs(self, int32_t row):
        """Per group: pages of its own that a fork of the row takes; spare ones count."""
        cdef int32_t i
        self.check_row(row, True)
        return tuple([fork_pages(&self.state, self.state.pools + i, row) for i in range(self.state.num_groups)])

    def hold(self, Py_ssize_t group, int32_t row, int32_t first, int32_t last):
        """Hold the row's pages in columns [first, last), or the current one; their ids, int32. None: no room for it."""
        cdef Pool *g = self.pool(group)
        self.check_row(row, True)
        if not 0 <= first <= last <= self.state.num_columns:
            raise ValueError(f"hold: columns {first} to {last}")
        return hold(&self.state, g, row, first, last)

    def unhold(self, Py_ssize_t group, pages, int64_t now):
        """Let go of held pages, last to first."""
        cdef Pool *g = self.pool(group)
        cdef Py_buffer view
        cdef Py_ssize_t n = borrow(&view, pages, 4, b"il", "pages")
        try:
            if not unhold_check(g, <const int32_t *> view.buf, n):
                raise LookupError("unhold: a page is not held")
            self.state.now = now
            unhold(&self.state, g, <const int32_t *> view.buf, n)
        finally:
            PyBuffer_Release(&view)

    def recut(self, int32_t row, int32_t cut):
        """Replace the row's pages of [cut, committed) by new ones; the number of slots taken, -1: no room."""
        cdef int32_t taken
        self.check_row(row, True)
        if self.state.bounded or not 0 <= cut <= self.state.num_columns:
            raise ValueError(f"recut: {cut} of {self.state.num_columns} blocks, or columns leave the rows of a group")
        if recut_check(&self.state, row, cut):
            return -1
        self.check_needs()
        taken = recut(&self.state, row, cut)
        expect(taken >= 0, "recut")
        return taken

    def tokens(self, int32_t row):
        """A copy of the row's tokens, int32."""
        self.check_row(row, True)
        return as_array(self.state.rows[row].text.tokens, self.state.rows[row].text.length, 4, np.int32)

    def num_spares(self, Py_ssize_t group, int32_t row):
        """Open pages the row keeps aside for its forks."""
        self.pool(group)
        self.check_row(row, True)
        return self.state.spares[row * self.state.num_groups + group].count

    # ends

    def release(self, int32_t row, bint keep_tail, int64_t now):
        """End a row; with keep_tail its computed tokens stay findable: full blocks, and the tail as a partial one."""
        cdef int32_t computed
        cdef bint ahead
        self.check_row(row, True)
        computed, ahead = self.state.computed[row], self.state.rows[row].ahead
        if keep_tail:
            refused(&self.state, commit_check(&self.state, &row, &computed, 1), "release")
        if tree_reserve(&self.state.tree, max(0, computed // self.state.block_size - self.state.committed[row]) + 1,
                        self.state.rows[row].text.extras != NULL):
            raise MemoryError("release: no memory for nodes")
        self.state.now = now
        drop_promises(&self.state, row)
        if keep_tail:
            commit(&self.state, &row, &computed, 1)
        release(&self.state, row, keep_tail, ahead)
        chain = <object> self.state.rows[row].chain
        self.state.rows[row].chain = NULL
        Py_DECREF(chain)

    def truncate(self, int32_t root, Chain chain not None, Py_ssize_t usable, Py_ssize_t keep):
        """Remove the chain's blocks that begin at or after `keep`; the number of pages detached."""
        self.check_chain(chain, root)
        if root < 0:
            return 0
        usable, keep = max(0, min(usable, chain.text.length)), min(keep, chain.text.length + 1)
        if text_keys(&chain.text, usable // self.state.block_size):
            raise MemoryError("truncate: no memory for keys")
        if self.state.open_claims and truncate(&self.state, &chain.text, root, usable, keep, True):
            raise ValueError("truncate: pages of the chain are claimed")
        return truncate(&self.state, &chain.text, root, usable, keep, False)

    def clear(self):
        """Remove all blocks and roots; the number of pages detached."""
        if self.state.open_claims and any_page_claimed(&self.state):
            raise ValueError("clear: pages are claimed")
        self.numbers.clear()
        return clear(&self.state)

    def lose(self, Py_ssize_t group, int32_t page, int32_t stamp):
        """A page's bytes are gone; False: that page is gone already."""
        cdef Pool *g = self.pool(group)
        if not 0 <= page < g.num_pages or page_at(g, page).holders < 0 or page_at(g, page).stamp != stamp:
            return False
        if claims_of(page_at(g, page)):
            raise ValueError(f"lose: page {page} is claimed")
        return lose(&self.state, g, page)

    def drop_copy(self, Py_ssize_t group, int32_t page, int32_t tier):
        """Give up a page's copy in a tier if it is a shadow; whether it was."""
        cdef Pool *g = self.pool_with(group, page)
        return 0 <= tier < g.num_tiers and drop_copy(g, page, tier)

    def offload(self, Py_ssize_t group, int32_t limit):
        """Copy up to `limit` idle pages down ahead of their eviction; the number of them."""
        cdef Pool *g = self.pool(group)
        limit = min(limit, g.tiers.num_idle)
        if moves_reserve(&self.state.log, limit):
            raise MemoryError("offload: no memory for moves")
        return offload(&self.state, g, limit)

    def refresh(self, int64_t now):  # let retention run out
        refresh(&self.state, now)

    # log and introspection

    @property
    def num_moves(self):
        return self.state.log.num_moves

    def take_moves(self):
        """All moves since the last call, int32 [n, 11]."""
        return take_moves(&self.state.log)

    @property
    def num_events(self):
        """What waits in the log: more than 0 when there are events to take."""
        return log_waiting(&self.state.log)

    @property
    def num_lost(self):
        """Hashes that the log has given up since events were last taken."""
        return self.state.log.num_lost

    def take_events(self, bint whole=False):
        """All events since the last call, or instead the whole state: (records, hashes, details, tokens, lost)."""
        if whole and self.state.log.batches != NULL and log_whole(&self.state):
            log_discard(&self.state.log)
            raise MemoryError("take_events: no memory for the whole state")
        return take_events(&self.state.log)

    def available(self, Py_ssize_t group):
        """Slots of tier 0 that could be taken now and are not promised; with open claims less than none, perhaps."""
        return self.pool(group).available

    def reserved(self, Py_ssize_t group):  # slots promised to rows
        return self.pool(group).reserved

    cdef Order *order(self, Py_ssize_t group, Py_ssize_t tier) except NULL:
        if not 0 <= tier < self.state.num_tiers:
            raise LookupError(f"no tier {tier}")
        return self.pool(group).tiers + tier

    def num_empty(self, Py_ssize_t group, Py_ssize_t tier):
        return self.order(group, tier).num_empty

    def num_idle(self, Py_ssize_t group, Py_ssize_t tier):
        return self.order(group, tier).num_idle

    def num_shadow(self, Py_ssize_t group, Py_ssize_t tier):
        return self.order(group, tier).num_shadow

    @property
    def num_nodes(self):  # blocks in the tree; roots do not count
        return self.state.tree.num_nodes

    def nbytes(self):
        """(metadata, tokens): bytes of tree, index and pools."""
        return nbytes(&self.state)

    cdef Pool *pool_with(self, Py_ssize_t group, Py_ssize_t page) except NULL:
        if not 0 <= page < self.pool(group).num_pages:
            raise LookupError(f"no page {page}")
        return self.state.pools + group

    def page_info(self, Py_ssize_t group, Py_ssize_t page):
        """(node, holders, claims, priority, duration, expiry, stamp)"""
        cdef Pool *g = self.pool_with(group, page)
        cdef Page *p = page_at(g, <int32_t> page)
        if p.holders < 0:
            return -1, 0, 0, DEFAULT_PRIORITY, -1, -1, p.stamp
        expiry = -1 if g.expiry == NULL else g.expiry[page]
        return p.node, p.holders, claims_of(p), priority_of(p), duration_of(g, <int32_t> page), expiry, p.stamp

    def page_slots(self, Py_ssize_t group, Py_ssize_t page):
        """The page's slot per tier, -1: no copy there."""
        return slots_tuple(self.pool_with(group, page), <int32_t> page)

    def dump(self):
        """Everything, as plain values that are the same in both modules."""
        return dump(&self.state, self.numbers)
