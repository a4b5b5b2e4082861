# Owns: the change of a page's priority: by request, or when its time is over.
# Does not know: who asks.


cdef void set_priority(State *s, Pool *g, int32_t p, int32_t priority) noexcept nogil:
    """Change the priority of a page; an idle one goes to the back of its new class."""
    cdef Page *page = page_at(g, p)
    cdef int32_t old = priority_of(page), t
    if page.holders == 0:
        t = hottest(g, page)
        unlist_idle(g, t, page)
        put_priority(page, priority)
        list_idle(g, t, page, UNKNOWN)
    put_priority(page, priority)
    if old != priority:
        log_page(s, g, page, RETAINED, old, priority)


cdef void refresh(State *s, int64_t now) noexcept nogil:
    """Pages whose time has come fall back to the default priority; in the adaptive order all have become older."""
    cdef Pool *g
    cdef int32_t i, p, t
    tell_time(s, now)
    for i in range(s.num_groups):
        g = s.pools + i
        while g.room.times.duration != NULL:
            p = heap_due(&g.room.times, now)
            if p < 0:
                break
            if g.room.times.expiry[p] != g.room.times.noted[p]:
                continue
            g.room.times.expiry[p] = -1
            if page_at(g, p).holders == 0:
                set_priority(s, keeper(s, g, p), p, DEFAULT_PRIORITY)
        if g.cells != NULL and is_aging(g.cells):
            for t in range(g.num_tiers):
                age_order(g.tiers + t, g.cells)


cdef int levels_check(State *s, int32_t priority) except -1:
    """Lists for a priority, where the order has cells."""
    cdef int32_t i
    for i in range(s.num_groups):
        if level_open(s.pools + i, priority):
            raise MemoryError("settle: no memory for the lists of a priority")
    return 0


cdef int retention_check(State *s, Ask *ask) except -1:
    """Priorities name classes: they must be in range. Durations need arrays when they are first used."""
    cdef bint timed = ask.duration >= 0
    cdef int32_t b
    if not 0 <= ask.priority <= MAX_PRIORITY:
        raise ValueError(f"settle: priority {ask.priority} is not in 0..{MAX_PRIORITY}")
    for b in range(ask.blocks if ask.priorities != NULL else 0):
        if not -1 <= ask.priorities[b] <= MAX_PRIORITY:
            raise ValueError(f"settle: priority {ask.priorities[b]} is not in -1..{MAX_PRIORITY}")
        timed = timed or (ask.durations != NULL and ask.durations[b] >= 0)
        if ask.priorities[b] >= 0:
            levels_check(s, ask.priorities[b])
    levels_check(s, ask.priority)
    for b in range(s.num_groups if timed else 0):
        if expiry_open(&s.pools[b].room.times, s.pools[b].num_pages):
            raise MemoryError("settle: no memory for durations")
    return 0
