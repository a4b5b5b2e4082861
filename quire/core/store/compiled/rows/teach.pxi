# Owns: what an admission teaches the adaptive order. Known blocks of a prompt are those of the hit, and behind them
# those that are ghosts, as far as no new one lies between.
# Does not know: how pages are had.


cdef inline void set_fresh(State *s, Pool *g, int32_t row) noexcept nogil:
    """New pages are for this row from now on."""
    if g.cells != NULL:
        g.cells.fresh = stake_of(s, g, row).fresh
        forget_met(g.cells)


cdef void teach_new(State *s, Pool *g, int32_t row) noexcept nogil:
    """New pages of a row whose blocks were there before have their uses."""
    cdef int32_t b
    if g.cells != NULL:
        for b in range(g.cells.met_first, g.cells.met_last):
            if g.cells.met[b] and pages_of(s, g, row)[b] >= 0:
                begin(g.cells, pages_of(s, g, row)[b], g.cells.met[b])


cdef bint teach_span(State *s, Pool *g, int32_t row, int32_t first, int32_t last, int32_t skip,
                     int32_t *known) noexcept nogil:
    """Find the leading holes of [first, last) among the ghosts, but for column `skip`; False: one was none. The keys
    have room."""
    cdef Text *text = s.rows[row].text
    cdef uint64_t seed = seed_of(&s.tree, s.rows[row].root)
    cdef int32_t b
    for b in range(first, last):
        if pages_of(s, g, row)[b] >= 0 or b == skip:
            continue
        if (b + 1) * <Py_ssize_t> s.block_size > text.length or text_keys(text, b + 1):
            return False
        if not meet(g.cells, b, text.keys[b] ^ seed):
            return False
        known[0] = b + 1
    return True


cdef int32_t teach_columns(State *s, Pool *g, Ask *ask, int32_t sink, int32_t skip) noexcept nogil:
    """Find the columns to be filled among the ghosts; the one after the last that was there, or 0."""
    cdef Want *want = ask.wants + g.index
    cdef int32_t known = 0
    set_fresh(s, g, ask.row)
    if g.cells != NULL and g.cells.ghosts.count and s.rows[ask.row].tip >= 0:
        if teach_span(s, g, ask.row, 0, sink, skip, &known):
            teach_span(s, g, ask.row, want.first, want.stop, skip, &known)
    return known


cdef void teach_prompt(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """Before a seated row gets its pages: what of its prompt was there before, and so of which class new pages are."""
    cdef int32_t sink = min(g.sink, ask.wants[g.index].first)
    cdef int32_t known = teach_columns(s, g, ask, sink, path.blocks if path.source >= 0 else -1)
    if g.cells != NULL:
        g.cells.fresh = fresh_class(max(path.blocks, known), s.rows[ask.row].text.length // s.block_size)
        stake_of(s, g, ask.row).fresh = g.cells.fresh


cdef void teach_reuse(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """The pages of the hit are used."""
    cdef Run run = runs_of(path, g)
    cdef int32_t *pages = pages_of(s, g, row)
    cdef Cells *c = g.cells
    cdef int32_t b, here, uses, age = 0, last = 0
    cdef int64_t now, used = -1, count = 0        # of pages of one cell, one after the other: mostly all of them
    cdef Memory *memory
    if c == NULL:
        return
    now = c.now
    while next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            memory = memory_at(c, pages[b])
            if memory.used != used or used < 0:
                used = memory.used
                age = age_bin(now - used)
            here = memory.reuse * NUM_AGES + age
            if here != last:
                c.hits[last] += count
                last, count = here, 0
            count += 1
            uses = memory.uses + (memory.uses < MAX_USES)
            memory.uses, memory.used = <unsigned char> uses, now
            memory.reuse = FEW + (uses > FEW_USES)
    c.hits[last] += count
