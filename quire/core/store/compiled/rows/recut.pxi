# Owns: recut: a row gives up what a failed read spoilt.
# Does not know: who noticed.


cdef inline bint is_read_by_others(Pool *g, int32_t p) noexcept nogil:
    """Not open and the row's alone. A lost page that is claimed keeps its colder copies, and they are bad: committed
    again with new bytes on the device it would be found with those."""
    return not is_own(g, p) or claims_of(page_at(g, p)) > 0


cdef int recut_check(State *s, int32_t row, int32_t cut, int32_t stop) noexcept nogil:
    """Count the replacements a recut of [cut, stop) takes per group; -1: more than is available once its own are given up."""
    cdef int32_t i, b, p, back
    cdef Page *page
    cdef Pool *g
    for i in range(s.num_groups):
        s.pools[i].room.owed = 0
    for i in range(s.num_groups):
        g, back = s.pools + i, 0
        s.needs[i] = 0
        for b in range(cut, stop):
            p = pages_of(s, g, row)[b]
            if p >= 0 and is_read_by_others(g, p):
                page = page_at(g, p)
                s.needs[i] += 1
                back += page.node >= 0 and page.holders == 1 and claims_of(page) == 0
        g.room.owed += s.needs[i] - back
    for i in range(s.num_groups):
        if s.needs[i] and s.pools[i].room.owed > s.pools[i].room.available:
            return -1
    return 0


cdef int32_t recut(State *s, int32_t row, int32_t cut, int32_t stop) noexcept nogil:
    """Give up the row's pages of [cut, stop), then take new ones for them, and go back to `cut` blocks; slots
    taken, or -1. Columns that wait for a new page are marked -2."""
    cdef int32_t i, b, p, node = s.rows[row].tip, taken = 0
    cdef int32_t *pages
    s.makes = row
    for i in range(s.num_groups):
        pages = pages_of(s, s.pools + i, row)
        for b in range(stop - 1, cut - 1, -1):
            if pages[b] >= 0 and is_read_by_others(s.pools + i, pages[b]):
                let_go(s.pools + i, pages[b], s.now, UNKNOWN)
                pages[b] = -2
    for i in range(s.num_groups):
        pages = pages_of(s, s.pools + i, row)
        set_fresh(s, s.pools + i, row)
        for b in range(cut, stop):
            if pages[b] == -2:
                p = new_page(s, s.pools + i, DEFAULT_PRIORITY, -1)
                if p < 0:
                    return -1
                set_column(s, s.pools + i, row, b, p)
                taken += 1
    if node >= 0:
        for b in range(cut, depth_of(&s.tree, node)):
            node = at(&s.tree, node).parent
        set_tip(s, row, node)
    s.computed[row] = <int32_t> min(<int64_t> s.computed[row], <int64_t> cut * s.block_size)
    hand_out(s, row, s.computed[row])
    s.committed[row] = min(s.committed[row], cut)
    s.rows[row].as_seated = False
    for i in range(s.num_groups):
        stake_of(s, s.pools + i, row).shown = min(stake_of(s, s.pools + i, row).shown, cut)
    set_due(s, row)
    return taken


cdef object recut_row(State *s, int32_t row, int32_t cut, int32_t shared):
    """Recut of a live row; slots taken, -1: no room. Columns before `shared` may be pending: another row's."""
    cdef int32_t taken, stop = max(s.committed[row], shared)
    if s.bounded or not 0 <= cut <= s.num_columns or not 0 <= shared <= s.num_columns:
        raise ValueError(f"recut: {cut} or {shared} of {s.num_columns} blocks, or columns leave the rows of a group")
    if recut_check(s, row, cut, stop):
        return -1
    check_needs(s)
    taken = recut(s, row, cut, stop)
    expect(taken >= 0, "recut")
    return taken
