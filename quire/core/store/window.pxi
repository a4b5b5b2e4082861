# Owns: columns that leave a row as it goes on, and the commit of rows of which not everything is offered at once.
# Does not know: what is behind the numbers: a group keeps the last `keep` blocks, the first `sink`, or a current page.


cdef int32_t first_open(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """The first column of [first, last) whose page has no node; not in there when there is none."""
    cdef int32_t *pages = pages_of(s, g, row)
    while first < last and (pages[first] < 0 or page_at(g, pages[first]).node >= 0):
        first += 1
    return first


cdef int32_t lowest_offer(State *s, int32_t row, int32_t last) noexcept nogil:
    """The first column that a commit up to `last` blocks offers in some group. The nodes from there to the row's tip
    are needed; a window's far end is climbed to only if a page there has no node yet."""
    cdef int32_t i, edge, low = s.committed[row]
    cdef Stake *stake
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        stake = stake_of(s, g, row)
        if g.current:
            continue
        if stake.peak == 0:
            low = min(low, stake.shown)
        if g.keep >= 0 and last > s.committed[row]:
            edge = min(low, last - g.keep)
            if stake.front < edge:
                low = min(low, first_open(s, g, row, max(stake.front, g.sink), edge))
    return low


cdef void climb(State *s, int32_t node, int32_t low, int32_t depth) noexcept nogil:
    """The nodes of the blocks [low, depth) in the scratch path; `node` is the last of them."""
    cdef int32_t b
    for b in range(depth - 1, low - 1, -1):
        s.path[b - low] = node
        node = at(&s.tree, node).parent


cdef void clear_columns(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """The columns become holes, last to first; what was the row's own is not any more."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t b, p
    for b in range(last - 1, first - 1, -1):
        p = pages_of(s, g, row)[b]
        if p >= 0:
            set_column(s, g, row, b, -1)
            if stake.kept and b >= stake.base and page_at(g, p).holders > 1:
                keep_more(g, stake, -1)           # what was set aside for it is used now
            let_go(g, p, s.now)
            if b >= stake.base:
                count_own(g, stake, -1)


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


cdef int64_t commit_row(State *s, int32_t row, int32_t last) noexcept nogil:
    """Commit of a row that has columns to leave, or promises, or something it has not offered yet."""
    cdef Row *r = s.rows + row
    cdef int32_t i, first = s.committed[row], low = first
    cdef bint kept = r.keep and r.tip >= 0
    cdef int64_t stored = 0
    cdef Stake *stake
    cdef Pool *g
    last = max(first, last)
    r.seat = r.ahead = 0      # it is not as it was seated
    if kept:
        low = lowest_offer(s, row, last)
        climb(s, r.tip, low, first)
        if first < last:
            set_tip(s, row, extend_path(s, r.text, r.tip, at(&s.tree, r.root).key, first, last, s.path + first - low))
    for i in range(s.num_groups):
        g = s.pools + i
        stake = stake_of(s, g, row)
        if not g.current and stake.peak == 0:
            if kept and stake.shown < last:
                stored += attach_row(s, g, row, stake.shown, last, s.path + stake.shown - low, True)
            stake.shown = last
        if g.current and first < last:
            stored += pass_on(s, g, row, last, low, kept)
        elif g.keep >= 0 and first < last:
            stored += leave(s, g, row, last, low, kept)
    s.committed[row] = last
    set_due(s, row)
    return stored
