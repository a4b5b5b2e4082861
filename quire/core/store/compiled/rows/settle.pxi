# Owns: settle: a seated row gets all its pages on tier 0.
# Does not know: budgets and batches; the caller has counted.


cdef inline bint is_simple(Pool *g, Path *path, Want *want) noexcept nogil:
    """The usual case: the row has the hit's blocks without a hole and gets all that follow."""
    return g.tail < 0 and path.needs == NULL and want.first <= path.blocks + (path.source >= 0)


cdef int64_t count_new(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """New pages of a group, the one of a partial hit aside."""
    cdef Want *want = ask.wants + g.index
    cdef int32_t part = path.source >= 0 and not g.current, sink = min(g.sink, want.first)
    if is_simple(g, path, want):
        return want.stop - path.blocks - part
    part = part and (path.blocks < sink or want.first <= path.blocks < want.stop)
    return count_holes(s, g, ask.row, 0, sink) + count_holes(s, g, ask.row, want.first, want.stop) - part


cdef int64_t slots_wanted(State *s, Pool *g, Path *path, Ask *ask, bint take_over) noexcept nogil:
    """Slots of tier 0 that settling takes: onboardings, copies, new pages, spares; -1: more than the groups before it
    leave of its pool."""
    cdef int64_t cold = 0, new = count_new(s, g, path, ask) + ask.wants[g.index].spare
    cdef int32_t *pages = pages_of(s, g, ask.row)
    cdef int64_t back = 0     # a copied page without other users is available right after the copy
    cdef Page *source
    cdef int32_t b
    cdef Run run = runs_of(path, g)
    if g.current and path.source < 0:
        cold, back = 1, copied_back(s, g, path, ask.row)
    elif g.num_tiers > 1:
        while next_run(s, path, g, &run):
            for b in range(run.first, run.last):
                cold += page_at(g, pages[b]).slot[0] < 0
    if path.source >= 0:
        source = page_at(g, source_page(s, g, path))
        cold += not take_over or source.slot[0] < 0
        back += not take_over and source.slot[0] >= 0 and source.holders == 0 and claims_of(source) == 1
    if is_short(g, cold, -g.room.owed) or is_short(g, cold + new, back - g.room.owed):
        return -1
    g.room.owed += cold + new - back
    return cold + new


cdef void count_pending(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """Count the row's reused pages that a step in flight is computing."""
    cdef Run run = runs_of(path, g)
    while next_run(s, path, g, &run):
        g.counters[PENDING] += max(0, min(run.last, path.blocks) - max(run.first, s.committed[row]))


cdef void reuse_full(State *s, Pool *g, Path *path, Ask *ask) noexcept nogil:
    """Count the row's reused pages and give them the retention the request asks for."""
    cdef int32_t *pages = pages_of(s, g, ask.row)
    cdef int32_t b, p
    cdef Run run = runs_of(path, g)
    if path.pending:
        count_pending(s, g, path, ask.row)
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
                mark_cell(s, g, row, b, b + 1)
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


cdef int settle_group(State *s, Pool *g, Path *path, Ask *ask, bint take_over) noexcept nogil:
    """All pages of one group; -1 when nothing is available."""
    cdef Want *want = ask.wants + g.index
    cdef Stake *stake = stake_of(s, g, ask.row)
    cdef int32_t i, p
    teach_prompt(s, g, path, ask)
    teach_reuse(s, g, path, ask.row)
    reuse_full(s, g, path, ask)
    if g.current:
        if path.source < 0 and open_current(s, g, path, ask):
            return -1
    elif g.num_tiers > 1 and raise_cold(s, g, path, ask.row):
        return -1
    if path.source >= 0:
        p = source_page(s, g, path)
        g.counters[REUSED_PARTIAL] += 1
        g.counters[REUSED_FROM + hottest(g, page_at(g, p))] += 1
        g.counters[PARTIAL_FROM + hottest(g, page_at(g, p))] += 1
        if take_source(s, g, path, ask) if take_over else copy_source(s, g, path, ask):
            return -1
        stake.own += not g.current
    if settle_fill(s, g, path, ask):
        return -1
    teach_new(s, g, ask.row)
    for i in range(want.spare):
        p = new_page(s, g, ask.priority, ask.duration)
        if p < 0:
            return -1
        add_spare(s, ask.row, g.index, p)
    g.capacity[ask.row] = want.stop if g.current else max(want.stop, end_of(s, path, g))
    set_peak(g, stake, want.peak)
    return 0


cdef int settle(State *s, Path *path, Ask *ask) noexcept nogil:
    """Give a seated row its pages, group by group, and count what that took; -1 when nothing is available."""
    cdef bint take_over = may_take_over(s, path)
    cdef int32_t i
    s.rows[ask.row].priority, s.rows[ask.row].duration = ask.priority, ask.duration
    count_admission(s)
    s.makes = ask.row
    keep_counters(s)
    for i in range(s.num_groups):
        if settle_group(s, s.pools + i, path, ask, take_over):
            return -1
    add_counters(s, ask.row, True)
    hand_out(s, ask.row, ask.handed)
    set_due(s, ask.row)
    forget_needs(path)
    if path.source >= 0:
        s.open_claims -= 1
    return 0


cdef int spares_reserve(State *s, int32_t row) except -1:
    """Memory for the spare pages that are wanted."""
    cdef Spares *spares
    cdef void *moved
    cdef int32_t i
    for i in range(s.num_groups):
        spares = s.spares + row * s.num_groups + i
        if s.wants[i].spare:
            moved = realloc(spares.pages, 4 * (<Py_ssize_t> spares.count + s.wants[i].spare))
            if moved == NULL:
                raise MemoryError("settle: no memory for spare pages")
            spares.pages = <int32_t *> moved
    return 0


cdef int hit_check(State *s, Path *path, Ask *ask) except -1:
    """Whether the hit was seated in the row, and the ask goes with it."""
    cdef int32_t i, seated, lowest = path.blocks + (path.source >= 0)
    for i in range(s.num_groups):
        seated = max(path.blocks, end_of(s, path, s.pools + i))
        if path.seat != s.rows[ask.row].seat or not s.rows[ask.row].as_seated or s.pools[i].capacity[ask.row] != seated:
            raise ValueError(f"settle: the hit was not seated in row {ask.row}, or the row has changed since")
        if lowest > ask.wants[i].stop and not s.pools[i].current:
            raise ValueError(f"settle: {ask.wants[i].stop} columns for a hit of {path.blocks} blocks")
    return 0


cdef int keys_check(State *s, int32_t row) except -1:
    """Room for the keys of a prompt, by which ghosts are found."""
    cdef Text *text = s.rows[row].text
    if s.pools.cells != NULL and key_room(text, text.length // text.block_size):
        raise MemoryError("settle: no memory for keys")
    return 0


cdef int64_t settle_check(State *s, Path *path, Ask *ask) except -1:
    """The last that can go wrong in settle, before anything changes; the slots it takes."""
    cdef bint take_over = may_take_over(s, path)
    cdef int64_t wanted, total = 0
    cdef int32_t i
    retention_check(s, ask)
    keys_check(s, ask.row)
    for i in range(s.num_groups):
        s.pools[i].room.owed = 0
    for i in range(s.num_groups):
        wanted = slots_wanted(s, s.pools + i, path, ask, take_over)
        if wanted < 0:
            raise BrokenInvariant(f"settle: group {i} has only {s.pools[i].room.available} slots available")
        total += wanted
    spares_reserve(s, ask.row)
    return total
