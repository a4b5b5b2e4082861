# Owns: how a page comes up to tier 0, by an `exchange` if need be.
# Does not know: who asked; callers have made sure that something is available and that the log has room for the moves.


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
