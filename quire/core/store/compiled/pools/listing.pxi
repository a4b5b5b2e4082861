# Owns: where each slot of a group is listed, and which is taken next: what an order is told of a page, and asked. In the
# adaptive order a parent does not go before its child, in a group that needs all blocks.
# Does not know: the tree beyond a page's node and what points say, who holds a page, rows; how an order ranks.

cdef inline bint is_near(Pool *g, int32_t p) noexcept nogil:
    """Whether there is a page, and a copy of it outside the slow tier."""
    return p >= 0 and (g.slow < 0 or hottest(g, page_at(g, p)) != g.slow)


cdef inline void list_empty(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    g.tiers[t].slots[slot].page = -1
    push_back(g.tiers + t, slot, g.empty_class)
    g.tiers[t].num_empty += 1
    if t == 0:
        g.room.available += 1


cdef inline void unlist_empty(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    unlist(g.tiers + t, slot, g.empty_class)
    g.tiers[t].num_empty -= 1
    if t == 0:
        g.room.available -= 1


cdef inline bint has_any(const int32_t *kids, int32_t t) noexcept nogil:
    """Whether there are children in that tier or a hotter one."""
    cdef int32_t u
    for u in range(t + 1):
        if kids[u]:
            return True
    return False


cdef inline bint has_child(Pool *g, Page *page, int32_t t) noexcept nogil:
    """Whether a child of the page's block is in that tier or a hotter one, and would be of no use without it."""
    if not g.leaves_only or page.node < 0:
        return False
    return has_any(kids_at(g.tree, page.node, g.index), t)


cdef inline bint passes(Pool *g, Page *page) noexcept nogil:
    """Whether a page of the tree is passed now, or unwanted."""
    if page.claimed & UNWANTED:
        return True
    return (g.overtakes or g.reads or g.ranked) and is_passed_over(g, page)


cdef bint is_passed_over(Pool *g, Page *page) noexcept nogil:
    """Whether it is passed. Apart: most groups have neither a window nor snapshots."""
    if g.overtakes:
        return is_overtaken(g.tree, page.node, g.index)
    if g.reads:
        return is_cut_off(g.tree, page.node)
    return g.ranked and is_passed(g.tree, page.node, g.tail, g.sink)


cdef void set_passed(Pool *g, Page *page, int32_t known) noexcept nogil:
    """Apart: most groups have neither a window nor snapshots."""
    page.claimed |= NEEDED
    if known == IS_PASSED or page.claimed & UNWANTED or (known == UNKNOWN and passes(g, page)):
        page.claimed -= NEEDED


cdef inline void list_above(Pool *g, int32_t t, Page *page, bint covered, bint released) noexcept nogil:
    """`list_adaptive` of a page whose children have come or gone, perhaps: if none needs it, it may be cut off."""
    if g.reads and not covered:
        set_passed(g, page, UNKNOWN)
    list_adaptive(g, t, page, covered, released)


cdef inline void enter_idle(Pool *g, int32_t t, Page *page, int32_t known) noexcept nogil:
    """The hottest copy of an idle page goes to the back of its class; what is counted is the caller's."""
    if g.ranked or g.overtakes or page.claimed & UNWANTED:
        set_passed(g, page, known)
    if g.cells == NULL:
        push_back(g.tiers + t, page.slot[t], class_of_idle(page))
    else:
        list_above(g, t, page, has_child(g, page, t), False)


cdef inline void leave_idle(Pool *g, int32_t t, Page *page) noexcept nogil:
    """And out of it."""
    if g.cells == NULL:
        unlist(g.tiers + t, page.slot[t], class_of_idle(page))
    else:
        unlist_adaptive(g, t, page)


cdef inline void list_idle(Pool *g, int32_t t, Page *page, int32_t known) noexcept nogil:
    """A page has become idle; `known`: what is, of its place."""
    if known == IS_COVERED:
        list_covered(g, t, page)
    else:
        enter_idle(g, t, page, known)
    g.tiers[t].num_idle += 1
    if t == 0 and claims_of(page) == 0:
        g.room.available += 1


cdef inline void unlist_idle(Pool *g, int32_t t, Page *page) noexcept nogil:
    leave_idle(g, t, page)
    g.tiers[t].num_idle -= 1
    if t == 0 and claims_of(page) == 0:
        g.room.available -= 1


cdef inline void list_shadow(Pool *g, int32_t t, Page *page) noexcept nogil:
    push_back(g.tiers + t, page.slot[t], SHADOW)
    g.tiers[t].num_shadow += 1


cdef inline void unlist_shadow(Pool *g, int32_t t, Page *page) noexcept nogil:
    unlist(g.tiers + t, page.slot[t], SHADOW)
    g.tiers[t].num_shadow -= 1


cdef inline void relist(Pool *g, int32_t t, Page *page) noexcept nogil:
    """An idle page goes to the back of the class in which it belongs now."""
    leave_idle(g, t, page)
    enter_idle(g, t, page, UNKNOWN)


cdef void rank_anew(Pool *g, int32_t p) noexcept nogil:
    """An idle page joins another class if it is passed now, or is not any more."""
    cdef Page *page = page_at(g, p)
    if page.holders == 0 and passes(g, page) == (page.claimed & NEEDED != 0):
        relist(g, hottest(g, page), page)


cdef void cut_off(Pool *g, int32_t p) noexcept nogil:
    """No request can resume at the end of a page's block any more: unless needed, the page goes before others."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t
    if page.holders or memory_at(g.cells, p).kind == IN_COVERED or page.claimed & NEEDED == 0:
        return
    t = hottest(g, page)
    if t < g.num_tiers:       # else it is on its way somewhere
        relist(g, t, page)


cdef void pass_over(Pool *g, int32_t p) noexcept nogil:
    """No request can use a window's page, wherever it begins: until looked at anew, it goes before others."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t = hottest(g, page)
    if page.holders == 0 and page.claimed & NEEDED and t < g.num_tiers:     # else it is on its way somewhere
        leave_idle(g, t, page)
        enter_idle(g, t, page, IS_PASSED)


cdef void look_at_parent(Pool *g, int32_t p) noexcept nogil:
    """A child of an idle page has come or gone: it may belong in another class now."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t = hottest(g, page)
    cdef bint covered
    if t == g.num_tiers:
        return                # it is on its way somewhere
    covered = has_child(g, page, t)
    if (memory_at(g.cells, p).kind == IN_COVERED) != covered:
        unlist_adaptive(g, t, page)
        list_above(g, t, page, covered, not covered)


cdef inline void child_moved(Pool *g, int32_t node, int32_t source, int32_t target) noexcept nogil:
    """The page of a node went from one tier to another (-1: it was not there, is not any more)."""
    cdef int32_t parent = at(g.tree, node).parent, p
    cdef int32_t *kids
    if not g.leaves_only or at(g.tree, parent).flags & ROOT:
        return
    kids = kids_at(g.tree, parent, g.index)
    if source >= 0:
        kids[source] -= 1
    if target >= 0:
        kids[target] += 1
    p = at(g.tree, parent).page[g.index]
    if p >= 0 and page_at(g, p).holders == 0:
        look_at_parent(g, p)


cdef inline bint holds_off(Pool *g, int32_t q, int32_t kind, int32_t p, int32_t u) noexcept nogil:
    """In the adaptive order: whether idle page q, in the list `kind` of a colder tier, shall stay rather than p come."""
    if kind == COVERED or has_child(g, page_at(g, p), u):
        return kind == COVERED
    return outranks_cell(g, q, kind, p, passes(g, page_at(g, p)))


cdef bint is_outranked(Pool *g, int32_t p, int32_t u, int32_t slot) noexcept nogil:
    """Whether the idle page listed in a slot of a colder tier shall stay there rather than page p come."""
    cdef int32_t q = g.tiers[u].slots[slot].page
    cdef Page *page = page_at(g, p)
    if g.cells != NULL:
        return holds_off(g, q, kind_of(g, page_at(g, q)), p, u)
    return outranks_class(page_at(g, q), page, passes(g, page))


cdef inline int32_t pick(Pool *g, int32_t t) noexcept nogil:
    """The slot to take next, or -1: classes ascending, front to back, no claimed pages (but shadows of them)."""
    cdef Order *o = g.tiers + t
    if o.filled[0] & 1:       # EMPTY
        return o.cursor[EMPTY]
    return pick_page(g, o, True) if g.cells == NULL else pick_adaptive(g, o, True)


cdef int32_t pick_unshadowed(Pool *g, int32_t t) noexcept nogil:
    """The same, but no shadow."""
    cdef Order *o = g.tiers + t
    if o.filled[0] & 1:
        return o.cursor[EMPTY]
    return pick_page(g, o, False) if g.cells == NULL else pick_adaptive(g, o, False)
