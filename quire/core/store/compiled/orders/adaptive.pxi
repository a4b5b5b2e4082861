# Owns: the order "adaptive": pages wait in cells (class and age), which are evicted in the learned order; where a page
# waits: by priority, first the passed pages, then its cell; covered pages come last of all.
# Does not know: how the order of cells is learned, why a page is covered.


cdef inline int32_t first_list(Pool *g, Page *page) noexcept nogil:
    """The first list of a page's priority."""
    return NUM_CLASSES + g.cells.level_of[priority_of(page)] * NUM_LISTS


cdef inline int32_t kind_of(Pool *g, Page *page) noexcept nogil:
    """The list that an idle page waits in."""
    cdef int32_t kind = memory_behind(g, page).kind
    return COVERED if kind == IN_COVERED else first_list(g, page) + kind


cdef inline int32_t list_of(Pool *g, Page *page, int32_t p) noexcept nogil:
    """The list in which an idle page belongs that is not covered."""
    cdef int32_t first = first_list(g, page)
    return first + 1 + listed_cell(g.cells, p) if page.claimed & NEEDED else first


cdef void list_adaptive(Pool *g, int32_t t, Page *page, bint covered, bint released) noexcept nogil:
    """An idle page goes to where it belongs; `released`: by its last child."""
    cdef Order *o = g.tiers + t
    cdef int32_t slot = page.slot[t], p = o.slots[slot].page
    cdef int32_t kind = COVERED if covered else list_of(g, page, p)
    memory_at(g.cells, p).kind = <uint16_t> (IN_COVERED if kind == COVERED else kind - first_list(g, page))
    if kind == COVERED:
        push_back(o, slot, COVERED)
    elif released:
        push_released(o, g.cells, slot, kind)
    else:
        push_cell(o, g.cells, slot, kind)


cdef inline void list_covered(Pool *g, int32_t t, Page *page) noexcept nogil:
    """The same of a page that is known to be covered."""
    memory_behind(g, page).kind = IN_COVERED
    push_back(g.tiers + t, page.slot[t], COVERED)


cdef inline void unlist_adaptive(Pool *g, int32_t t, Page *page) noexcept nogil:
    cdef int32_t kind = kind_of(g, page)
    if kind == COVERED:
        unlist(g.tiers + t, page.slot[t], COVERED)
    else:
        unlist_cell(g.tiers + t, g.cells, page.slot[t], kind)


cdef inline bint outranks_cell(Pool *g, int32_t q, int32_t kind, int32_t p, bint passed) noexcept nogil:
    """Whether idle page q in the list `kind` shall stay rather than page p come, which is passed or not; neither is
    covered."""
    cdef int32_t there = priority_of(page_at(g, q)), mine = priority_of(page_at(g, p))
    if there != mine:
        return there > mine
    mine = 0 if passed else 1 + listed_cell(g.cells, p)
    return g.cells.rank_of[(kind - NUM_CLASSES) % NUM_LISTS] > g.cells.rank_of[mine]


cdef int32_t pick_cell(Pool *g, Order *o, Level *level) noexcept nogil:
    """The slot of a priority to take next, or -1."""
    cdef uint64_t bits
    cdef int32_t word, i
    for word in range(LIST_WORDS):
        bits = level.filled[word]
        while bits:
            i = g.cells.list_at[64 * word + lowest_bit(bits)]
            level.cursor[i] = pass_claimed(g, o, level.cursor[i])
            if level.cursor[i] < o.size:
                return level.cursor[i]
            bits &= bits - 1
    return -1


cdef int32_t pick_adaptive(Pool *g, Order *o, bint shadows) noexcept nogil:
    """The slot to take next, or -1, when none is empty: shadows, then cells by priority, then covered pages."""
    cdef uint64_t bits
    cdef int32_t word, kind, slot
    for word in range(CLASS_WORDS):
        bits = o.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            if kind == SHADOW:
                slot = o.cursor[kind] = pass_kept(g, o, o.cursor[kind])
                slot = slot if shadows else -1
            elif kind == COVERED:
                slot = o.cursor[kind] = pass_claimed(g, o, o.cursor[kind])
            else:
                slot = pick_cell(g, o, o.levels + g.cells.level_of[(kind - FIRST) >> 1])
            if 0 <= slot < o.size:
                return slot
            bits &= bits - 1
    return -1
