# Owns: background copies: into the slow tier ahead of an eviction, and up from it ahead of a claim. Until a copy has
# landed, its target has no owner, its source stays where it is and the page is unchanged.
# Does not know: who asks, who waits.


cdef void begin_copy(State *s, Pool *g, int32_t p, int kind, int32_t source, int32_t target, int32_t slot,
                     int32_t *move) noexcept nogil:
    """A page is read from a tier into a taken slot of another; the move."""
    cdef Page *page = page_at(g, p)
    claim_page(g, p)
    keep_page(g, p)
    g.stays[p] |= COPYING
    move[0], move[1], move[2], move[3], move[4], move[5] = kind, g.index, source, page.slot[source], target, slot
    move[6], move[7], move[8], move[9], move[10] = s.block_size, p, page.stamp, -1, -1


cdef int32_t source_tier(State *s, Pool *g, Page *page) noexcept nogil:
    """Where a page is read: the coldest copy that no plan of a step may still fail to write, else the hottest."""
    cdef int32_t t
    if s.inherit:
        for t in range(g.slow - 1, 0, -1):
            if page.slot[t] >= 0:
                return t
    return hottest(g, page)


cdef int32_t slow_room(State *s, Pool *g, int32_t p) noexcept nogil:
    """A slot of the slow tier for a page: empty, or of an idle page that shall make way; no shadow is given up for it.
    -1: there is none."""
    cdef int32_t slot = pick_unshadowed(g, g.slow)
    if slot < 0:
        return -1
    if g.tiers[g.slow].slots[slot].page < 0:
        unlist_empty(g, g.slow, slot)
        return slot
    if is_outranked(g, p, g.slow, slot):
        return -1
    evict_copy(s, g, g.slow, slot)
    return slot


cdef bint copy_list(State *s, Pool *g, int32_t t, int32_t kind, int32_t limit, int32_t *moves,
                    int32_t *done) noexcept nogil:
    """Copies of the pages of one list of a tier, back to front; False: enough, or no room."""
    cdef Order *o = g.tiers + t
    cdef int32_t slot = o.slots[o.size + kind].prev, p, room
    while slot < o.size:
        p = o.slots[slot].page
        if (p >= 0 and is_mine(g, p) and page_at(g, p).slot[g.slow] < 0 and not is_copying(g, p) and is_worth_copying(s, g, p)
                and not is_pending(&s.log, g.index, p)):   # a snapshot that was just committed waits for the next plan
            room = slow_room(s, g, p) if done[0] < limit else -1
            if room < 0:
                return False
            begin_copy(s, g, p, OFFLOAD, source_tier(s, g, page_at(g, p)), g.slow, room, moves + MOVE_WIDTH * done[0])
            done[0] += 1
        slot = o.slots[slot].prev
    return True


cdef bint copy_cells(State *s, Pool *g, int32_t t, int32_t limit, int32_t *moves, int32_t *done) noexcept nogil:
    """The same for a whole tier in the adaptive order, from its end."""
    cdef int32_t priority, i, first
    if not copy_list(s, g, t, COVERED, limit, moves, done):
        return False
    for priority in range(MAX_PRIORITY, -1, -1):
        if g.cells.level_of[priority] < 0:
            continue
        first = NUM_CLASSES + g.cells.level_of[priority] * NUM_LISTS
        for i in range(NUM_LISTS - 1, -1, -1):
            if not copy_list(s, g, t, first + g.cells.list_at[i], limit, moves, done):
                return False
    return True


cdef bint copy_tier(State *s, Pool *g, int32_t t, int32_t limit, int32_t *moves, int32_t *done) noexcept nogil:
    """Copies of a tier's idle pages, the last to be evicted first; False: enough, or no room."""
    cdef int32_t kind
    if g.cells != NULL:
        return copy_cells(s, g, t, limit, moves, done)
    for kind in range(COVERED - 1, FIRST - 1, -1):
        if not copy_list(s, g, t, kind, limit, moves, done):
            return False
    return True


cdef object copy_down(State *s, Pool *g, int64_t limit):
    """Begin to copy idle pages into the slow tier: the coldest tier first, and in each the pages to be evicted last."""
    cdef int64_t most = 0
    cdef int32_t t, done = 0
    for t in range(g.slow):
        most += g.tiers[t].num_idle
    most = min(most, max(<int64_t> 0, limit))
    moves = np.empty((most, MOVE_WIDTH), np.int32)
    if most:
        for t in range(g.slow - 1, -1, -1):
            if not copy_tier(s, g, t, <int32_t> most, <int32_t *> memory_of(moves), &done):
                break
    return moves[:done]


cdef object bring_up(State *s, Pool *g, pages):
    """Begin to bring pages that are in the slow tier only up to the next faster one; its slots were counted. Those under
    way already, and those that have come since, are left out."""
    cdef Py_buffer view
    cdef Py_ssize_t i, n = borrow(&view, pages, 4, b"il", "pages")
    cdef int32_t p, slot, done = 0
    cdef const int32_t *names = <const int32_t *> view.buf
    moves = np.empty((n, MOVE_WIDTH), np.int32)
    try:
        for i in range(n):
            check_page(s, g.index, names[i])
        for i in range(n):
            p = names[i]
            if hottest(g, page_at(g, p)) != g.slow or is_copying(g, p):
                continue
            slot = take_in(s, g, g.slow - 1)
            expect(slot >= 0, "bring_up")
            begin_copy(s, g, p, ONBOARD, g.slow, g.slow - 1, slot, <int32_t *> memory_of(moves) + MOVE_WIDTH * done)
            done += 1
    finally:
        PyBuffer_Release(&view)
    return moves[:done]


cdef void arrive(State *s, Pool *g, int32_t p, int32_t t, int32_t slot) noexcept nogil:
    """An idle page of the slow tier has a faster copy from now on; the slow one is its shadow."""
    cdef Page *page = page_at(g, p)
    unlist_idle(g, g.slow, page)
    put_copy(g, p, t, slot)
    list_shadow(g, g.slow, page)
    list_idle(g, t, page, UNKNOWN)
    log_page(s, g, page, MOVED, g.slow, t)
    note_move(g, p, g.slow, t)
    g.counters[PREFETCHED] += 1


cdef int land_move(State *s, const int32_t *move, bint failed) except -1:
    """A background copy has been made, or has failed: its slot is a copy of the page, or empty again."""
    cdef Pool *g = check_page(s, move[1], move[7])
    cdef int32_t t = move[4], slot = move[5], p = move[7]
    cdef Page *page = page_at(g, p)
    if page.stamp != move[8] or not is_copying(g, p):
        raise BrokenInvariant(f"page {p} of group {g.index} is not being copied from slot {move[3]}")
    g.stays[p] &= ~COPYING
    if failed or page.node < 0 or page.slot[t] >= 0:
        list_empty(g, t, slot)
    elif t == g.slow:
        put_copy(g, p, t, slot)
        list_shadow(g, t, page)
        g.counters[COPIED_DOWN] += 1
    else:
        arrive(s, g, p, t, slot)
    unkeep_page(g, p)
    unclaim_page(g, p)
    return 0


cdef int land(State *s, moves, failed) except -1:
    """Background copies have been made, or have failed."""
    cdef Py_buffer view
    cdef Py_ssize_t i, n = borrow(&view, moves, 4, b"il", "moves") // MOVE_WIDTH
    cdef list missed = [bool(one) for one in failed]
    try:
        if len(missed) != n:
            raise ValueError(f"land: {len(missed)} marks for {n} moves")
        for i in range(n):
            land_move(s, <const int32_t *> view.buf + MOVE_WIDTH * i, missed[i])
    finally:
        PyBuffer_Release(&view)
    return 0
