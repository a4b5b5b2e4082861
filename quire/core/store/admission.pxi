# Owns: claim and unclaim, seat (a claimed hit becomes holds of a row), settle (the row gets all its pages on tier 0).
# Does not know: budgets and batches; the caller has counted.

cdef inline bint is_needed(int32_t block, int32_t sink, int32_t tail) noexcept nogil:
    return block < sink or block >= tail


cdef bint has_pages(State *s, Path *path) noexcept nogil:
    """Whether every page the hit needs is (still) there."""
    cdef int32_t i, b, sink, tail
    for i in range(s.num_groups):
        needed(s.pools + i, path.blocks, &sink, &tail)
        for b in range(path.blocks):
            if is_needed(b, sink, tail) and at(&s.tree, path.nodes[b]).page[i] < 0:
                return False
        if path.source >= 0 and at(&s.tree, path.source).page[i] < 0:
            return False
    return True


cdef inline int32_t node_page(State *s, Pool *g, Path *path, int32_t block) noexcept nogil:
    return at(&s.tree, path.nodes[block]).page[g.index]


cdef void claim_span(State *s, Pool *g, Path *path, int32_t first, int32_t last) noexcept nogil:
    cdef int32_t b, taken = 0
    cdef Page *page
    for b in range(first, last):
        page = page_at(g, node_page(s, g, path, b))
        if page.claimed < ONE_CLAIM and page.holders == 0 and page.slot[0] >= 0:
            taken += 1
        page.claimed += ONE_CLAIM
    g.available -= taken


cdef void claim(State *s, Path *path) noexcept nogil:
    """One claim more on every needed page and on the source's pages."""
    cdef int32_t i, sink, tail
    for i in range(s.num_groups):
        needed(s.pools + i, path.blocks, &sink, &tail)
        claim_span(s, s.pools + i, path, 0, sink)
        claim_span(s, s.pools + i, path, tail, path.blocks)
        if path.source >= 0:
            claim_page(s.pools + i, at(&s.tree, path.source).page[i])
    path.stage = CLAIMED
    s.open_claims += 1


cdef void unclaim(State *s, Path *path) noexcept nogil:
    cdef int32_t i, b, sink, tail
    for i in range(s.num_groups):
        needed(s.pools + i, path.blocks, &sink, &tail)
        for b in range(path.blocks):
            if is_needed(b, sink, tail):
                unclaim_page(s.pools + i, node_page(s, s.pools + i, path, b))
        if path.source >= 0:
            unclaim_page(s.pools + i, at(&s.tree, path.source).page[i])
    path.stage = FOUND
    s.open_claims -= 1


cdef void seat_span(State *s, Pool *g, Path *path, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Claims become holds, written in the row. A claimed page is not available, so holding it does not change that."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t *slots = slots_of(s, g, row)
    cdef int32_t b, p, t, unlisted = 0
    cdef Page *page
    for b in range(first, last):
        p = node_page(s, g, path, b)
        page = page_at(g, p)
        page.claimed -= ONE_CLAIM
        page.holders += 1
        if page.holders == 1:
            if page.slot[0] >= 0:
                unlist(g.tiers, page.slot[0], FIRST + priority_of(page))
                unlisted += 1
            else:
                t = hottest(g, page)
                unlist(g.tiers + t, page.slot[t], FIRST + priority_of(page))
                g.tiers[t].num_idle -= 1
            if g.expiry != NULL:
                g.expiry[p] = -1
        pages[b], slots[b] = p, page.slot[0]
    g.tiers.num_idle -= unlisted


cdef void seat(State *s, Path *path, int32_t row, Text *text, int32_t root, bint keep) noexcept nogil:
    """Make the row live with the hit's full blocks; the source keeps its claim until settle."""
    cdef Row *r = s.rows + row
    cdef int32_t i, sink, tail
    for i in range(s.num_groups):
        needed(s.pools + i, path.blocks, &sink, &tail)
        seat_span(s, s.pools + i, path, row, 0, sink)
        seat_span(s, s.pools + i, path, row, tail, path.blocks)
        s.pools[i].capacity[row] = path.blocks
    r.text, r.root, r.keep, r.tip, r.twins = text, root, keep, -1, 0
    r.priority, r.duration = DEFAULT_PRIORITY, -1
    s.length[row] = <int32_t> text.length
    s.computed[row] = path.blocks * s.block_size + path.matched
    s.committed[row] = path.blocks
    if root >= 0:
        set_tip(s, row, path.nodes[path.blocks - 1] if path.blocks else root)
    s.seats += 1
    path.stage, path.seat, r.seat = SEATED, s.seats, s.seats
    if path.source < 0:
        s.open_claims -= 1


cdef bint may_take_over(State *s, int32_t source) noexcept nogil:
    """An idle leaf nobody else claims need not be copied."""
    cdef int32_t i, p
    if source < 0 or at(&s.tree, source).child >= 0:
        return False
    for i in range(s.num_groups):
        p = at(&s.tree, source).page[i]
        if page_at(s.pools + i, p).holders or claims_of(page_at(s.pools + i, p)) != 1:
            return False
    return True


cdef int64_t slots_wanted(State *s, Pool *g, Path *path, Ask *ask, bint take_over) noexcept nogil:
    """Slots of tier 0 that settling takes: onboardings, the copy, new pages, spares; -1: more than there are."""
    cdef int64_t cold = 0, new = ask.blocks - path.blocks - (path.source >= 0) + ask.spare
    cdef int32_t *pages = pages_of(s, g, ask.row)
    cdef bint back = False    # a copied source that nobody else wants is available right after the copy
    cdef Page *source
    cdef int32_t b
    if g.num_tiers > 1:
        for b in range(path.blocks):
            cold += pages[b] >= 0 and page_at(g, pages[b]).slot[0] < 0
    if path.source >= 0:
        source = page_at(g, at(&s.tree, path.source).page[g.index])
        cold += not take_over or source.slot[0] < 0
        back = not take_over and source.slot[0] >= 0 and source.holders == 0 and claims_of(source) == 1
    return cold + new if cold <= g.available and cold + new <= g.available + back else -1


cdef void reuse_full(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """Count the row's reused pages and give them the retention the request asks for."""
    cdef int32_t *pages = pages_of(s, g, ask.row)
    cdef int32_t b, p, sink, tail
    if g.num_tiers == 1 and ask.priorities == NULL:
        needed(g, path.blocks, &sink, &tail)
        g.counters[REUSED_FULL] += sink + path.blocks - tail
        g.counters[REUSED_FROM] += sink + path.blocks - tail
        return
    for b in range(path.blocks):
        p = pages[b]
        if p < 0:
            continue
        g.counters[REUSED_FULL] += 1
        g.counters[REUSED_FROM + hottest(g, page_at(g, p))] += 1
        if ask.priorities != NULL and ask.priorities[b] >= 0:
            set_priority(s, g, p, ask.priorities[b])
            set_duration(g, p, ask.durations[b] if ask.durations != NULL else -1)


cdef int raise_cold(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """Onboard what is not on tier 0 yet; -1 when nothing is available."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t *slots = slots_of(s, g, row)
    cdef int32_t b, p
    for b in range(path.blocks):
        p = pages[b]
        if p >= 0 and slots[b] < 0:
            if page_at(g, p).slot[0] < 0 and onboard(s, g, p):
                return -1
            slots[b] = page_at(g, p).slot[0]
    return 0


cdef int take_source(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """The source's page becomes the row's own: open, on tier 0, out of the tree; -1 when nothing is available."""
    cdef int32_t p = at(&s.tree, path.source).page[g.index]
    cdef Page *page = page_at(g, p)
    hold_page(g, p)
    page.claimed -= ONE_CLAIM
    if page.slot[0] < 0 and onboard(s, g, p):
        return -1
    detach(s, g, p)
    drop_shadows(g, page, 0)
    put_priority(page, priority_at(ask, path.blocks))
    set_duration(g, p, duration_at(ask, path.blocks))
    set_column(s, g, ask.row, path.blocks, p)
    return 0


cdef int copy_source(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """A new page of the row gets the matched tokens of the source; -1 when nothing is available."""
    cdef int32_t source = at(&s.tree, path.source).page[g.index]
    cdef int32_t p = new_page(s, g, priority_of(page_at(g, source)), duration_of(g, source)), t
    if p < 0:
        return -1
    t = log_part(s, g, source, p, path.matched)
    g.counters[COPIED if t == 0 else ONBOARDED] += 1
    g.counters[COPIED_TOKENS] += path.matched
    unclaim_page(g, source)
    set_column(s, g, ask.row, path.blocks, p)
    return 0


cdef int32_t log_part(State *s, Pool *g, int32_t source, int32_t p, int32_t tokens) noexcept nogil:
    """COPY of the first tokens of a page into page p on tier 0; the tier they come from."""
    cdef int32_t t = hottest(g, page_at(g, source))
    cdef int32_t *move = log_move(&s.log, COPY, g.index)
    move[0], move[1], move[2], move[3] = t, page_at(g, source).slot[t], 0, page_at(g, p).slot[0]
    move[4], move[5], move[6] = tokens, p, page_at(g, p).stamp
    return t


cdef int settle_group(State *s, Pool *g, Path *path, Ask *ask, bint take_over) noexcept nogil:
    """All pages of one group; -1 when nothing is available."""
    cdef int32_t b = path.blocks, p
    reuse_full(s, g, path, ask)
    if g.num_tiers > 1 and raise_cold(s, g, path, ask.row):
        return -1
    if path.source >= 0:
        p = at(&s.tree, path.source).page[g.index]
        g.counters[REUSED_PARTIAL] += 1
        g.counters[REUSED_FROM + hottest(g, page_at(g, p))] += 1
        g.counters[PARTIAL_FROM + hottest(g, page_at(g, p))] += 1
        if take_source(s, g, path, ask) if take_over else copy_source(s, g, path, ask):
            return -1
        b += 1
    g.counters[MISSED] += ask.blocks - b
    g.to_cut = ask.blocks - b
    if fill_columns(s, g, ask.row, b, ask.blocks, ask):
        return -1
    for b in range(ask.spare):
        p = new_page(s, g, ask.priority, ask.duration)
        if p < 0:
            return -1
        add_spare(s, ask.row, g.index, p)
    g.capacity[ask.row] = ask.blocks
    return 0


cdef inline void add_spare(State *s, int32_t row, int32_t group, int32_t p) noexcept nogil:
    cdef Spares *spares = s.spares + row * s.num_groups + group
    spares.pages[spares.count] = p
    spares.count += 1


cdef int settle(State *s, Path *path, Ask *ask) noexcept nogil:
    """Give a seated row its pages, group by group, and count what that took; -1 when nothing is available."""
    cdef bint take_over = may_take_over(s, path.source)
    cdef int64_t[NUM_COUNTERS] before
    cdef int64_t *after
    cdef int32_t i, k
    s.rows[ask.row].priority, s.rows[ask.row].duration = ask.priority, ask.duration
    for i in range(s.num_groups):
        memcpy(before, s.pools[i].counters, sizeof(before))
        if settle_group(s, s.pools + i, path, ask, take_over):
            return -1
        after = s.pools[i].row_counters + <Py_ssize_t> ask.row * NUM_COUNTERS
        for k in range(NUM_COUNTERS):
            after[k] = s.pools[i].counters[k] - before[k]
    path.stage = FOUND
    if path.source >= 0:
        s.open_claims -= 1
    return 0
