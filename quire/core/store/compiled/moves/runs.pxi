# Owns: slots for the pages of one call, many at a time: what evicting them touches is fetched together, and what an
# order and its counts lose is taken off once. Each page is then evicted where its slot is used, so that all happens in
# the same order as with slots taken one by one.
# Does not know: whose pages are made; callers have made sure that something is available and that the log has room.


cdef void cut_list(Order *o, const int32_t *slots, int32_t count, int32_t kind) noexcept nogil:
    """Take slots that follow each other out of their class, the first of them being where its cursor is."""
    cdef int32_t before = o.slots[slots[0]].prev, after = o.slots[slots[count - 1]].next, i
    for i in range(count):
        o.slots[slots[i]].prev = -1
    o.slots[before].next, o.slots[after].prev, o.cursor[kind] = after, before, after
    if before == after:
        o.filled[kind >> 6] &= ~(<uint64_t> 1 << (kind & 63))


cdef inline bint is_filled(Order *o, int32_t slot) noexcept nogil:
    return 0 <= slot < o.size and o.slots[slot].page >= 0


cdef int32_t find_pairs(Pool *g, int32_t wanted, int32_t *rooms) noexcept nogil:
    """Of a device and a host, what goes next and follows each other in one class of each tier: slots of both, and the
    host's pages. How many pairs, up to the first page that must stay, or is on the device and has a copy below."""
    cdef Order *o = g.tiers
    cdef Order *below = g.tiers + 1
    cdef int32_t slot = pick(g, 0), room = pick(g, 1), count = 0, i
    cdef Page *page
    cdef Page *dropped
    while count < wanted and is_filled(o, slot) and is_filled(below, room):
        g.run[count], rooms[count], g.dropped[count] = slot, room, below.slots[room].page
        prefetch(page_at(g, o.slots[slot].page))
        prefetch(page_at(g, g.dropped[count]))
        prefetch(g.stays + g.dropped[count])
        slot, room = o.slots[slot].next, below.slots[room].next
        count += 1
    for i in range(count):
        page, dropped = page_at(g, o.slots[g.run[i]].page), page_at(g, g.dropped[i])
        if (claims_of(page) or page.slot[1] >= 0 or claims_of(dropped) or dropped.slot[0] >= 0
                or stays_of(g, g.dropped[i])):
            return i
        prefetch(at(g.tree, dropped.node))
    return count


cdef int32_t cut_pairs(State *s, Pool *g, int32_t wanted) noexcept nogil:
    """Of a device and a host: take up to `wanted` slots whose pages go down, and as many slots there whose pages are
    dropped for them; how many. None where the next page goes another way."""
    cdef int32_t[MAX_RUN] rooms
    cdef int32_t count = find_pairs(g, wanted, rooms), kind, below, i, p
    if count == 0:
        return 0
    kind = class_of_idle(page_at(g, g.tiers.slots[g.run[0]].page))
    below = class_of_idle(page_at(g, g.dropped[0]))
    if below > kind or (kind - FIRST) >> 1 < s.offload_min:
        return 0
    cut_list(g.tiers, g.run, count, kind)
    cut_list(g.tiers + 1, rooms, count, below)
    for i in range(count):
        p = g.tiers.slots[g.run[i]].page
        bury(s, g, g.dropped[i], EVICTED)
        page_at(g, p).slot[0] = -1
        put_copy(g, p, 1, rooms[i])
        push_back(g.tiers + 1, rooms[i], class_of_idle(page_at(g, p)))
    g.counters[OFFLOADED] += count
    return count


cdef inline int32_t settle_pair(State *s, Pool *g, int32_t slot, int32_t dropped) noexcept nogil:
    """The page that was in a slot of the device has gone down to where one is dropped, or is dropped itself; what is, free
    to be renewed."""
    cdef int32_t p = g.tiers.slots[slot].page
    note_dropped(g.tenure, dropped)
    if p == dropped:
        leave_node(s, g, p, 0)
        return p
    leave_node(s, g, dropped, 1)
    log_copy(s, g, OFFLOAD, p, 0, slot, 1, page_at(g, p).slot[1])
    log_page(s, g, page_at(g, p), MOVED, 0, 1)
    return dropped


cdef inline bint has_pairs(Pool *g) noexcept nogil:
    """Whether what leaves the device goes down to a host, in an order in which nothing is passed."""
    return g.num_tiers == 2 and g.owners == NULL and not g.ranked and not g.overtakes and not g.reads


cdef int32_t cut_all_pairs(State *s, Pool *g, int32_t wanted) noexcept nogil:
    """Slots of the device, and for each the page that is dropped: its own, or that of the host to whose place its own
    goes down. In whichever order; how many."""
    cdef int32_t count = cut_pairs(s, g, wanted) if g.cells == NULL else cut_cell_pairs(s, g, wanted)
    g.tiers.num_idle -= count
    g.room.available -= count
    g.counters[TOTAL] += count
    g.counters[DROPPED] += count
    return count


cdef int32_t take_some(State *s, Pool *g, int32_t t, int32_t wanted, int32_t *pages, int32_t *slots) noexcept nogil:
    """Up to `wanted` slots of any tier, and pages to be renewed in them; how many, 0 when there are none. In the adaptive
    order many at a time where they are full and what they hold goes for good."""
    cdef int32_t count, i, node
    if g.cells == NULL or g.owners != NULL or g.slow >= 0 or t < g.num_tiers - 1 or not is_full_tier(g, t):
        slots[0] = take_in(s, g, t)
        if slots[0] >= 0:
            pages[0] = free_id(g)
        return slots[0] >= 0
    count = cut_cells(s, g, t, wanted, slots)
    for i in range(count):
        pages[i] = g.tiers[t].slots[slots[i]].page
        node = cut_off_below(s, g, pages[i])
        leave_node(s, g, pages[i], t)
        pass_useless(s, g, node)
        note_dropped(g.tenure, pages[i])
    g.counters[DROPPED] += count
    return count


cdef inline bint is_read_beside(Pool *g) noexcept nogil:
    """Whether pages of a window may be of no use when one of another window or a snapshot goes."""
    return g.ranked and g.cells != NULL and g.tree.num_tails > 1


cdef int cut_run(State *s, Pool *g) noexcept nogil:
    """Fill the pool's run with slots for the pages of the present call, at most `to_cut`; -1 when there are none. With
    more tiers than two, or groups, they are taken one by one: an eviction may change the order there. So may one of a
    window or a snapshot, in whichever pool: it leaves others without use."""
    cdef int32_t wanted = <int32_t> min(g.to_cut, <int64_t> MAX_RUN)
    g.run_at = g.run_end = 0
    if g.num_tiers > 1 or g.owners != NULL or g.reads or is_read_beside(g):
        g.num_paired = cut_all_pairs(s, g, wanted) if has_pairs(g) else 0
        g.run_end = g.num_paired
        if g.run_end == 0:
            g.run[0] = take(s, g)
            g.run_end = g.run[0] >= 0
    elif g.cells == NULL or g.tiers.filled[0] & 1:
        g.run_end = cut_slots(s, g, wanted, g.run)
    else:
        g.run_end = cut_cells(s, g, 0, wanted, g.run)
    g.to_cut -= g.run_end
    return 0 if g.run_end else -1


cdef inline int32_t next_in_run(State *s, Pool *g, int32_t *slot) noexcept nogil:
    """The next slot of a run that is not used up, and the page to be made in it: the one dropped for it, whose id would
    be freed and handed out again at once, or a free one."""
    cdef int32_t i = g.run_at, p, node
    slot[0] = g.run[i]
    g.run_at += 1
    if i < g.num_paired:
        return settle_pair(s, g, slot[0], g.dropped[i])
    p = g.tiers.slots[slot[0]].page
    if p >= 0:
        node = cut_off_below(s, g, p)
        leave_node(s, g, p, 0)
        pass_useless(s, g, node)
        g.counters[DROPPED] += 1
        note_dropped(g.tenure, p)
        return p
    return free_id(g)
