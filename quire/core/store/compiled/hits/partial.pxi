# Owns: the block that shares some tokens of the next one: which child of a node is best, and how a row gets its page.
# Does not know: the full blocks before it.

cdef enum:
    MAX_EXAMINED = 64         # children looked at for a partial hit


cdef bint qualifies(State *s, Node *node, int policy, bint *spotless) noexcept nogil:
    """Whether a child may be a partial source; `spotless`: an idle leaf."""
    cdef int32_t i
    spotless[0] = node.child < 0
    for i in range(s.num_groups):
        if not is_near(s.pools + i, node.page[i]):
            return False
        if page_at(s.pools + i, node.page[i]).holders or stays_of(s.pools + i, node.page[i]):
            spotless[0] = False
    return policy == 2 or spotless[0]


cdef uint64_t merit(State *s, Node *node, bint spotless) noexcept nogil:
    """Less is better: idle leaves on tier 0, then the hottest, then the lowest page."""
    cdef uint64_t tier = <uint64_t> hottest(s.pools, page_at(s.pools, node.page[0]))
    return <uint64_t> (not (spotless and tier == 0)) << 40 | tier << 32 | <uint32_t> node.page[0]


cdef int32_t best_partial(State *s, int32_t parent, Query *q, int policy, int32_t *matched) noexcept nogil:
    """Go outward from q's place among the children, the side with the longer common prefix first."""
    cdef Tree *t = &s.tree
    cdef int32_t low_common, high_common, common, node, best = -1, examined
    cdef int32_t low = last_before(t, parent, q, True, &low_common)
    cdef int32_t high = first_after(t, parent, q, False, &high_common)
    cdef uint64_t score, best_score = 0
    cdef bint spotless = False
    cdef Query own
    for examined in range(MAX_EXAMINED):
        common = max(low_common, high_common)
        if common == 0 or (best >= 0 and common < matched[0]):
            break
        node = low if low_common >= high_common else high
        if qualifies(s, at(t, node), policy, &spotless):
            score = merit(s, at(t, node), spotless)
            if best < 0 or score < best_score:
                best, best_score, matched[0] = node, score, common
        own = query_of(t, node)
        if low_common >= high_common:
            low = last_before(t, parent, &own, False, &common)
            low_common = common_with(t, low, q)
        else:
            high = first_after(t, parent, &own, False, &common)
            high_common = common_with(t, high, q)
    return best


cdef int32_t longest_tail(State *s, int32_t parent, Query *q, int policy) noexcept nogil:
    """The longest child that is a prefix of q, or -1; q is cut to it. What lies between such a child and q in
    their order begins with it too, so what q shares with its neighbour bounds all others."""
    cdef int32_t common, node
    cdef bint spotless = False
    while q.size > 0:
        node = last_before(&s.tree, parent, q, True, &common)
        if node < 0:
            break
        if common == at(&s.tree, node).size:
            q.size = common
            if qualifies(s, at(&s.tree, node), policy, &spotless):
                return node
            common -= 1
        q.size = common
    return -1


cdef int32_t nearest_common(Tree *t, int32_t parent, Query *q) noexcept nogil:
    """The most leading tokens that any child shares with a query: one of its neighbours in their order has them."""
    cdef int32_t before, after
    last_before(t, parent, q, True, &before)
    first_after(t, parent, q, False, &after)
    return max(before, after)


cdef bint may_take_over(State *s, Path *path) noexcept nogil:
    """An idle leaf without other claims need not be copied."""
    cdef int32_t i, p, source = source_node(s, path)
    if source < 0 or at(&s.tree, source).child >= 0:
        return False
    for i in range(s.num_groups):
        p = at(&s.tree, source).page[i]
        if page_at(s.pools + i, p).holders or claims_of(page_at(s.pools + i, p)) != 1 or stays_of(s.pools + i, p):
            return False
    return True


cdef inline void put_source(State *s, Pool *g, Path *path, int32_t row, int32_t p) noexcept nogil:
    """What a row has of the source is in its next column, or what is current."""
    if g.current:
        set_current(g, row, p)
    else:
        set_column(s, g, row, path.blocks, p)


cdef int take_source(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """The source's page becomes the row's own: open, on tier 0, out of the tree; -1 when nothing is available."""
    cdef int32_t p = source_page(s, g, path)
    cdef Page *page = page_at(g, p)
    hold_page(g, p)
    page.claimed -= ONE_CLAIM
    use_page(g, p)
    if page.slot[0] < 0 and onboard(s, g, p):
        return -1
    unbury(s, g, page.node)
    detach(s, g, p, 0)
    drop_shadows(g, page, 0)
    put_priority(page, ask.priority if g.current else priority_at(ask, path.blocks))
    set_duration(g, p, ask.duration if g.current else duration_at(ask, path.blocks))
    put_source(s, g, path, ask.row, p)
    return 0


cdef void use_source(Pool *g, int32_t p) noexcept nogil:
    """A page that was copied is used; idle, it waits elsewhere from now on."""
    use_page(g, p)
    if g.cells != NULL and page_at(g, p).holders == 0 and page_at(g, p).node >= 0:
        relist(g, hottest(g, page_at(g, p)), page_at(g, p))


cdef int copy_source(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """A new page of the row gets the matched tokens of the source; -1 when nothing is available."""
    cdef int32_t source = source_page(s, g, path)
    cdef int32_t tokens = s.block_size if g.current else path.matched, p, t
    if g.current:
        p = new_page(s, g, ask.priority, ask.duration)
    else:
        p = new_page(s, g, priority_of(page_at(g, source)), duration_of(g, source))
    if p < 0:
        return -1
    t = log_part(s, g, source, p, tokens)
    g.counters[COPIED if t == 0 else ONBOARDED] += 1
    g.counters[COPIED_TOKENS] += tokens
    use_source(g, source)
    unclaim_page(g, source)
    put_source(s, g, path, ask.row, p)
    return 0
