# Owns: a row's current page of a group that has such: outside its columns, written on and on; how it begins (from one
# that was kept), how it is kept (a copy in a column at a block's end, or itself when the row ends), is forked and ends.
# Does not know: what is written.


cdef void copy_whole(State *s, Pool *g, int32_t source, int32_t p) noexcept nogil:
    """COPY of a page into page p on tier 0, from wherever it is."""
    cdef int32_t t = log_part(s, g, source, p, s.block_size)
    g.counters[COPIED if t == 0 else ONBOARDED] += 1
    g.counters[COPIED_TOKENS] += s.block_size


cdef int64_t copied_back(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """Slots that are available as soon as the row has copied what it held."""
    cdef Run run = runs_of(path, g)
    cdef int64_t back = 0
    cdef Page *page
    cdef int32_t b
    while next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            page = page_at(g, pages_of(s, g, row)[b])
            back += page.holders == 1 and claims_of(page) == 0 and page.slot[0] >= 0
    return back


cdef int open_current(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """A new current page, begun from the last held one; the row needs none of those any more. -1: no slot."""
    cdef int32_t p = new_page(s, g, ask.priority, ask.duration), end = end_of(s, path, g), b, q
    cdef Run run = runs_of(path, g)
    if p < 0:
        return -1
    set_current(g, ask.row, p)
    if end:
        copy_whole(s, g, pages_of(s, g, ask.row)[end - 1], p)
    while next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            q = pages_of(s, g, ask.row)[b]
            set_column(s, g, ask.row, b, -1)
            let_go(g, q, s.now, UNKNOWN)
    return 0


cdef int32_t keep_snapshot(State *s, Pool *g, int32_t row, int32_t column, int32_t node) noexcept nogil:
    """The row has computed exactly to the end of a column that has a page: what is current is copied there and becomes
    findable, unless something is already, or it may have gone on; 1 if it did."""
    cdef int32_t p = pages_of(s, g, row)[column]
    if p < 0 or g.currents[row] < 0 or page_at(g, p).node >= 0 or at(&s.tree, node).page[g.index] >= 0:
        return 0
    if is_past(s, row):
        g.counters[SKIPPED] += 1
        return 0
    copy_whole(s, g, g.currents[row], p)
    attach(s, g, p, node)
    log_stored(s, g, &node, 1)
    return 1


cdef bint ends_at_edge(State *s, int32_t row) noexcept nogil:
    """Whether steps in flight compute all that the row was handed out, and that ends with a block."""
    cdef int32_t end = s.launched[row]
    return end > s.computed[row] and end == s.handed[row] and end % s.block_size == 0


cdef void keep_ahead(State *s, int32_t row) noexcept nogil:
    """Before more of a row is handed out: what its steps in flight leave as current is copied into the page of that
    column. A commit offers it then as it is. Columns that those steps went past hold nothing. Room for the moves is
    reserved."""
    cdef int32_t i, p, column = s.launched[row] // s.block_size - 1
    cdef Pool *g
    if not ends_at_edge(s, row) or not s.rows[row].keep or s.rows[row].tip < 0:
        return
    for i in range(s.num_groups):
        g = s.pools + i
        p = pages_of(s, g, row)[column]
        if not g.current or g.currents[row] < 0 or p < 0 or column < written_of(s, g, row)[0]:
            continue
        clear_columns(s, g, row, max(stake_of(s, g, row).front, written_of(s, g, row)[0]), column)
        copy_whole(s, g, g.currents[row], p)
        written_of(s, g, row)[0] = column + 1


cdef int hand_out_part(State *s, int32_t row, int32_t end) except -1:
    """A part of the prompt of a live row is handed out."""
    if s.num_current and moves_reserve(&s.log, s.num_current):
        raise MemoryError("hand_out: no memory for moves")
    if s.num_current:
        keep_ahead(s, row)
    hand_out(s, row, end)
    return 0


cdef void keep_currents(State *s, int32_t row) noexcept nogil:
    """Before a row goes: what is current at the end of its last block becomes findable, unless something is already, or
    it may have gone on."""
    cdef int32_t i, node = s.rows[row].tip
    cdef Pool *g
    if s.computed[row] == 0 or s.computed[row] != <int64_t> s.committed[row] * s.block_size:
        return
    for i in range(s.num_groups):
        g = s.pools + i
        if not g.current or g.currents[row] < 0 or at(&s.tree, node).page[i] >= 0:
            continue
        if is_past(s, row):
            g.counters[SKIPPED] += 1
        else:
            attach(s, g, g.currents[row], node)
            log_stored(s, g, &node, 1)


cdef void close_current(State *s, Pool *g, int32_t row) noexcept nogil:
    cdef int32_t p = g.currents[row]
    if p >= 0:
        set_current(g, row, -1)
        let_go(g, p, s.now, UNKNOWN)


cdef int fork_current(State *s, Pool *g, int32_t source, int32_t target) noexcept nogil:
    """The fork goes on from a copy; slots taken, or -1."""
    cdef int32_t p, taken = 0
    if g.currents[source] < 0:
        return 0
    p = spare_or_new(s, g, source, s.rows[source].priority, s.rows[source].duration, &taken)
    if p < 0:
        return -1
    copy_whole(s, g, g.currents[source], p)
    set_current(g, target, p)
    return taken
