# Owns: the first half of the door: the checks that memory safety needs, roots, admission.
# Does not know: how anything is done: every method is one act of a part above.


cdef int refused(State *s, int why, str act) except -1:
    """Raise what a batch was refused for, before anything has changed."""
    if why == UNKNOWN_ROW:
        raise LookupError(f"{act}: row {s.culprit} is not live, or twice in the batch")
    if why == TOO_LONG:
        raise ValueError(f"{act}: row {s.culprit} would be longer than its tokens or columns")
    if why == NO_MEMORY:
        raise MemoryError(f"{act}: no memory")
    return 0


cdef int retention_check(State *s, Ask *ask) except -1:
    """Priorities name classes: they must be in range. Durations need arrays when they are first used."""
    cdef bint timed = ask.duration >= 0
    cdef int32_t b
    if not 0 <= ask.priority <= MAX_PRIORITY:
        raise ValueError(f"settle: priority {ask.priority} is not in 0..{MAX_PRIORITY}")
    for b in range(ask.blocks if ask.priorities != NULL else 0):
        if not -1 <= ask.priorities[b] <= MAX_PRIORITY:
            raise ValueError(f"settle: priority {ask.priorities[b]} is not in -1..{MAX_PRIORITY}")
        timed = timed or (ask.durations != NULL and ask.durations[b] >= 0)
    for b in range(s.num_groups if timed else 0):
        if expiry_open(s.pools + b):
            raise MemoryError("settle: no memory for durations")
    return 0


cdef int64_t settle_check(State *s, Path *path, Ask *ask) except -1:
    """All that can go wrong in settle, before anything changes; the slots it takes."""
    cdef Spares *spares
    cdef int32_t i
    cdef int64_t wanted, total = 0
    cdef void *moved
    cdef bint take_over = may_take_over(s, path.source)
    if path.seat != s.rows[ask.row].seat or s.pools.capacity[ask.row] != path.blocks:
        raise ValueError(f"settle: the hit was not seated in row {ask.row}, or the row has changed since")
    if not path.blocks + (path.source >= 0) <= ask.blocks <= s.num_columns or ask.spare < 0:
        raise ValueError(f"settle: {ask.blocks} blocks for a hit of {path.blocks} in a row of {s.num_columns}")
    retention_check(s, ask)
    for i in range(s.num_groups):
        wanted = slots_wanted(s, s.pools + i, path, ask, take_over)
        assert wanted >= 0, f"settle: group {i} has only {s.pools[i].available} slots available"
        total += wanted
    for i in range(s.num_groups if ask.spare else 0):
        spares = s.spares + ask.row * s.num_groups + i
        moved = realloc(spares.pages, 4 * <Py_ssize_t> (spares.count + ask.spare))
        if moved == NULL:
            raise MemoryError("settle: no memory for spare pages")
        spares.pages = <int32_t *> moved
    return total


cdef class Door(Tables):
    """What comes in."""

    cdef Pool *pool(self, Py_ssize_t group) except NULL:
        if not 0 <= group < self.state.num_groups:
            raise LookupError(f"no group {group}")
        return self.state.pools + group

    cdef int check_row(self, int32_t row, bint live) except -1:
        if not 0 <= row < self.state.num_rows or (live and not is_live(&self.state, row)):
            raise LookupError(f"row {row} is not live" if live else f"no row {row}")
        if not live and is_live(&self.state, row):
            raise ValueError(f"row {row} is live already")
        return 0

    cdef int check_chain(self, Chain chain, int32_t root) except -1:
        if chain.text.block_size != self.state.block_size:
            raise ValueError(f"the chain has blocks of {chain.text.block_size} tokens, not {self.state.block_size}")
        return 0 if root == -1 else self.check_root(root)

    cdef int check_root(self, int32_t root) except -1:
        if not 0 <= root < self.state.tree.used or not at(&self.state.tree, root).flags & ROOT:
            raise LookupError(f"no root {root}")
        return 0

    cdef int check_moves(self, int64_t slots) except -1:
        """Room in the log for the moves that taking so many slots may cause."""
        if moves_reserve(&self.state.log, slots * self.state.num_tiers + self.state.num_groups):
            raise MemoryError("no memory for moves")
        return 0

    cdef int check_needs(self) except -1:
        """Room for the moves of what has been counted in `needs`."""
        cdef int64_t total = 0
        cdef int32_t i
        for i in range(self.state.num_groups):
            total += self.state.needs[i]
        return self.check_moves(total)

    # roots

    def new_root(self, uint64_t event_hash):
        """A new root; its number is the parent of first blocks in events."""
        cdef int32_t n = new_root(&self.state.tree, event_hash)
        if n < 0:
            raise MemoryError("no memory for a root")
        if self.state.tree.hashes != NULL:
            self.state.tree.hashes[n] = event_hash
        self.numbers[n] = event_hash
        return n

    def dead_roots(self):
        """Roots that have lost their last child or tip since the last call and have neither now."""
        cdef Tree *t = &self.state.tree
        cdef Py_ssize_t i
        cdef list dead = []
        for i in range(t.num_noted):
            at(t, t.noted[i]).flags &= ~NOTED
            if at(t, t.noted[i]).child < 0 and at(t, t.noted[i]).tips == 0:
                dead.append(t.noted[i])
        t.num_noted = 0
        return dead

    def free_root(self, int32_t node):
        """Forget a root without child and tip."""
        self.check_root(node)
        if at(&self.state.tree, node).child >= 0 or at(&self.state.tree, node).tips:
            raise ValueError(f"root {node} is in use")
        free_root(&self.state.tree, node)
        del self.numbers[node]

    # admission

    def walk(self, Chain chain not None, int32_t root, Py_ssize_t usable, int policy):
        """What of the chain is cached under a root (-1: none); policy 0: full blocks, 1: and idle leaves, 2: any."""
        cdef Hit hit = Hit.__new__(Hit)
        self.check_chain(chain, root)
        hit.store, hit.state = self, &self.state
        if walk(&self.state, &chain.text, &hit.path, root, max(0, usable), policy):
            raise MemoryError("no memory for a walk")
        return hit

    cdef int check_hit(self, Hit hit, int stage, str act) except -1:
        if hit.store is not self or hit.path.stage != stage:
            raise ValueError(f"{act}: the hit is not at that stage, or not of this store")
        return 0

    def claim(self, Hit hit not None):
        """Claim what the hit needs: eviction passes over it."""
        self.check_hit(hit, FOUND, "claim")
        if self.state.open_claims >= MAX_CLAIMS:
            raise ValueError("claim: too many claims are open")
        if hit.path.epoch != self.state.tree.epoch and not has_pages(&self.state, &hit.path):
            raise LookupError("claim: the hit is out of date")
        claim(&self.state, &hit.path)

    def unclaim(self, Hit hit not None):
        """Give a claim up."""
        self.check_hit(hit, CLAIMED, "unclaim")
        unclaim(&self.state, &hit.path)

    def source_state(self, Hit hit not None):
        """(leaf, held, claims, tiers) of the source node now, the last three per group; (0, (), (), ()) without one."""
        cdef int32_t i, p, n = hit.path.source
        cdef list held = [], claims = [], tiers = []
        cdef Pool *g
        if hit.store is not self or n < 0:
            return 0, (), (), ()
        for i in range(self.state.num_groups):
            g, p = self.state.pools + i, at(&self.state.tree, n).page[i]
            held.append(int(p >= 0 and page_at(g, p).holders > 0))
            claims.append(claims_of(page_at(g, p)) if p >= 0 else 0)
            tiers.append(hottest(g, page_at(g, p)) if p >= 0 else -1)
        return int(at(&self.state.tree, n).child < 0), tuple(held), tuple(claims), tuple(tiers)

    def seat(self, Hit hit not None, int32_t row, Chain chain not None, int32_t root, bint keep):
        """Make a row live with a claimed hit; settle must follow."""
        self.check_hit(hit, CLAIMED, "seat")
        self.check_row(row, False)
        self.check_chain(chain, root)
        if root < 0 and (keep or hit.path.blocks):
            raise ValueError("seat: a row that keeps its blocks needs a root")
        if hit.path.blocks > self.state.num_columns or hit.start > chain.text.length:
            raise ValueError(f"seat: a hit of {hit.start} tokens does not fit the row or its chain")
        seat(&self.state, &hit.path, row, &chain.text, root, keep)
        Py_INCREF(chain)
        self.state.rows[row].chain = <PyObject *> chain

    def settle(self, int32_t row, Hit hit not None, int32_t blocks, priorities, durations, int32_t decode_priority,
               int64_t decode_duration, int32_t spare):
        """Give a seated row `blocks` pages and `spare` ones aside, all on tier 0."""
        cdef Py_buffer values, ticks
        cdef Ask ask
        self.check_hit(hit, SEATED, "settle")
        self.check_row(row, True)
        ask.row, ask.blocks, ask.spare = row, blocks, spare
        ask.priority, ask.duration, ask.priorities, ask.durations = decode_priority, decode_duration, NULL, NULL
        if priorities is None:
            return self.settle_checked(hit, &ask)
        if borrow(&values, priorities, 2, b"h", "priorities") < blocks:
            PyBuffer_Release(&values)
            raise ValueError(f"settle: fewer priorities than {blocks} blocks")
        ask.priorities = <const int16_t *> values.buf
        try:
            if durations is None:
                return self.settle_checked(hit, &ask)
            if borrow(&ticks, durations, 8, b"lq", "durations") < blocks:
                PyBuffer_Release(&ticks)
                raise ValueError(f"settle: fewer durations than {blocks} blocks")
            ask.durations = <const int64_t *> ticks.buf
            try:
                return self.settle_checked(hit, &ask)
            finally:
                PyBuffer_Release(&ticks)
        finally:
            PyBuffer_Release(&values)

    cdef object settle_checked(self, Hit hit, Ask *ask):
        self.check_moves(settle_check(&self.state, &hit.path, ask))
        assert settle(&self.state, &hit.path, ask) == 0, "settle: nothing available"
