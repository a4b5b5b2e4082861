# Owns: slots, their order and nodes as arrays of small numbers, to be drawn part by part, so that a call is short
# however large the store is.
# Does not know: tokens; what is drawn. Nothing here changes anything.


cdef void slot_facts(Pool *g, int32_t t, int32_t slot, int32_t *facts) noexcept nogil:
    """State, node, holders and uses of what lies in a slot."""
    cdef Slot *place = g.tiers[t].slots + slot
    cdef Page *page
    facts[1], facts[2], facts[3] = -1, 0, -1
    if place.page < 0:
        facts[0] = SLOT_EMPTY if place.prev >= 0 else SLOT_COMING
        return
    page = page_at(g, place.page)
    facts[1], facts[2] = page.node, page.holders
    if g.cells != NULL:
        facts[3] = memory_at(g.cells, place.page).uses
    if hottest(g, page) < t:
        facts[0] = SLOT_SHADOW
    elif place.prev < 0:
        facts[0] = SLOT_OPEN if page.node < 0 else SLOT_HELD
    else:
        facts[0] = SLOT_CLAIMED if claims_of(page) else SLOT_IDLE


cdef object map_slots(Pool *g, int32_t t, int32_t first, int32_t stop):
    """Rows of (state, node, holders, uses), one per slot."""
    cdef int32_t slot
    made = np.empty((stop - first, 4), np.int32)
    cdef int32_t *facts = <int32_t *> memory_of(made)
    with nogil:
        for slot in range(first, stop):
            slot_facts(g, t, slot, facts + 4 * <Py_ssize_t> (slot - first))
    return made


cdef Py_ssize_t add_list(Order *o, int32_t end, int32_t *slots, Py_ssize_t count, Py_ssize_t limit) noexcept nogil:
    """One list, front to back, without empty slots; how many there are then."""
    cdef int32_t slot = o.slots[end].next
    while slot != end and count < limit:
        if o.slots[slot].page >= 0:
            slots[count] = slot
            count += 1
        slot = o.slots[slot].next
    return count


cdef Py_ssize_t add_levels(Order *o, Cells *c, int32_t *slots, Py_ssize_t count, Py_ssize_t limit) noexcept nogil:
    """The lists of each priority, in the order that was learned."""
    cdef int32_t priority, place, first
    for priority in range(MAX_PRIORITY + 1):
        if c.level_of[priority] >= 0:
            first = o.size + NUM_CLASSES + c.level_of[priority] * NUM_LISTS
            for place in range(NUM_LISTS):
                count = add_list(o, first + c.list_at[place], slots, count, limit)
    return count


cdef object map_order(Pool *g, int32_t t, Py_ssize_t limit):
    """Slots in the order in which they would be taken, those with a page only, at most `limit`."""
    cdef Order *o = g.tiers + t
    cdef Py_ssize_t count
    cdef int32_t kind
    made = np.empty(max(0, min(limit, o.num_idle + o.num_shadow)), np.int32)
    limit = made.size
    cdef int32_t *slots = <int32_t *> memory_of(made)
    with nogil:
        count = add_list(o, o.size + SHADOW, slots, 0, limit)
        if g.cells != NULL:
            count = add_levels(o, g.cells, slots, count, limit)
            count = add_list(o, o.size + COVERED, slots, count, limit)
        else:
            for kind in range(FIRST, COVERED):
                count = add_list(o, o.size + kind, slots, count, limit)
    return made[:count]


cdef void node_facts(State *s, int32_t n, int32_t *facts) noexcept nogil:
    """Number, parent, tokens and tips of a node; most holders and uses of its pages."""
    cdef Node *node = at(&s.tree, n)
    cdef Pool *g
    cdef int32_t i
    facts[0], facts[1], facts[2], facts[3] = n, -1 if node.flags & ROOT else node.parent, node.size, node.tips
    facts[4], facts[5] = 0, -1
    for i in range(s.num_groups):
        if node.page[i] >= 0:
            g = s.pools + i
            facts[4] = max(facts[4], page_at(g, node.page[i]).holders)
            if g.cells != NULL:
                facts[5] = max(facts[5], <int32_t> memory_at(g.cells, node.page[i]).uses)


cdef tuple map_nodes(State *s, Py_ssize_t first, Py_ssize_t limit):
    """Rows of (node, parent, tokens, tips, holders, uses) from a number on; and the next number, -1: that was all."""
    cdef Tree *t = &s.tree
    cdef Py_ssize_t stop = min(<Py_ssize_t> t.used, first + limit), n, count = 0
    made = np.empty((max(0, stop - first), 6), np.int32)
    cdef int32_t *facts = <int32_t *> memory_of(made)
    with nogil:
        for n in range(first, stop):
            if at(t, <int32_t> n).size or at(t, <int32_t> n).flags & ROOT:
                node_facts(s, <int32_t> n, facts + 6 * count)
                count += 1
    return made[:count], (-1 if stop >= t.used else stop)
