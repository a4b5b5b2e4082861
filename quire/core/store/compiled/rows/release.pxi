# Owns: how a row ends: what is worth keeping stays findable, its tail as a partial block; then its pages go.
# Does not know: admission.


cdef void adopt_twins(State *s, int32_t row) noexcept nogil:
    """Private twins whose block has lost its page in the meantime take its place."""
    cdef int32_t b, i, p, node = s.rows[row].tip
    cdef Pool *g
    for b in range(s.committed[row] - 1, -1, -1):
        for i in range(s.num_groups):
            g = s.pools + i
            p = pages_of(s, g, row)[b]
            if p >= 0 and page_at(g, p).node < 0 and at(&s.tree, node).page[i] < 0:
                attach(s, g, p, node)
                log_stored(s, g, &node, 1)
        node = at(&s.tree, node).parent


cdef bint is_covered(State *s, int32_t parent, int32_t group, Query *q) noexcept nogil:
    """Whether some child that has a page of the group begins with q."""
    cdef int32_t common, node = first_after(&s.tree, parent, q, True, &common)
    cdef Query own
    while node >= 0 and common_with(&s.tree, node, q) == q.size:
        if at(&s.tree, node).page[group] >= 0:
            return True
        own = query_of(&s.tree, node)
        node = first_after(&s.tree, parent, &own, False, &common)
    return False


cdef bint has_tail(State *s, int32_t row, Query *q) noexcept nogil:
    """Whether a row has computed tokens after its last committed block: q."""
    cdef Row *r = s.rows + row
    cdef int64_t begin = <int64_t> s.committed[row] * s.block_size
    if not 0 < s.computed[row] - begin < s.block_size or s.computed[row] > r.text.length:
        return False
    q.tokens, q.size = r.text.tokens + begin, <int32_t> (s.computed[row] - begin)
    q.extras = NULL if r.text.extras == NULL else r.text.extras + 3 * begin
    return True


cdef inline int32_t last_page(State *s, Pool *g, int32_t row) noexcept nogil:
    """The page of those tokens, or what is current; -1: none."""
    if g.current:
        return g.currents[row]
    return pages_of(s, g, row)[s.committed[row]] if s.committed[row] < g.capacity[row] else -1


cdef int32_t tail_node(State *s, int32_t parent, Query *q) noexcept nogil:
    """The child of these tokens, made if missing; room is reserved."""
    cdef int32_t node = find_child(&s.tree, parent, q)
    if node < 0:
        node = new_block(&s.tree, parent, q.tokens, q.extras, q.size)
        link_child(&s.tree, parent, node)
    return node


cdef void keep_tail(State *s, int32_t row) noexcept nogil:
    """The computed tokens after the last committed block become a partial block, unless they are there already."""
    cdef Row *r = s.rows + row
    cdef int32_t i, p, node
    cdef Pool *g
    cdef Query q
    if not has_tail(s, row, &q):
        return
    for i in range(s.num_groups):
        g = s.pools + i
        p = last_page(s, g, row)
        if p < 0 or not is_own(g, p) or is_covered(s, r.tip, i, &q):
            continue
        node = tail_node(s, r.tip, &q)
        attach(s, g, p, node)
        log_stored(s, g, &node, 1)


cdef void keep_whole_tail(State *s, int32_t row) noexcept nogil:
    """The same where something is current: its page of every group and what is current after it, or nothing; what may
    have gone on is not kept."""
    cdef Row *r = s.rows + row
    cdef int32_t i, p, node, stored
    cdef Pool *g
    cdef Query q
    if not has_tail(s, row, &q):
        return
    for i in range(s.num_groups):
        p = last_page(s, s.pools + i, row)
        if p < 0 or not is_own(s.pools + i, p):
            return
    stored = find_child(&s.tree, r.tip, &q)
    for i in range(s.num_groups):
        g = s.pools + i
        if stored >= 0 and at(&s.tree, stored).page[i] >= 0:
            continue
        if is_past(s, row):
            g.counters[SKIPPED] += g.current
            continue
        node = tail_node(s, r.tip, &q)
        attach(s, g, last_page(s, g, row), node)
        log_stored(s, g, &node, 1)


cdef void drop_reserves(State *s, int32_t row) noexcept nogil:
    """What is kept free for a row is available to all again."""
    cdef int32_t i
    for i in range(s.num_groups):
        if stake_of(s, s.pools + i, row).peak:
            set_peak(s.pools + i, stake_of(s, s.pools + i, row), 0)


cdef void end_row(State *s, int32_t row, int32_t back, End *end) noexcept nogil:
    """What is said of a row that ends, and where that was."""
    cdef int32_t tip = s.rows[row].tip, tail = -1
    cdef Query q
    if tip >= 0 and has_tail(s, row, &q):
        tail = find_child(&s.tree, tip, &q)
    hint_row(s, row, tail, back)
    end_of_row(s, row, end)


cdef void release(State *s, int32_t row, bint tail, bint ahead, int32_t back, End *end) noexcept nogil:
    """End a row without reserve: keep what is worth keeping, then let go of its pages, last to first. `ahead`: what is
    current belongs to no block it has computed. `end`: where it ends, NULL if nobody asks or says anything. Room for one
    node is reserved."""
    cdef Row *r = s.rows + row
    cdef Spares *spares
    cdef int32_t i
    if tail and r.keep and r.tip >= 0:
        if r.twins:
            adopt_twins(s, row)
        if s.num_current and not ahead:
            keep_currents(s, row)
        if s.tails and s.num_current == 0:
            keep_tail(s, row)
        elif s.tails and not ahead:
            keep_whole_tail(s, row)
    for i in range(s.num_groups if r.keep and r.tip >= 0 else 0):
        if s.pools[i].ranked:
            rank_twins(s, s.pools + i, row, 0, s.committed[row], s.committed[row])
    if end != NULL:
        end_row(s, row, back, end)
    set_tip(s, row, -1)
    for i in range(s.num_groups):
        spares = s.spares + row * s.num_groups + i
        while spares.count:
            spares.count -= 1
            let_go(s.pools + i, spares.pages[spares.count], s.now, UNKNOWN)
        drop_columns(s, s.pools + i, row, 0)
        close_current(s, s.pools + i, row)
    set_launched(s, row, 0)
    s.length[row] = s.handed[row] = s.computed[row] = s.committed[row] = 0
    r.text = NULL


cdef object release_row(State *s, int32_t row, bint tail, int64_t now, int32_t back, bint mark):
    """Commit what a live row has computed if its tail shall be kept, end it, forget its chain. With `mark`: where it
    ended, or None if it leaves nothing."""
    cdef int32_t computed = s.computed[row]
    cdef End end
    cdef bint ahead = s.rows[row].ahead
    if tail:
        refused(s, commit_check(s, &row, &computed, 1), "release")
    if tree_reserve(&s.tree, max(0, computed // s.block_size - s.committed[row]) + 1, s.rows[row].text.extras != NULL):
        raise MemoryError("release: no memory for nodes")
    if mark and births_open(&s.tree):
        raise MemoryError("release: no memory to know its end again")
    tell_time(s, now)
    drop_reserves(s, row)
    if tail:
        commit(s, &row, &computed, 1)
    release(s, row, tail, ahead, back, &end if back or mark else NULL)
    chain = <object> s.rows[row].chain
    s.rows[row].chain = NULL
    Py_DECREF(chain)
    if not mark or end.tip < 0:
        return None
    return end.tip, s.tree.births[end.tip], end.begun, end.ended
