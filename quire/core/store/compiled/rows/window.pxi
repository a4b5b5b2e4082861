# Owns: columns that leave a row as it goes on, and what stays findable of them.
# Does not know: what is behind the numbers: a group keeps the last `keep` blocks, the first `sink`, or a current page.


cdef int32_t first_open(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """The first column of [first, last) whose page has no node; not in there when there is none."""
    cdef int32_t *pages = pages_of(s, g, row)
    while first < last and (pages[first] < 0 or page_at(g, pages[first]).node >= 0):
        first += 1
    return first


cdef void rank_twins(State *s, Pool *g, int32_t row, int32_t first, int32_t last, int32_t depth) noexcept nogil:
    """Idle pages of blocks in whose columns of [first, last) the row has pages of its own are ranked anew, the last
    first; its tip is so deep."""
    cdef int32_t b, p, node = s.rows[row].tip
    first = first_open(s, g, row, first, last)
    for b in range(depth - 1 if first < last else first - 1, first - 1, -1):
        p = pages_of(s, g, row)[b] if b < last else -1
        if p >= 0 and page_at(g, p).node < 0 and at(&s.tree, node).page[g.index] >= 0:
            rank_anew(g, at(&s.tree, node).page[g.index])
        node = at(&s.tree, node).parent


cdef void see_points(State *s, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """A row's tip has come from block `first` to `last`: where the last resume point above it is. What it has seen before
    is so still, unless the tree has turned; then it looks back as far as any window reads."""
    cdef Sight *sight = s.sights + row
    cdef int32_t b, node = at(&s.tree, s.rows[row].tip).parent, stop = max(0, last - 1 - s.most_read)
    if sight.turns == s.tree.turns:
        stop = max(stop, first - 1)
    else:
        sight.turns, sight.point = s.tree.turns, 0
    for b in range(last - 1, stop, -1):
        if is_point(&s.tree, node):
            sight.point = b
            return
        node = at(&s.tree, node).parent


cdef void pass_columns(State *s, Pool *g, int32_t row, int32_t first, int32_t edge, int32_t last) noexcept nogil:
    """Columns [first, edge) of a row become holes, last to first; its tip is at block `last`. On the way up from there
    it shows how far the next resume point is: none of those below the tip is near enough."""
    cdef int32_t b, node = s.rows[row].tip, steps = g.tail
    if edge - first == 1 and s.sights[row].turns == s.tree.turns:     # while decoding: it is known
        clear_column(s, g, row, first, IS_NEEDED if s.sights[row].point >= edge else IS_PASSED)
        return
    for b in range(last - 1, first - 1, -1):
        steps = 0 if is_point(&s.tree, node) else min(steps + 1, g.tail)
        if b < edge:
            clear_column(s, g, row, b, IS_NEEDED if steps < g.tail else IS_PASSED)
        node = at(&s.tree, node).parent


cdef int32_t leave(State *s, Pool *g, int32_t row, int32_t last, int32_t low, bint kept) noexcept nogil:
    """Columns that a group does not keep at `last` blocks go. Those without a node are offered once more before, if
    the row's blocks are `kept`; the scratch path begins at block `low`. The number of pages attached."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t first = max(stake.front, g.sink), edge = last - g.keep, begin, stored = 0
    if first < edge:
        begin = first_open(s, g, row, first, edge) if kept else edge
        if begin < edge:
            stored = attach_row(s, g, row, begin, edge, s.path + begin - low, False)
        if kept and g.ranked:
            rank_twins(s, g, row, first, edge, last)
            pass_columns(s, g, row, first, edge, last)
        else:
            clear_columns(s, g, row, first, edge)
    stake.front = max(stake.front, edge)
    return stored


cdef int32_t pass_on(State *s, Pool *g, int32_t row, int32_t last, int32_t low, bint kept) noexcept nogil:
    """The same for a group with a current page: columns are offered that a step has written itself; of the others only
    the last can be kept, as a copy of what is current."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t stored = 0, edge = min(written_of(s, g, row)[0], last)
    if kept and stake.front < edge:
        stored = attach_row(s, g, row, stake.front, edge, s.path + stake.front - low, False)
    if kept and s.computed[row] == <int64_t> last * s.block_size:
        stored += keep_snapshot(s, g, row, last - 1, s.path[last - 1 - low])
    clear_columns(s, g, row, stake.front, last)
    stake.front = stake.shown = last
    return stored
