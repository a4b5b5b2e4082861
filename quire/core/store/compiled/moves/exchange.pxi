# Owns: the exchange: full on both sides, a page comes up to tier 0 into the slot of one that goes down into its own.
# Does not know: when there is no other way (`onboard`); callers have made sure that the log has room for the move.


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
