# Owns: the second third of the door: a claimed hit becomes a row, and the row gets its pages.
# Does not know: how that is done: every method is one act of a part above.


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


cdef int wants_check(State *s, Ask *ask, list asks) except -1:
    """Read what is asked of each group: (first, stop, peak, spare)."""
    cdef int32_t i
    cdef Want *want
    if len(asks) != s.num_groups:
        raise ValueError(f"{len(asks)} asks for {s.num_groups} groups")
    ask.wants = s.wants
    for i in range(s.num_groups):
        want = s.wants + i
        want.first, want.stop, want.peak, want.spare = asks[i]
        if not 0 <= want.first <= want.stop <= s.num_columns or want.peak < 0 or want.spare < 0:
            raise ValueError(f"group {i}: {asks[i]} asked of a row of {s.num_columns} columns")
        ask.blocks = max(ask.blocks, want.stop)
    return 0


cdef int spares_reserve(State *s, int32_t row) except -1:
    """Memory for the spare pages that are wanted."""
    cdef Spares *spares
    cdef void *moved
    cdef int32_t i
    for i in range(s.num_groups):
        spares = s.spares + row * s.num_groups + i
        if s.wants[i].spare:
            moved = realloc(spares.pages, 4 * (<Py_ssize_t> spares.count + s.wants[i].spare))
            if moved == NULL:
                raise MemoryError("settle: no memory for spare pages")
            spares.pages = <int32_t *> moved
    return 0


cdef int hit_check(State *s, Path *path, Ask *ask) except -1:
    """Whether the hit was seated in the row, and the ask goes with it."""
    cdef int32_t i, seated, lowest = path.blocks + (path.source >= 0)
    for i in range(s.num_groups):
        seated = max(path.blocks, end_of(s, path, s.pools + i))
        if path.seat != s.rows[ask.row].seat or s.pools[i].capacity[ask.row] != seated:
            raise ValueError(f"settle: the hit was not seated in row {ask.row}, or the row has changed since")
        if lowest > ask.wants[i].stop and not s.pools[i].current:
            raise ValueError(f"settle: {ask.wants[i].stop} columns for a hit of {path.blocks} blocks")
    return 0


cdef int64_t settle_check(State *s, Path *path, Ask *ask) except -1:
    """The last that can go wrong in settle, before anything changes; the slots it takes."""
    cdef bint take_over = may_take_over(s, path.source)
    cdef int64_t wanted, total = 0
    cdef int32_t i
    retention_check(s, ask)
    for i in range(s.num_groups):
        wanted = slots_wanted(s, s.pools + i, path, ask, take_over)
        if wanted < 0:
            raise BrokenInvariant(f"settle: group {i} has only {s.pools[i].available} slots available")
        total += wanted
    spares_reserve(s, ask.row)
    return total


cdef class Desk(Door):
    """What is given out."""

    def seat(self, Hit hit not None, int32_t row, Chain chain not None, int32_t root, bint keep):
        """Make a row live with a claimed hit; settle must follow."""
        cdef int32_t i
        self.check_hit(hit, CLAIMED, "seat")
        self.check_row(row, False)
        self.check_chain(chain, root)
        if root < 0 and (keep or hit.path.blocks):
            raise ValueError("seat: a row that keeps its blocks needs a root")
        if hit.path.blocks > self.state.num_columns or hit.start > chain.text.length:
            raise ValueError(f"seat: a hit of {hit.start} tokens does not fit the row or its chain")
        for i in range(self.state.num_groups if hit.path.needs != NULL else 0):
            if end_of(&self.state, &hit.path, self.state.pools + i) > self.state.num_columns:
                raise ValueError("seat: what is held does not fit the row")
        if hit.path.blocks and root >= 0:
            self.find_tip(&hit.path, &chain.text, root)
        seat(&self.state, &hit.path, row, &chain.text, root, keep)
        Py_INCREF(chain)
        self.state.rows[row].chain = <PyObject *> chain

    cdef int find_tip(self, Path *path, Text *text, int32_t root) except -1:
        """The node of the hit's last block, the row's tip to be, is made again if it went: the claim may be on other
        blocks than that. Where nothing kept it, its number and its root's may be those of others by now."""
        cdef State *s = &self.state
        cdef bint kept = keeps_tip(s, path)
        if (kept and path.root != root) or text.length < <Py_ssize_t> path.blocks * s.block_size:
            raise ValueError(f"seat: the hit does not lie under root {root}")
        if kept or (path.root == root and has_nodes(s, path, text, path.blocks)):
            return 0
        if text_keys(text, path.blocks) or tree_reserve(&s.tree, path.blocks, text.extras != NULL):
            raise MemoryError("seat: no memory for nodes")
        path.nodes[path.blocks - 1] = extend_path(s, text, root, at(&s.tree, root).key, 0, path.blocks, s.path)
        return 0

    def settle(self, int32_t row, Hit hit not None, asks, priorities, durations, int32_t decode_priority,
               int64_t decode_duration, int32_t handed=-1):
        """Give a seated row what it asks of each group, (first, stop, peak, spare), all on tier 0; its tokens before
        `handed` (-1: all) are to be computed now."""
        cdef Ask ask
        self.check_hit(hit, SEATED, "settle")
        self.check_row(row, True)
        ask.handed = handed if handed >= 0 else self.state.length[row]
        self.check_end(row, ask.handed)
        ask.row, ask.blocks, ask.priority, ask.duration = row, 0, decode_priority, decode_duration
        wants_check(&self.state, &ask, asks if type(asks) is list else list(asks))
        hit_check(&self.state, &hit.path, &ask)
        self.retain(hit, &ask, priorities, durations)

    cdef int check_end(self, int32_t row, int32_t end) except -1:
        if not self.state.computed[row] <= end <= self.state.length[row]:
            raise ValueError(f"row {row} has {self.state.length[row]} tokens, it cannot be handed out up to {end}")
        return 0

    def hand_out(self, int32_t row, int32_t end):
        """The row's tokens before `end` are being computed, or will come; by default a commit counts so many."""
        self.check_row(row, True)
        self.check_end(row, end)
        hand_out(&self.state, row, end)

    def extend(self, int32_t row, asks, priorities, durations):
        """Give a row the columns of a later part of its prompt; the number of new pages, -1: no room."""
        cdef Ask ask
        self.check_row(row, True)
        ask.row, ask.blocks, ask.priority, ask.duration = row, 0, DEFAULT_PRIORITY, -1
        wants_check(&self.state, &ask, asks if type(asks) is list else list(asks))
        return self.retain(None, &ask, priorities, durations)

    cdef object retain(self, Hit hit, Ask *ask, priorities, durations):
        """Read the retention per block, then act."""
        cdef Py_buffer values, ticks
        cdef Py_ssize_t known
        ask.priorities, ask.durations = NULL, NULL
        if priorities is None:
            return self.give(hit, ask)
        known = borrow(&values, priorities, 2, b"h", "priorities")
        try:
            if known < ask.blocks:
                raise ValueError(f"fewer priorities than {ask.blocks} blocks")
            ask.priorities = <const int16_t *> values.buf
            if durations is None:
                ask.blocks = <int32_t> min(known, self.state.num_columns)
                return self.give(hit, ask)
            known = min(known, borrow(&ticks, durations, 8, b"lq", "durations"))
            try:
                if known < ask.blocks:
                    raise ValueError(f"fewer durations than {ask.blocks} blocks")
                ask.durations, ask.blocks = <const int64_t *> ticks.buf, <int32_t> min(known, self.state.num_columns)
                return self.give(hit, ask)
            finally:
                PyBuffer_Release(&ticks)
        finally:
            PyBuffer_Release(&values)

    cdef object give(self, Hit hit, Ask *ask):
        """Settle the row with its hit, or extend it (None)."""
        cdef int64_t taken
        if hit is not None:
            self.check_moves(settle_check(&self.state, &hit.path, ask))
            expect(settle(&self.state, &hit.path, ask) == 0, "settle")
            return None
        retention_check(&self.state, ask)
        if not extend_check(&self.state, ask):
            return -1
        self.check_needs()
        taken = extend(&self.state, ask)
        expect(taken >= 0, "extend")
        return taken
