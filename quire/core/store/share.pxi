# Owns: pages in more than one row or hand: fork, hold and unhold; and recut, which gives up what a failed read spoilt.
# Does not know: release.


cdef int fork_check(State *s, int32_t source) noexcept nogil:
    """Count the slots a fork takes per group; -1 when that is more than is available."""
    cdef int32_t i
    for i in range(s.num_groups):
        s.needs[i] = max(0, fork_pages(s, s.pools + i, source) - s.spares[source * s.num_groups + i].count)
        if is_short(s.pools + i, s.needs[i], 0):
            return -1
    return 0


cdef int32_t spare_or_new(State *s, Pool *g, int32_t source, int32_t priority, int64_t duration,
                          int32_t *taken) noexcept nogil:
    """A page for a fork of the source: one kept aside, else a new one (`taken` + 1); -1: no slot."""
    cdef Spares *spares = s.spares + source * s.num_groups + g.index
    cdef int32_t p
    if spares.count == 0:
        taken[0] += 1
        return new_page(s, g, priority, duration)
    spares.count -= 1
    p = spares.pages[spares.count]
    put_priority(page_at(g, p), priority)
    set_duration(g, p, duration)
    return p


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
    """The fork stands where the source does; nothing is promised to it."""
    cdef Stake *stake = stake_of(s, g, target)
    stake[0] = stake_of(s, g, source)[0]
    stake.own = own_columns(s, g, source, s.computed[source] // s.block_size)
    stake.peak = stake.kept = stake.reserve = 0


cdef int fork(State *s, int32_t source, int32_t target, Text *text) noexcept nogil:
    """A second row with the source's tokens; the number of pages taken, -1 when nothing is available."""
    cdef int64_t[NUM_COUNTERS] before
    cdef int64_t *after
    cdef int32_t i, k, more, taken = 0
    s.rows[target] = s.rows[source]
    s.rows[target].chain, s.rows[target].text, s.rows[target].tip, s.rows[target].seat = NULL, text, -1, 0
    s.length[target], s.computed[target] = s.length[source], s.computed[source]
    s.committed[target], s.handed[target] = s.committed[source], s.handed[source]
    set_tip(s, target, s.rows[source].tip)
    for i in range(s.num_groups):
        memcpy(before, s.pools[i].counters, sizeof(before))
        fork_stake(s, s.pools + i, source, target)
        more = fork_group(s, s.pools + i, source, target)
        if more < 0:
            return -1
        taken += more
        after = s.pools[i].row_counters + <Py_ssize_t> target * NUM_COUNTERS
        for k in range(NUM_COUNTERS):
            after[k] = s.pools[i].counters[k] - before[k]
    set_edge(s, target)
    set_due(s, target)
    return taken


cdef int32_t hold_check(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Pages of [first, last) that are promised to leave the row and would not be back then; -1: there is no room for
    as many more."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t count
    first = max(first, stake.base)
    if stake.peak == 0 or g.current or first >= last:
        return 0
    count = last - first - <int32_t> count_holes(s, g, row, first, last)
    return -1 if is_short(g, count, 0) else count


cdef object hold(State *s, Pool *g, int32_t row, int32_t first, int32_t last):
    """Hold the row's pages of [first, last), or the current one if `computed` is in there; their ids, int32. None: they
    were promised to leave the row, and there is no room for as many more."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t b, count = 0, more = hold_check(s, g, row, first, last)
    cdef int64_t size = s.block_size
    if more < 0:
        return None
    for b in range(first, last if not g.current else first):
        if pages[b] >= 0:
            s.path[count] = pages[b]
            count += 1
    if g.current and g.currents[row] >= 0 and first * size < s.computed[row] <= last * size and not is_past(s, row):
        s.path[0] = g.currents[row]
        count = 1
    held = as_array(s.path, count, 4, np.int32)
    for b in range(count):
        hold_page(g, s.path[b])
    if more:
        keep_more(g, stake, more)
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
        if is_short(g, s.needs[i], back):
            return -1
    return 0


cdef int32_t depth_of(Tree *t, int32_t n) noexcept nogil:
    """Blocks from the root to a node. The tip of a row that keeps nothing is not as deep as what it has committed."""
    cdef int32_t depth = 0
    while not at(t, n).flags & ROOT:
        n = at(t, n).parent
        depth += 1
    return depth


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
        for b in range(cut, depth_of(&s.tree, node)):
            node = at(&s.tree, node).parent
        set_tip(s, row, node)
    s.computed[row] = <int32_t> min(<int64_t> s.computed[row], <int64_t> cut * s.block_size)
    hand_out(s, row, s.computed[row])
    s.committed[row] = min(s.committed[row], cut)
    s.rows[row].seat = 0      # it is not as it was seated
    for i in range(s.num_groups):
        stake_of(s, s.pools + i, row).shown = min(stake_of(s, s.pools + i, row).shown, cut)
    set_due(s, row)
    return taken
