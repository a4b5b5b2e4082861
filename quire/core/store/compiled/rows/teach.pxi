# Owns: what an admission teaches the adaptive order. Known blocks of a prompt are those of the hit, and behind them
# those that are ghosts, up to the first new one.
# Does not know: how rows get pages.


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
    cdef uint64_t seed = seed_of(&s.tree, s.rows[row].root) ^ g.salt
    cdef int32_t b, fetched = first + 1, whole = <int32_t> min(<Py_ssize_t> last, text.length // s.block_size)
    for b in range(first, last):
        if pages_of(s, g, row)[b] >= 0 or b == skip:
            continue
        if b >= whole or text_keys(text, min(whole, b + 1 if b < fetched else b + MAX_RUN)):
            return False
        if b >= fetched:      # the first was one: so are others, mostly
            fetched = min(whole, b + MAX_RUN)
            fetch_ghosts(g.ghosts, text.keys + b, fetched - b, seed)
        if not meet(g.cells, text.keys, b, seed):
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


cdef inline int32_t last_class(State *s, Pool *g, Path *path, int32_t row, int32_t known) noexcept nogil:
    """The class of the last block of a prompt that was there before; of ghosts those before the column `known`."""
    cdef int32_t p
    if known > path.blocks:
        return g.cells.met_class
    p = pages_of(s, g, row)[path.blocks - 1] if path.blocks else -1
    return class_in(memory_at(g.cells, p)) if p >= 0 else ONCE


cdef void teach_prompt(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """Before a seated row gets its pages: how much of its prompt was there before, and so the class of new pages."""
    cdef int32_t sink = min(g.sink, ask.wants[g.index].first)
    cdef int32_t known = teach_columns(s, g, ask, sink, path.blocks if path.source >= 0 and not g.current else -1)
    if g.cells != NULL:
        stake_of(s, g, ask.row).followed = follows_hint(last_class(s, g, path, ask.row, known))
        g.cells.fresh = fresh_class(max(path.blocks, known), s.rows[ask.row].text.length // s.block_size)
        stake_of(s, g, ask.row).fresh = g.cells.fresh


cdef void end_hints(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """The hints given for the pages of the hit end."""
    cdef Run run = runs_of(path, g)
    cdef int32_t b
    while next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            end_hint(g, pages_of(s, g, row)[b])


cdef void teach_reuse(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """The pages of the hit are used."""
    cdef Run run = runs_of(path, g)
    cdef int32_t *pages = pages_of(s, g, row)
    cdef Cells *c = g.cells
    cdef int32_t b, here, uses, reuse, age = 0, last = 0
    cdef int64_t now, used = -1, count = 0        # of pages of one cell, one after the other: mostly all of them
    cdef Memory *memory
    if g.hinted:
        end_hints(s, g, path, row)
    if c == NULL:
        return
    now = c.now
    while next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            memory = memory_at(c, pages[b])
            if memory.used != used or used < 0:
                used = memory.used
                age = age_bin(now - used)
            reuse = memory.reuse
            if reuse & WATCHED:
                find_watched(&c.rival, key_at(g.tree, page_at(g, pages[b]).node) ^ g.salt)
            here = (reuse & CLASS) * NUM_AGES + age
            if here != last:
                c.hits[last] += count
                last, count = here, 0
            count += 1
            uses = memory.uses + (memory.uses < MAX_USES)
            memory.uses, memory.used = <unsigned char> uses, now
            memory.reuse = <unsigned char> (reuse & ~CLASS | FEW + (uses > FEW_USES))
    c.hits[last] += count


cdef void use_span(State *s, Pool *g, int32_t first, int32_t last) noexcept nogil:
    """The pages of the nodes [first, last) of `path` are used."""
    cdef int32_t b, p
    for b in range(first, last if g.cells != NULL or g.hinted else first):
        p = at(&s.tree, s.path[b]).page[g.index]
        if p >= 0:
            use_page(g, p)


cdef void relist_span(State *s, Pool *g, int32_t first, int32_t last) noexcept nogil:
    """Those of them without holders wait elsewhere now, the deepest first."""
    cdef int32_t b, p
    for b in range(last - 1, first - 1, -1):
        p = at(&s.tree, s.path[b]).page[g.index]
        if p >= 0 and page_at(g, p).holders == 0:
            relist(g, hottest(g, page_at(g, p)), page_at(g, p))


cdef void meet_behind(State *s, Pool *g, Text *text, int32_t root, int32_t block, int32_t last) noexcept nogil:
    """The ghosts of a text from a block on, up to the first block that is none."""
    cdef uint64_t seed = seed_of(&s.tree, root) ^ g.salt
    while block < last and meet(g.cells, text.keys, block, seed):
        block += 1
    forget_met(g.cells)


cdef void use_chain(State *s, Text *text, int32_t root, int32_t blocks, int32_t last) noexcept nogil:
    """A request was served from outside: what its first blocks need is used, the ghosts right behind are met."""
    cdef int32_t i, sink, tail, found = nodes_along(s, text, root, blocks)
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        tail = max(0, found - g.tail) if g.tail >= 0 else 0
        sink = min(g.sink, tail)
        use_span(s, g, 0, sink)
        use_span(s, g, tail, found)
        relist_span(s, g, tail, found)
        relist_span(s, g, 0, sink)
        if g.cells != NULL:
            meet_behind(s, g, text, root, found, last)


cdef int use_text(State *s, Text *text, int32_t root, int32_t blocks) except -1:
    """The same, checked, with the keys that it takes."""
    cdef int32_t last = <int32_t> min(text.length // s.block_size, s.num_columns)
    if not 0 <= blocks <= last:
        raise ValueError(f"use: {blocks} blocks of {text.length} tokens")
    if text_keys(text, last):
        raise MemoryError("use: no memory for keys")
    use_chain(s, text, root, blocks, last)
    return 0
