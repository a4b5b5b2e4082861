# Owns: settle (a seated row gets all its pages on tier 0), extend (and those of a later part of its prompt).
# Does not know: budgets and batches; the caller has counted.


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


cdef int64_t count_holes(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Columns of [first, last) without a page."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int64_t holes = 0
    cdef int32_t b
    for b in range(first, last):
        holes += pages[b] < 0
    return holes


cdef int fill_holes(State *s, Pool *g, int32_t row, int32_t first, int32_t last, Ask *ask) noexcept nogil:
    """New pages in the columns of [first, last) that have none, counted in `to_cut`; -1: no slot."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t end
    while first < last:
        end = first + 1
        if pages[first] < 0:
            while end < last and pages[end] < 0:
                end += 1
            if fill_columns(s, g, row, first, end, ask):
                return -1
        first = end
    return 0


cdef inline bint is_simple(Pool *g, Path *path, Want *want) noexcept nogil:
    """The usual case: the row has the hit's blocks without a hole and gets all that follow."""
    return g.tail < 0 and path.needs == NULL and want.first <= path.blocks + (path.source >= 0)


cdef int64_t count_new(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """New pages of a group, the one of a partial hit aside."""
    cdef Want *want = ask.wants + g.index
    cdef int32_t part = path.source >= 0, sink = min(g.sink, want.first)
    if is_simple(g, path, want):
        return want.stop - path.blocks - part
    part = part and (path.blocks < sink or want.first <= path.blocks < want.stop)
    return count_holes(s, g, ask.row, 0, sink) + count_holes(s, g, ask.row, want.first, want.stop) - part


cdef int64_t slots_wanted(State *s, Pool *g, Path *path, Ask *ask, bint take_over) noexcept nogil:
    """Slots of tier 0 that settling takes: onboardings, copies, new pages, spares; -1: more than there are."""
    cdef int64_t cold = 0, new = count_new(s, g, path, ask) + ask.wants[g.index].spare
    cdef int32_t *pages = pages_of(s, g, ask.row)
    cdef int64_t back = 0     # what has been copied and nobody else wants is available right after the copy
    cdef Page *source
    cdef int32_t b
    cdef Run run = runs_of(path, g)
    if g.current:
        cold, back = 1, copied_back(s, g, path, ask.row)
    elif g.num_tiers > 1:
        while next_run(s, path, g, &run):
            for b in range(run.first, run.last):
                cold += page_at(g, pages[b]).slot[0] < 0
    if path.source >= 0:
        source = page_at(g, at(&s.tree, path.source).page[g.index])
        cold += not take_over or source.slot[0] < 0
        back += not take_over and source.slot[0] >= 0 and source.holders == 0 and claims_of(source) == 1
    return -1 if is_short(g, cold, 0) or is_short(g, cold + new, back) else cold + new


cdef void reuse_full(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """Count the row's reused pages and give them the retention the request asks for."""
    cdef int32_t *pages = pages_of(s, g, ask.row)
    cdef int32_t b, p
    cdef Run run = runs_of(path, g)
    while next_run(s, path, g, &run):
        g.counters[REUSED_FULL] += run.last - run.first
        if g.num_tiers == 1 and ask.priorities == NULL:
            g.counters[REUSED_FROM] += run.last - run.first
            continue
        for b in range(run.first, run.last):
            p = pages[b]
            g.counters[REUSED_FROM + hottest(g, page_at(g, p))] += 1
            if ask.priorities != NULL and b < ask.blocks and ask.priorities[b] >= 0:
                set_priority(s, g, p, ask.priorities[b])
                set_duration(g, p, ask.durations[b] if ask.durations != NULL else -1)


cdef int raise_cold(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """Onboard what is not on tier 0 yet; -1 when nothing is available."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t *slots = slots_of(s, g, row)
    cdef int32_t b, p
    cdef Run run = runs_of(path, g)
    while next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            p = pages[b]
            if slots[b] < 0:
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
    detach(s, g, p, 0)
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
    if t > 0:  # if it cannot be read, the source is no good either
        move[7], move[8] = source, page_at(g, source).stamp
    return t


cdef int settle_group(State *s, Pool *g, Path *path, Ask *ask, bint take_over) noexcept nogil:
    """All pages of one group; -1 when nothing is available."""
    cdef Want *want = ask.wants + g.index
    cdef Stake *stake = stake_of(s, g, ask.row)
    cdef int32_t i, p
    reuse_full(s, g, path, ask)
    if g.current:
        if open_current(s, g, path, ask):
            return -1
    elif g.num_tiers > 1 and raise_cold(s, g, path, ask.row):
        return -1
    if path.source >= 0:
        p = at(&s.tree, path.source).page[g.index]
        g.counters[REUSED_PARTIAL] += 1
        g.counters[REUSED_FROM + hottest(g, page_at(g, p))] += 1
        g.counters[PARTIAL_FROM + hottest(g, page_at(g, p))] += 1
        if take_source(s, g, path, ask) if take_over else copy_source(s, g, path, ask):
            return -1
        stake.own += 1
    if settle_fill(s, g, path, ask):
        return -1
    for i in range(want.spare):
        p = new_page(s, g, ask.priority, ask.duration)
        if p < 0:
            return -1
        add_spare(s, ask.row, g.index, p)
    g.capacity[ask.row] = want.stop if g.current else max(want.stop, end_of(s, path, g))
    set_peak(g, stake, want.peak)
    return 0


cdef int settle_fill(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """New pages of what the row has to compute; -1 when nothing is available."""
    cdef Want *want = ask.wants + g.index
    cdef int32_t first = path.blocks + (path.source >= 0), sink = min(g.sink, want.first)
    cdef bint simple = is_simple(g, path, want)
    g.to_cut = want.stop - first
    if not simple:
        g.to_cut = count_holes(s, g, ask.row, 0, sink) + count_holes(s, g, ask.row, want.first, want.stop)
    g.counters[MISSED] += g.to_cut
    stake_of(s, g, ask.row).own += <int32_t> g.to_cut
    if simple:
        return fill_columns(s, g, ask.row, first, want.stop, ask)
    return fill_holes(s, g, ask.row, 0, sink, ask) or fill_holes(s, g, ask.row, want.first, want.stop, ask)


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
    hand_out(s, ask.row, ask.handed)
    set_due(s, ask.row)
    forget_needs(path)
    if path.source >= 0:
        s.open_claims -= 1
    return 0


cdef bint extend_check(State *s, Ask *ask) noexcept nogil:
    """Count the pages a later part of a prompt takes; False: more than is available to this row."""
    cdef int32_t i
    cdef bint fits = True
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        s.needs[i] = count_holes(s, g, ask.row, ask.wants[i].first, ask.wants[i].stop)
        if is_short(g, s.needs[i], stake_of(s, g, ask.row).reserve):
            fits = False
    return fits


cdef int64_t extend(State *s, Ask *ask) noexcept nogil:
    """Pages for a later part of a prompt, counted before; how many, or -1 when nothing is available."""
    cdef int64_t[NUM_COUNTERS] before
    cdef int64_t *total
    cdef int64_t taken = 0
    cdef Pool *g
    cdef int32_t i, k
    for i in range(s.num_groups):
        g = s.pools + i
        memcpy(before, g.counters, sizeof(before))
        g.to_cut = s.needs[i]
        g.counters[MISSED] += s.needs[i]
        if fill_holes(s, g, ask.row, ask.wants[i].first, ask.wants[i].stop, ask):
            return -1
        g.capacity[ask.row] = max(g.capacity[ask.row], ask.wants[i].stop)
        stake_of(s, g, ask.row).own += <int32_t> s.needs[i]
        set_peak(g, stake_of(s, g, ask.row), ask.wants[i].peak)
        taken += s.needs[i]
        total = g.row_counters + <Py_ssize_t> ask.row * NUM_COUNTERS
        for k in range(NUM_COUNTERS):
            total[k] += g.counters[k] - before[k]
    set_edge(s, ask.row)
    set_due(s, ask.row)
    return taken
