# Owns: extend: a row gets the pages of a later part of its prompt.
# Does not know: hits.


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
        teach_columns(s, g, ask, 0, -1)
        g.to_cut = s.needs[i]
        g.counters[MISSED] += s.needs[i]
        if fill_holes(s, g, ask.row, ask.wants[i].first, ask.wants[i].stop, ask):
            return -1
        teach_new(s, g, ask.row)
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


cdef object give(State *s, Hit hit, Ask *ask):
    """Settle the row with its hit, or extend it (None)."""
    cdef int64_t taken
    if hit is not None:
        check_moves(s, settle_check(s, &hit.path, ask))
        expect(settle(s, &hit.path, ask) == 0, "settle")
        return None
    retention_check(s, ask)
    keys_check(s, ask.row)
    if not extend_check(s, ask):
        return -1
    check_needs(s)
    taken = extend(s, ask)
    expect(taken >= 0, "extend")
    return taken


cdef object give_retained(State *s, Hit hit, Ask *ask, priorities, durations):
    """Read the retention per block, then act."""
    cdef Py_buffer values, ticks
    cdef Py_ssize_t known
    ask.priorities, ask.durations = NULL, NULL
    if priorities is None:
        return give(s, hit, ask)
    known = borrow(&values, priorities, 2, b"h", "priorities")
    try:
        if known < ask.blocks:
            raise ValueError(f"fewer priorities than {ask.blocks} blocks")
        ask.priorities = <const int16_t *> values.buf
        if durations is None:
            ask.blocks = <int32_t> min(known, s.num_columns)
            return give(s, hit, ask)
        known = min(known, borrow(&ticks, durations, 8, b"lq", "durations"))
        try:
            if known < ask.blocks:
                raise ValueError(f"fewer durations than {ask.blocks} blocks")
            ask.durations, ask.blocks = <const int64_t *> ticks.buf, <int32_t> min(known, s.num_columns)
            return give(s, hit, ask)
        finally:
            PyBuffer_Release(&ticks)
    finally:
        PyBuffer_Release(&values)
