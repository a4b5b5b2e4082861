# Owns: fork: what a second row shares with the first, and what is its own.
# Does not know: hits.


cdef inline int32_t own_columns(State *s, Pool *g, int32_t row, int32_t shared) noexcept nogil:
    """Columns behind the shared ones for which a fork takes a page: all, or those that have one."""
    cdef int32_t columns = <int32_t> columns_of(g, s.length[row], s.block_size)
    if not g.current:
        return max(0, columns - shared)
    return max(0, columns - shared) - <int32_t> count_holes(s, g, row, min(shared, columns), columns)


cdef int32_t fork_pages(State *s, Pool *g, int32_t row) noexcept nogil:
    """Pages of its own that a fork of the row takes of a group."""
    return own_columns(s, g, row, s.computed[row] // s.block_size) + (g.currents[row] >= 0)


cdef int fork_check(State *s, int32_t source) noexcept nogil:
    """Count the slots a fork takes per group; -1 when that is more than is available."""
    cdef int32_t i
    for i in range(s.num_groups):
        s.needs[i] = max(0, fork_pages(s, s.pools + i, source) - s.spares[source * s.num_groups + i].count)
    return -1 if lacks_room(s, -1, True) else 0


cdef int fork_column(State *s, Pool *g, int32_t source, int32_t target, int32_t column) noexcept nogil:
    """A page of the target's own, like the source's in that column: a spare (0) or a new one (1); -1: no slot."""
    cdef int32_t like = pages_of(s, g, source)[column], p, taken = 0
    cdef int32_t priority = priority_of(page_at(g, like)) if like >= 0 else s.rows[source].priority
    cdef int64_t duration = duration_of(g, like) if like >= 0 else s.rows[source].duration
    p = spare_or_new(s, g, source, priority, duration, &taken)
    if p < 0:
        return -1
    set_column(s, g, target, column, p)
    return taken


cdef int fork_group(State *s, Pool *g, int32_t source, int32_t target) noexcept nogil:
    """Share computed full columns, copy the computed part of the next, own pages for the rest; slots taken, or -1.
    With a current page that is what is copied: pages in columns are empty yet."""
    cdef int32_t columns = <int32_t> columns_of(g, s.length[source], s.block_size)
    cdef int32_t part = 0 if g.current else s.computed[source] % s.block_size
    cdef int32_t b, p, more, taken = 0, shared = min(s.computed[source] // s.block_size, columns)
    for b in range(shared):
        p = pages_of(s, g, source)[b]
        set_column(s, g, target, b, p)
        if p >= 0:
            hold_page(g, p)
    for b in range(shared, columns):
        p = pages_of(s, g, source)[b]
        if p < 0 and g.current:
            continue
        more = fork_column(s, g, source, target, b)
        if more < 0:
            return -1
        taken += more
        if b == shared and part and p >= 0:
            log_part(s, g, p, pages_of(s, g, target)[b], part)
            g.counters[COPIED] += 1
            g.counters[COPIED_TOKENS] += part
    g.capacity[target] = columns
    more = fork_current(s, g, source, target)
    return -1 if more < 0 else taken + more


cdef void fork_stake(State *s, Pool *g, int32_t source, int32_t target) noexcept nogil:
    """The fork stands where the source does; nothing is reserved for it."""
    cdef Stake *stake = stake_of(s, g, target)
    stake[0] = stake_of(s, g, source)[0]
    stake.own = own_columns(s, g, source, s.computed[source] // s.block_size)
    stake.peak = stake.kept = stake.reserve = 0
    written_of(s, g, target)[0] = written_of(s, g, source)[0]


cdef int fork(State *s, int32_t source, int32_t target, Text *text) noexcept nogil:
    """A second row with the source's tokens; the number of pages taken, -1 when nothing is available."""
    cdef int32_t i, more, taken = 0
    s.rows[target], s.sights[target] = s.rows[source], s.sights[source]
    s.seats += 1
    s.rows[target].chain, s.rows[target].text, s.rows[target].tip = NULL, text, -1
    s.rows[target].seat, s.rows[target].as_seated = s.seats, False
    s.most_rows, s.opening[target] = max(s.most_rows, target + 1), 0
    s.length[target], s.computed[target] = s.length[source], s.computed[source]
    s.committed[target], s.prompt[target] = s.committed[source], s.prompt[source]
    s.handed[target] = min(s.handed[source], s.length[source])
    set_launched(s, target, 0)
    if s.handed[source] > s.length[source]:       # places have no tokens that it could share
        s.rows[target].reached = max(s.rows[source].reached, s.handed[source])
    set_tip(s, target, s.rows[source].tip)
    s.makes = target
    keep_counters(s)
    for i in range(s.num_groups):
        fork_stake(s, s.pools + i, source, target)
        set_fresh(s, s.pools + i, source)
        more = fork_group(s, s.pools + i, source, target)
        if more < 0:
            return -1
        taken += more
    add_counters(s, target, True)
    set_edge(s, target)
    set_due(s, target)
    return taken


cdef object fork_row(State *s, int32_t source, int32_t target):
    """Fork a live row into a vacant one; slots taken, -1: no room."""
    cdef int taken
    cdef int32_t i
    cdef Chain chain
    for i in range(s.num_groups):
        if stake_of(s, s.pools + i, source).peak:
            raise ValueError(f"fork: pages are reserved for row {source}")
        if columns_of(s.pools + i, s.length[source], s.block_size) > s.num_columns:
            raise ValueError(f"fork: {s.length[source]} tokens do not fit a row")
    if fork_check(s, source):
        return -1
    check_needs(s)
    chain = (<Chain> <object> s.rows[source].chain).clone()
    taken = fork(s, source, target, &chain.text)
    Py_INCREF(chain)
    s.rows[target].chain = <PyObject *> chain
    expect(taken >= 0, "fork")
    return taken
