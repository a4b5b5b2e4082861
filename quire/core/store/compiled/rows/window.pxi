# Owns: columns that leave a row as it goes on, and what stays findable of them.
# Does not know: what is behind the numbers: a group keeps the last `keep` blocks, the first `sink`, or a current page.


cdef int32_t first_open(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """The first column of [first, last) whose page has no node; not in there when there is none."""
    cdef int32_t *pages = pages_of(s, g, row)
    while first < last and (pages[first] < 0 or page_at(g, pages[first]).node >= 0):
        first += 1
    return first


cdef int32_t leave(State *s, Pool *g, int32_t row, int32_t last, int32_t low, bint kept) noexcept nogil:
    """Columns that a group does not keep at `last` blocks go. Those without a node are offered once more before, if
    the row's blocks are `kept`; the scratch path begins at block `low`. The number of pages attached."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t first = max(stake.front, g.sink), edge = last - g.keep, begin, stored = 0
    if first < edge:
        begin = first_open(s, g, row, first, edge) if kept else edge
        if begin < edge:
            stored = attach_row(s, g, row, begin, edge, s.path + begin - low, False)
        clear_columns(s, g, row, first, edge)
    stake.front = max(stake.front, edge)
    return stored


cdef int32_t pass_on(State *s, Pool *g, int32_t row, int32_t last, int32_t low, bint kept) noexcept nogil:
    """The same for a group with a current page: only the last column can be kept, as a copy of that."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t stored = 0
    if kept and s.computed[row] == <int64_t> last * s.block_size:
        stored = keep_snapshot(s, g, row, last - 1, s.path[last - 1 - low])
    clear_columns(s, g, row, stake.front, last)
    stake.front = stake.shown = last
    return stored
