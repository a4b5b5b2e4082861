# Owns: pages in more than one row or hand: fork, hold and unhold; and recut, which gives up what a failed read spoilt.
# Does not know: release.


cdef int fork_check(State *s, int32_t source) noexcept nogil:
    """Count the slots a fork takes per group; -1 when that is more than is available."""
    cdef int32_t i, columns = columns_for(s, s.length[source]), shared = s.computed[source] // s.block_size
    for i in range(s.num_groups):
        s.needs[i] = max(0, columns - shared - s.spares[source * s.num_groups + i].count)
        if s.needs[i] > s.pools[i].available:
            return -1
    return 0


cdef int fork_column(State *s, Pool *g, int32_t source, int32_t target, int32_t column) noexcept nogil:
    """A page of the target's own, like the source's in that column: a spare (0) or a new one (1); -1: no slot."""
    cdef Spares *spares = s.spares + source * s.num_groups + g.index
    cdef int32_t like = pages_of(s, g, source)[column], p, taken = 0
    cdef int32_t priority = priority_of(page_at(g, like)) if like >= 0 else s.rows[source].priority
    cdef int64_t duration = duration_of(g, like) if like >= 0 else s.rows[source].duration
    if spares.count:
        spares.count -= 1
        p = spares.pages[spares.count]
        put_priority(page_at(g, p), priority)
        set_duration(g, p, duration)
    else:
        p = new_page(s, g, priority, duration)
        if p < 0:
            return -1
        taken = 1
    set_column(s, g, target, column, p)
    return taken


cdef int fork_group(State *s, Pool *g, int32_t source, int32_t target) noexcept nogil:
    """Share computed full columns, copy the computed part of the next, own pages for the rest; slots taken, or -1."""
    cdef int32_t columns = columns_for(s, s.length[source]), part = s.computed[source] % s.block_size
    cdef int32_t b, p, more, taken = 0, shared = min(s.computed[source] // s.block_size, columns)
    for b in range(shared):
        p = pages_of(s, g, source)[b]
        set_column(s, g, target, b, p)
        if p >= 0:
            hold_page(g, p)
    for b in range(shared, columns):
        more = fork_column(s, g, source, target, b)
        if more < 0:
            return -1
        taken += more
        p = pages_of(s, g, source)[b]
        if b == shared and part and p >= 0:
            log_part(s, g, p, pages_of(s, g, target)[b], part)
            g.counters[COPIED] += 1
            g.counters[COPIED_TOKENS] += part
    g.capacity[target] = columns
    return taken


cdef int fork(State *s, int32_t source, int32_t target, Text *text) noexcept nogil:
    """A second row with the source's tokens; the number of pages taken, -1 when nothing is available."""
    cdef int64_t[NUM_COUNTERS] before
    cdef int64_t *after
    cdef int32_t i, k, more, taken = 0
    s.rows[target] = s.rows[source]
    s.rows[target].chain, s.rows[target].text, s.rows[target].tip, s.rows[target].seat = NULL, text, -1, 0
    s.length[target], s.computed[target] = s.length[source], s.computed[source]
    s.committed[target] = s.committed[source]
    set_tip(s, target, s.rows[source].tip)
    for i in range(s.num_groups):
        memcpy(before, s.pools[i].counters, sizeof(before))
        more = fork_group(s, s.pools + i, source, target)
        if more < 0:
            return -1
        taken += more
        after = s.pools[i].row_counters + <Py_ssize_t> target * NUM_COUNTERS
        for k in range(NUM_COUNTERS):
            after[k] = s.pools[i].counters[k] - before[k]
    return taken


cdef object hold(State *s, Pool *g, int32_t row, int32_t first, int32_t last):
    """Hold the row's pages of [first, last); their ids, int32."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t b, count = 0
    for b in range(first, last):
        if pages[b] >= 0:
            s.path[count] = pages[b]
            count += 1
    held = as_array(s.path, count, 4, np.int32)
    for b in range(count):
        hold_page(g, s.path[b])
    return held


cdef bint unhold_check(Pool *g, const int32_t *pages, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if not 0 <= pages[i] < g.num_pages or page_at(g, pages[i]).holders < 1:
            return False
    return True


cdef void unhold(State *s, Pool *g, const int32_t *pages, Py_ssize_t n) noexcept nogil:
    """Let go of checked pages, last to first."""
    cdef Py_ssize_t i
    for i in range(n - 1, -1, -1):
        if page_at(g, pages[i]).holders > 0:
            let_go(g, pages[i], s.now)


cdef inline bint is_own(Pool *g, int32_t p) noexcept nogil:
    """Open and in one hand only."""
    return page_at(g, p).node < 0 and page_at(g, p).holders == 1


cdef int recut_check(State *s, int32_t row, int32_t cut) noexcept nogil:
    """Count the replacements a recut takes per group; -1: more than is available once its own are given up."""
    cdef int32_t i, b, p, back
    cdef Page *page
    cdef Pool *g
    for i in range(s.num_groups):
        g, back = s.pools + i, 0
        s.needs[i] = 0
        for b in range(cut, s.committed[row]):
            p = pages_of(s, g, row)[b]
            if p >= 0 and not is_own(g, p):
                page = page_at(g, p)
                s.needs[i] += 1
                back += page.node >= 0 and page.holders == 1 and claims_of(page) == 0
        if s.needs[i] > g.available + back:
            return -1
    return 0


cdef int32_t recut(State *s, int32_t row, int32_t cut) noexcept nogil:
    """Give up the row's pages of [cut, committed), then take new ones for them, and go back to `cut` blocks; slots
    taken, or -1. Columns that wait for a new page are marked -2."""
    cdef int32_t i, b, p, node = s.rows[row].tip, taken = 0
    cdef int32_t *pages
    for i in range(s.num_groups):
        pages = pages_of(s, s.pools + i, row)
        for b in range(s.committed[row] - 1, cut - 1, -1):
            if pages[b] >= 0 and not is_own(s.pools + i, pages[b]):
                let_go(s.pools + i, pages[b], s.now)
                pages[b] = -2
    for i in range(s.num_groups):
        pages = pages_of(s, s.pools + i, row)
        for b in range(cut, s.committed[row]):
            if pages[b] == -2:
                p = new_page(s, s.pools + i, DEFAULT_PRIORITY, -1)
                if p < 0:
                    return -1
                set_column(s, s.pools + i, row, b, p)
                taken += 1
    if node >= 0:
        for b in range(cut, s.committed[row]):
            node = at(&s.tree, node).parent
        set_tip(s, row, node)
    s.computed[row] = <int32_t> min(<int64_t> s.computed[row], <int64_t> cut * s.block_size)
    s.committed[row] = min(s.committed[row], cut)
    return taken
