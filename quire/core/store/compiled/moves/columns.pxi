# Owns: pages in a row's columns: how they come up to tier 0, by an exchange if need be, new ones, and columns that are
# given up.
# Does not know: why; callers have made sure that something is available and that the log has room for the moves.


cdef void exchange(State *s, Pool *g, int32_t p, int32_t t, int32_t slot) noexcept nogil:
    """A held page at tier t and the idle page at tier 0's `slot` change places."""
    cdef int32_t other = g.tiers[0].slots[slot].page, cold = page_at(g, p).slot[t]
    cdef int32_t *move = log_move(&s.log, EXCHANGE, g.index)
    move[0], move[1], move[2], move[3], move[4] = 0, slot, t, cold, s.block_size
    move[5], move[6], move[7], move[8] = p, page_at(g, p).stamp, other, page_at(g, other).stamp
    lift(g, 0, other)
    page_at(g, p).slot[t] = -1
    put_copy(g, other, t, cold)
    list_idle(g, t, page_at(g, other), UNKNOWN)
    put_copy(g, p, 0, slot)
    log_page(s, g, page_at(g, other), MOVED, 0, t)
    log_page(s, g, page_at(g, p), MOVED, t, 0)
    note_move(g, other, 0, t)
    note_move(g, p, t, 0)
    g.counters[OFFLOADED] += 1
    g.counters[ONBOARDED] += 1


cdef bint clear_slot(State *s, Pool *g, int32_t slot) noexcept nogil:
    """Free a picked slot of tier 0 without displacing idle pages below; False: only an exchange will do."""
    cdef int32_t p = g.tiers[0].slots[slot].page, u, room
    cdef Page *page = page_at(g, p)
    g = keeper(s, g, p)
    if priority_of(page) < s.offload_min or has_shadow(g, page):
        evict_copy(s, g, 0, slot)
        return True
    for u in range(1, num_fast(g)):
        room = soft_room(s, g, u, pick(g, u))
        if room >= 0:
            lift(g, 0, p)
            offload_to(s, g, p, 0, slot, u, room)
            return True
    return False


cdef int onboard(State *s, Pool *g, int32_t p) noexcept nogil:
    """Bring a held page up to tier 0; -1 when nothing is available."""
    cdef int32_t t = hottest(g, page_at(g, p)), cold = page_at(g, p).slot[t], slot = pick(g, 0)
    if slot < 0:
        return -1
    g.counters[TOTAL] += 1
    if g.tiers[0].slots[slot].page < 0:
        unlist_empty(g, 0, slot)
        g.counters[NEW] += 1
    elif not clear_slot(s, g, slot):
        if stays_of(g, p) == 0 and is_mine(g, g.tiers[0].slots[slot].page):
            exchange(s, g, p, t, slot)
            return 0
        evict_copy(s, g, 0, slot)     # the page is read below, or a move would be of two groups
    log_copy(s, g, ONBOARD, p, t, cold, 0, slot)
    put_copy(g, p, 0, slot)
    log_page(s, g, page_at(g, p), MOVED, t, 0)
    g.counters[ONBOARDED] += 1
    if s.shadows or stays_of(g, p):
        list_shadow(g, t, page_at(g, p))
    else:
        page_at(g, p).slot[t] = -1
        list_empty(g, t, cold)
    note_move(g, p, t, 0)
    return 0


cdef int fill_columns(State *s, Pool *g, int32_t row, int32_t first, int32_t last, Ask *ask) noexcept nogil:
    """New open pages in [first, last), retained as the ask says, or as all the row grows by (NULL); -1: no slot."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t *slots = slots_of(s, g, row)
    cdef int32_t b, p, slot
    if first < last:
        mark_cell(s, g, row, first, last)
    for b in range(first, last):
        if g.run_at == g.run_end and cut_run(s, g):
            return -1
        p = next_in_run(s, g, &slot)
        if ask == NULL:
            renew_page(g, p, s.rows[row].priority, s.rows[row].duration)
        else:
            renew_page(g, p, priority_at(ask, b), duration_at(ask, b))
        put_copy(g, p, 0, slot)
        pages[b], slots[b] = p, slot
    return 0


cdef int fill_holes(State *s, Pool *g, int32_t row, int32_t first, int32_t last, Ask *ask) noexcept nogil:
    """New pages in the columns of [first, last) that have none, counted in `to_cut`; -1: no slot."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t end
    while first < last:
        end = first + 1
        if pages[first] < 0:
            while end < last and pages[end] < 0:
                end += 1
            if fill_columns(s, g, row, first, end, ask):
                return -1
        first = end
    return 0


cdef inline void clear_column(State *s, Pool *g, int32_t row, int32_t b, int32_t known) noexcept nogil:
    """A column becomes a hole; what was the row's own is not any more. `known`: what is, of its page's place."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t p = pages_of(s, g, row)[b]
    if p < 0:
        return
    set_column(s, g, row, b, -1)
    if stake.kept and b >= stake.base and page_at(g, p).holders > 1:
        keep_more(g, stake, -1)                   # what was set aside for it is used now
    let_go(g, p, s.now, known)
    if b >= stake.base:
        count_own(g, stake, -1)


cdef void clear_columns(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """The columns become holes, last to first."""
    cdef int32_t b
    for b in range(last - 1, first - 1, -1):
        clear_column(s, g, row, b, UNKNOWN)


cdef int32_t drop_ranked(State *s, Pool *g, int32_t row, int32_t keep) noexcept nogil:
    """Let go of the pages of a window from the last column down to `keep`; the number of them."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t b, known, below = -1, steps = 0, dropped = 0
    for b in range(g.capacity[row] - 1, keep - 1, -1):
        if pages[b] < 0:
            continue
        known = UNKNOWN
        if page_at(g, pages[b]).node >= 0:
            known = rank_above(g, page_at(g, pages[b]).node, &below, &steps)
        let_go(g, pages[b], s.now, known)
        dropped += 1
    return dropped


cdef int32_t drop_columns(State *s, Pool *g, int32_t row, int32_t keep) noexcept nogil:
    """Let go of the row's pages from the last column down to `keep`; the number of them."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t b, p, known = UNKNOWN, dropped = 0, columns = g.capacity[row]
    cdef bint covers = g.cells != NULL and g.leaves_only
    cdef Page *page
    if columns <= keep:
        return 0
    if g.ranked:
        dropped, columns = drop_ranked(s, g, row, keep), keep
    for b in range(columns - 1, keep - 1, -1):
        p = pages[b]
        if p < 0:
            known = UNKNOWN
            continue
        let_go(g, p, s.now, known)
        dropped += 1
        if covers:            # so is the one before it
            page = page_at(g, p)
            known = IS_COVERED if page.node >= 0 and page.holders >= 0 and page.slot[0] >= 0 else UNKNOWN
    columns = g.capacity[row]
    mark_cell(s, g, row, keep, columns)
    memset(pages + keep, 0xFF, 4 * (columns - keep))
    memset(slots_of(s, g, row) + keep, 0xFF, 4 * (columns - keep))
    g.capacity[row] = keep
    return dropped
