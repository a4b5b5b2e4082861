# Owns: claim and unclaim, seat (a claimed hit becomes holds of a row).
# Does not know: which blocks a claim is on (the path does), what the row gets besides.


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
    cdef int32_t i
    cdef Run run
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            claim_span(s, s.pools + i, path, run.first, run.last)
        if path.source >= 0:
            claim_page(s.pools + i, at(&s.tree, path.source).page[i])
    path.stage = CLAIMED
    s.open_claims += 1


cdef void unclaim(State *s, Path *path) noexcept nogil:
    cdef int32_t i, b
    cdef Run run
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            for b in range(run.first, run.last):
                unclaim_page(s.pools + i, node_page(s, s.pools + i, path, b))
        if path.source >= 0:
            unclaim_page(s.pools + i, at(&s.tree, path.source).page[i])
    forget_needs(path)
    s.open_claims -= 1


cdef inline void forget_needs(Path *path) noexcept nogil:
    """The hit is as it was before its claim."""
    path.stage = FOUND
    free(path.needs)
    path.needs = NULL


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


cdef inline void seat_stake(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """Where the row's part in a group begins."""
    cdef Stake *stake = stake_of(s, g, row)
    stake.front = 0
    stake.shown = stake.base = path.blocks
    stake.own = stake.peak = stake.kept = stake.reserve = 0
    if g.current:
        stake.front = path.blocks
    elif g.keep >= 0:
        stake.front = max(g.sink, path.blocks - g.tail) if path.needs == NULL else path.needs[g.index].front


cdef void seat(State *s, Path *path, int32_t row, Text *text, int32_t root, bint keep) noexcept nogil:
    """Make the row live with the hit's full blocks; the source keeps its claim until settle."""
    cdef Row *r = s.rows + row
    cdef int32_t i
    cdef Run run
    for i in range(s.num_groups):
        s.pools[i].capacity[row] = path.blocks
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            seat_span(s, s.pools + i, path, row, run.first, run.last)
            s.pools[i].capacity[row] = max(path.blocks, run.last)
        seat_stake(s, s.pools + i, path, row)
    r.text, r.root, r.keep, r.tip, r.twins, r.reached = text, root, keep, -1, 0, 0
    r.ahead = path.needs != NULL
    r.priority, r.duration = DEFAULT_PRIORITY, -1
    s.length[row] = <int32_t> text.length
    s.handed[row] = s.computed[row] = path.blocks * s.block_size + path.matched
    s.committed[row] = path.blocks
    if root >= 0:
        set_tip(s, row, path.nodes[path.blocks - 1] if path.blocks else root)
    set_edge(s, row)
    set_due(s, row)
    s.seats += 1
    path.stage, path.seat, r.seat = SEATED, s.seats, s.seats
    if path.source < 0:
        s.open_claims -= 1


