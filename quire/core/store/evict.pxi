# Owns: how a slot becomes free: take, evict, make room in a colder tier, onboard, early copies.
# Does not know: who asked; callers have made sure that something is available and that the log has room for the moves.

cdef void log_copy(State *s, Pool *g, int kind, int32_t p, int32_t t, int32_t from_, int32_t u,
                   int32_t to) noexcept nogil:
    """A whole page moves: (t, from_) -> (u, to)."""
    cdef int32_t *move = log_move(&s.log, kind, g.index)
    move[0], move[1], move[2], move[3], move[4] = t, from_, u, to, s.block_size
    move[5], move[6] = p, page_at(g, p).stamp


cdef void offload_to(State *s, Pool *g, int32_t p, int32_t t, int32_t slot, int32_t u, int32_t room) noexcept nogil:
    """An idle page that has just lost (t, slot), its only copy, goes on at (u, room)."""
    log_copy(s, g, OFFLOAD, p, t, slot, u, room)
    put_copy(g, p, u, room)
    list_idle(g, u, page_at(g, p))
    log_page(s, g, page_at(g, p), MOVED, t, u)
    g.counters[OFFLOADED] += 1


cdef inline void lift(Pool *g, int32_t t, int32_t p) noexcept nogil:
    """An idle page loses its hottest copy."""
    cdef Page *page = page_at(g, p)
    unlist_idle(g, t, page)
    g.tiers[t].slots[page.slot[t]].page = -1
    page.slot[t] = -1


cdef void evict_copy(State *s, Pool *g, int32_t t, int32_t slot) noexcept nogil:
    """Free the slot of an idle page's hottest copy: demote to its shadow, else offload, else drop the page."""
    cdef int32_t p = g.tiers[t].slots[slot].page, u, room
    cdef Page *page = page_at(g, p)
    lift(g, t, p)
    u = hottest(g, page)
    if u < g.num_tiers:
        unlist_shadow(g, u, page)
        list_idle(g, u, page)
        log_page(s, g, page, MOVED, t, u)
        g.counters[DEMOTED] += 1
        return
    if priority_of(page) >= s.offload_min:
        for u in range(t + 1, g.num_tiers):
            room = make_room(s, g, u, priority_of(page))
            if room >= 0:
                offload_to(s, g, p, t, slot, u, room)
                return
    drop_page(s, g, p, t)


cdef inline void drop_page(State *s, Pool *g, int32_t p, int32_t tier) noexcept nogil:
    """The last copy of an idle page, in `tier`, is gone."""
    detach(s, g, p, tier)
    push_page(g, p)
    g.counters[DROPPED] += 1


cdef int32_t soft_room(State *s, Pool *g, int32_t u, int32_t slot) noexcept nogil:
    """Take a picked slot if it is empty or a shadow, else -1."""
    cdef int32_t p
    if slot < 0:
        return -1
    p = g.tiers[u].slots[slot].page
    if p < 0:
        unlist_empty(g, u, slot)
        return slot
    if hottest(g, page_at(g, p)) == u:
        return -1
    unlist_shadow(g, u, page_at(g, p))
    page_at(g, p).slot[u] = -1
    g.tiers[u].slots[slot].page = -1
    return slot


cdef int32_t make_room(State *s, Pool *g, int32_t u, int32_t priority) noexcept nogil:
    """A slot of tier u for a page of that priority, unlisted and without page, or -1."""
    cdef int32_t slot = pick(g, u)
    if slot < 0 or soft_room(s, g, u, slot) >= 0:
        return slot
    if priority_of(page_at(g, g.tiers[u].slots[slot].page)) > priority:
        return -1
    evict_copy(s, g, u, slot)
    return slot


cdef int32_t take(State *s, Pool *g) noexcept nogil:
    """A slot of tier 0, unlisted and without page; -1 when there is none."""
    cdef int32_t slot = pick(g, 0)
    if slot < 0:
        return -1
    g.counters[TOTAL] += 1
    if g.tiers.slots[slot].page < 0:
        unlist_empty(g, 0, slot)
        g.counters[NEW] += 1
    else:
        evict_copy(s, g, 0, slot)
    return slot


cdef int cut_run(State *s, Pool *g) noexcept nogil:
    """Fill the pool's run with slots for the pages of the present call, at most `to_cut`; -1 when there are none.
    With colder tiers they are taken one by one: an eviction may change the order."""
    g.run_at = 0
    if g.num_tiers > 1:
        g.run[0] = take(s, g)
        g.run_end = g.run[0] >= 0
    else:
        g.run_end = cut_slots(s, g, <int32_t> min(g.to_cut, MAX_RUN), g.run)
    g.to_cut -= g.run_end
    return 0 if g.run_end else -1


cdef int32_t cut_slots(State *s, Pool *g, int32_t wanted, int32_t *slots) noexcept nogil:
    """Take up to `wanted` slots of a lone tier that follow each other in one class; how many. Pages still in them are
    to be dropped one by one by the caller; what that touches is fetched here: far memory is slow, but comes at once."""
    cdef Order *o = g.tiers
    cdef int32_t slot = pick(g, 0), count = 0, empty = 0, p, kind, before, i
    if slot < 0:
        return 0
    p, before = o.slots[slot].page, o.slots[slot].prev
    kind = g.empty_class if p < 0 else FIRST + priority_of(page_at(g, p))
    if p < 0:
        wanted = min(wanted, MAX_RUN // 4)        # nothing far away to be fetched: what is near is used at once
    while count < wanted and slot < o.size:
        p = o.slots[slot].page
        if p < 0:
            empty += 1
        elif claims_of(page_at(g, p)):
            break
        else:
            prefetch(at(&s.tree, page_at(g, p).node))
        slots[count] = slot
        count += 1
        o.slots[slot].prev = -1
        slot = o.slots[slot].next
    o.slots[before].next, o.slots[slot].prev, o.cursor[kind] = slot, before, slot
    if before == slot:
        o.filled[kind >> 6] &= ~(<uint64_t> 1 << (kind & 63))
    for i in range(count if count > empty else 0):
        p = o.slots[slots[i]].page
        if p >= 0:
            prefetch(s.tree.index + (at(&s.tree, page_at(g, p).node).key & s.tree.mask))
    o.num_empty -= empty
    o.num_idle -= count - empty
    g.available -= count
    g.counters[TOTAL] += count
    g.counters[NEW] += empty
    return count


cdef void exchange(State *s, Pool *g, int32_t p, int32_t t, int32_t slot) noexcept nogil:
    """A held page at tier t and the idle page at tier 0's `slot` change places."""
    cdef int32_t other = g.tiers[0].slots[slot].page, cold = page_at(g, p).slot[t]
    cdef int32_t *move = log_move(&s.log, EXCHANGE, g.index)
    move[0], move[1], move[2], move[3], move[4] = 0, slot, t, cold, s.block_size
    move[5], move[6], move[7], move[8] = p, page_at(g, p).stamp, other, page_at(g, other).stamp
    lift(g, 0, other)
    page_at(g, p).slot[t] = -1
    put_copy(g, other, t, cold)
    list_idle(g, t, page_at(g, other))
    put_copy(g, p, 0, slot)
    log_page(s, g, page_at(g, other), MOVED, 0, t)
    log_page(s, g, page_at(g, p), MOVED, t, 0)
    g.counters[OFFLOADED] += 1
    g.counters[ONBOARDED] += 1


cdef bint clear_slot(State *s, Pool *g, int32_t slot) noexcept nogil:
    """Free a picked slot of tier 0 without displacing idle pages below; False: only an exchange will do."""
    cdef int32_t p = g.tiers[0].slots[slot].page, u, room
    cdef Page *page = page_at(g, p)
    if priority_of(page) < s.offload_min or has_shadow(g, page):
        evict_copy(s, g, 0, slot)
        return True
    for u in range(1, g.num_tiers):
        room = soft_room(s, g, u, pick(g, u))
        if room >= 0:
            lift(g, 0, p)
            offload_to(s, g, p, 0, slot, u, room)
            return True
    return False


cdef inline bint has_shadow(Pool *g, Page *page) noexcept nogil:
    """Whether a page has more than its copy on tier 0."""
    cdef int32_t u
    for u in range(1, g.num_tiers):
        if page.slot[u] >= 0:
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
        exchange(s, g, p, t, slot)
        return 0
    log_copy(s, g, ONBOARD, p, t, cold, 0, slot)
    put_copy(g, p, 0, slot)
    log_page(s, g, page_at(g, p), MOVED, t, 0)
    g.counters[ONBOARDED] += 1
    if s.shadows:
        list_shadow(g, t, page_at(g, p))
    else:
        page_at(g, p).slot[t] = -1
        list_empty(g, t, cold)
    return 0


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


cdef int32_t offload(State *s, Pool *g, int32_t limit) noexcept nogil:
    """Early copies: shadows, in empty slots, of up to `limit` idle pages in the order of their eviction."""
    cdef Order *o = g.tiers
    cdef int32_t kind, slot, p, u = 0, room, done = 0
    cdef Page *page
    for kind in range(FIRST, NUM_CLASSES):
        slot = o.slots[o.size + kind].next
        while slot < o.size:
            p = o.slots[slot].page
            page = page_at(g, p)
            if p >= 0 and claims_of(page) == 0 and priority_of(page) >= s.offload_min and not has_shadow(g, page):
                room = empty_below(g, &u) if done < limit else -1
                if room < 0:
                    return done
                unlist_empty(g, u, room)
                log_copy(s, g, OFFLOAD, p, 0, slot, u, room)
                put_copy(g, p, u, room)
                list_shadow(g, u, page)
                g.counters[OFFLOADED] += 1
                done += 1
            slot = o.slots[slot].next
    return done
