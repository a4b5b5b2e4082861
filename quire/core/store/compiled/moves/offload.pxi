# Owns: shadows: early copies in a colder tier, so that evicting their pages later moves nothing; which pages get one, and
# where. Which pages an eviction sends down is in `evict`; the slow tier has its own copies (`background`).
# Does not know: who asked; callers have made sure that the log has room for the moves.


cdef inline int32_t num_fast(Pool *g) noexcept nogil:
    """Tiers that plans of steps read and write."""
    return g.num_tiers if g.slow < 0 else g.slow


cdef void log_copy(State *s, Pool *g, int kind, int32_t p, int32_t t, int32_t from_, int32_t u,
                   int32_t to) noexcept nogil:
    """A whole page moves: (t, from_) -> (u, to)."""
    cdef int32_t *move = log_move(&s.log, kind, g.index)
    move[0], move[1], move[2], move[3], move[4] = t, from_, u, to, s.block_size
    move[5], move[6] = p, page_at(g, p).stamp


cdef inline bint has_shadow(Pool *g, Page *page) noexcept nogil:
    """Whether a page has more than its copy on tier 0, the slow tier aside."""
    cdef int32_t u
    for u in range(1, num_fast(g)):
        if page.slot[u] >= 0:
            return True
    return False


cdef int32_t empty_below(Pool *g, int32_t *tier) noexcept nogil:
    """The first empty slot of the first colder tier that has one, or -1."""
    cdef Order *o
    cdef int32_t u, slot
    for u in range(1, num_fast(g)):
        o = g.tiers + u
        if o.num_empty:
            slot = o.slots[o.size + g.empty_class].next
            while o.slots[slot].page >= 0:
                slot = o.slots[slot].next
            tier[0] = u
            return slot
    return -1


cdef bint is_early(State *s, Pool *g, Page *page) noexcept nogil:
    """Whether a page may be copied down early."""
    if claims_of(page) or priority_of(page) < s.offload_min or has_shadow(g, page):
        return False
    return g.cells == NULL or memory_behind(g, page).uses >= s.min_uses


cdef bint offload_list(State *s, Pool *g, int32_t kind, int32_t limit, int32_t *done) noexcept nogil:
    """Early copies of the pages of one list, front to back, in the adaptive order back to front; False: enough, or no
    room."""
    cdef Order *o = g.tiers
    cdef int32_t end = o.size + kind, slot = o.slots[end].next if g.cells == NULL else o.slots[end].prev, p, u = 0, room
    while slot < o.size:
        p = o.slots[slot].page
        if p >= 0 and is_mine(g, p) and is_early(s, g, page_at(g, p)):
            room = empty_below(g, &u) if done[0] < limit else -1
            if room < 0:
                return False
            unlist_empty(g, u, room)
            log_copy(s, g, OFFLOAD, p, 0, slot, u, room)
            put_copy(g, p, u, room)
            list_shadow(g, u, page_at(g, p))
            g.counters[OFFLOADED] += 1
            done[0] += 1
        slot = o.slots[slot].next if g.cells == NULL else o.slots[slot].prev
    return True


cdef void offload_cells(State *s, Pool *g, int32_t limit, int32_t *done) noexcept nogil:
    """Early copies in the adaptive order, from its end."""
    cdef int32_t priority, i, first
    if not offload_list(s, g, COVERED, limit, done):
        return
    for priority in range(MAX_PRIORITY, -1, -1):
        if g.cells.level_of[priority] < 0:
            continue
        first = NUM_CLASSES + g.cells.level_of[priority] * NUM_LISTS
        for i in range(NUM_LISTS - 1, -1, -1):
            if not offload_list(s, g, first + g.cells.list_at[i], limit, done):
                return


cdef int32_t offload(State *s, Pool *g, int32_t limit) noexcept nogil:
    """Early copies: shadows, in empty slots, of up to `limit` idle pages, the next victims; in the adaptive order,
    which knows what is worth most, of those that go last and were used often enough."""
    cdef int32_t kind, done = 0
    if g.cells != NULL:
        offload_cells(s, g, limit, &done)
        return done
    for kind in range(FIRST, COVERED):
        if not offload_list(s, g, kind, limit, &done):
            break
    return done
