# Owns: shadows: early copies of idle pages in colder tiers, so that evicting them later moves nothing.
# Does not know: who asked; callers have made sure that the log has room for the moves.


cdef inline bint has_shadow(Pool *g, Page *page) noexcept nogil:
    """Whether a page has more than its copy on tier 0."""
    cdef int32_t u
    for u in range(1, g.num_tiers):
        if page.slot[u] >= 0:
            return True
    return False


cdef int32_t empty_below(Pool *g, int32_t *tier) noexcept nogil:
    """The first empty slot of the first colder tier that has one, or -1."""
    cdef Order *o
    cdef int32_t u, slot
    for u in range(1, g.num_tiers):
        o = g.tiers + u
        if o.num_empty:
            slot = o.slots[o.size + g.empty_class].next
            while o.slots[slot].page >= 0:
                slot = o.slots[slot].next
            tier[0] = u
            return slot
    return -1


cdef bint offload_list(State *s, Pool *g, int32_t kind, int32_t limit, int32_t *done) noexcept nogil:
    """Early copies of the pages of one list; False: enough, or no room."""
    cdef Order *o = g.tiers
    cdef int32_t slot = o.slots[o.size + kind].next, p, u = 0, room
    cdef Page *page
    while slot < o.size:
        p = o.slots[slot].page
        page = page_at(g, p)
        if p >= 0 and claims_of(page) == 0 and priority_of(page) >= s.offload_min and not has_shadow(g, page):
            room = empty_below(g, &u) if done[0] < limit else -1
            if room < 0:
                return False
            unlist_empty(g, u, room)
            log_copy(s, g, OFFLOAD, p, 0, slot, u, room)
            put_copy(g, p, u, room)
            list_shadow(g, u, page)
            g.counters[OFFLOADED] += 1
            done[0] += 1
        slot = o.slots[slot].next
    return True


cdef int32_t offload(State *s, Pool *g, int32_t limit) noexcept nogil:
    """Early copies: shadows, in empty slots, of up to `limit` idle pages in the order of their eviction."""
    cdef int32_t kind, i, first, done = 0
    for kind in range(FIRST, NUM_CLASSES):
        if g.cells == NULL or kind == COVERED:
            if not offload_list(s, g, kind, limit, &done):
                return done
        elif g.cells.level_of[kind - FIRST] >= 0:
            first = NUM_CLASSES + g.cells.level_of[kind - FIRST] * NUM_LISTS
            for i in range(NUM_LISTS):
                if not offload_list(s, g, first + g.cells.list_at[i], limit, &done):
                    return done
    return done
