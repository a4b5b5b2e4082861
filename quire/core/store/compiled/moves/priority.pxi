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
        list_idle(g, t, page)
    put_priority(page, priority)
    if old != priority:
        log_page(s, g, page, RETAINED, old, priority)


cdef void refresh(State *s, int64_t now) noexcept nogil:
    """Pages whose time has come fall back to the default priority."""
    cdef Pool *g
    cdef int32_t i, p
    s.now = now
    for i in range(s.num_groups):
        g = s.pools + i
        while g.times.duration != NULL:
            p = heap_due(&g.times, now)
            if p < 0:
                break
            if g.times.expiry[p] != g.times.noted[p]:
                continue
            g.times.expiry[p] = -1
            if page_at(g, p).holders == 0:
                set_priority(s, g, p, DEFAULT_PRIORITY)


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
    for b in range(s.num_groups if timed else 0):
        if expiry_open(&s.pools[b].times, s.pools[b].num_pages):
            raise MemoryError("settle: no memory for durations")
    return 0
