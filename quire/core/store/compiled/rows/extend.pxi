# Owns: extend: a row gets the pages of a later part of its prompt; and pages for what a step writes itself behind some
# columns, as far as there is room.
# Does not know: hits.


cdef bint extend_check(State *s, Ask *ask) noexcept nogil:
    """Count the pages a later part of a prompt takes; False: more than is available to this row."""
    cdef int32_t i
    for i in range(s.num_groups):
        s.needs[i] = count_holes(s, s.pools + i, ask.row, ask.wants[i].first, ask.wants[i].stop)
    return not lacks_room(s, ask.row, True)


cdef int64_t extend(State *s, Ask *ask) noexcept nogil:
    """Pages for a later part of a prompt, counted before; how many, or -1 when nothing is available."""
    cdef int64_t taken = 0
    cdef Pool *g
    cdef int32_t i
    s.makes = ask.row
    keep_counters(s)
    for i in range(s.num_groups):
        g = s.pools + i
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
    add_counters(s, ask.row, False)
    set_edge(s, ask.row)
    set_due(s, ask.row)
    return taken


cdef int32_t snapshots_to_open(State *s, Pool *g, int32_t row, int32_t count, int32_t beside) noexcept nogil:
    """Keep those of the columns in `path` that get a page: the last without one, as far as there is room; how many.
    None that was named before: a step that ran then has not written it. With `beside`, the very last is given up first,
    unless so many slots are left."""
    cdef int32_t last = s.path[count - 1] if count else -1
    cdef int64_t room = max(0, g.room.available + stake_of(s, g, row).reserve)
    cdef int32_t i, over, holes = 0
    for i in range(count):
        if s.path[i] >= written_of(s, g, row)[0] and pages_of(s, g, row)[s.path[i]] < 0:
            s.path[holes] = s.path[i]
            holes += 1
    if beside >= 0 and holes and s.path[holes - 1] == last and holes + beside > room:
        holes -= 1
    over = <int32_t> max(0, holes - room)
    memmove(s.path, s.path + over, 4 * (holes - over))
    return holes - over


cdef int open_snapshots(State *s, Pool *g, Ask *ask, int32_t count, int32_t last) noexcept nogil:
    """New pages in the columns in `path`, counted before: a step writes those before `last` itself. -1: no slot."""
    cdef Stake *stake = stake_of(s, g, ask.row)
    cdef int32_t i, known = 0
    s.makes = ask.row
    keep_counters(s)
    set_fresh(s, g, ask.row)
    if g.cells != NULL and g.cells.ghosts.count and s.rows[ask.row].tip >= 0:
        i = 0
        while i < count and teach_span(s, g, ask.row, s.path[i], s.path[i] + 1, -1, &known):
            i += 1
    g.to_cut = count
    g.counters[MISSED] += count
    for i in range(count):
        if fill_columns(s, g, ask.row, s.path[i], s.path[i] + 1, ask):
            return -1
    teach_new(s, g, ask.row)
    written_of(s, g, ask.row)[0] = max(written_of(s, g, ask.row)[0], last)
    stake.own += count
    set_peak(g, stake, ask.peak)
    set_edge(s, ask.row)
    add_counters(s, ask.row, False)
    return 0


cdef object give_snapshots(State *s, Ask *ask):
    """Pages for what the row's next step writes itself, if something is reserved for it; how many."""
    cdef int32_t count, last = s.path[ask.num_inside - 1] + 1 if ask.num_inside else 0
    if stake_of(s, ask.inside, ask.row).peak == 0:
        return 0
    retention_check(s, ask)
    keys_check(s, ask.row)
    count = snapshots_to_open(s, ask.inside, ask.row, ask.num_inside, ask.beside)
    check_moves(s, count)
    expect(open_snapshots(s, ask.inside, ask, count, last) == 0, "snapshots")
    return count


cdef object give(State *s, Hit hit, Ask *ask):
    """Settle the row with its hit, or extend it (None), or open its snapshots."""
    cdef int64_t taken
    if ask.inside != NULL:
        return give_snapshots(s, ask)
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


cdef int snapshots_check(State *s, Ask *ask, list columns) except -1:
    """Read the columns of snapshots, ascending, into `path`; the ask speaks of blocks up to the last."""
    cdef int32_t b
    if not ask.inside.current or ask.peak < 0:
        raise ValueError(f"snapshots: group {ask.inside.index} has none, or {ask.peak} pages are reserved")
    for b in columns:
        if not ask.blocks <= b < s.num_columns:
            raise ValueError(f"snapshots: columns {columns} asked of a row of {s.num_columns}")
        s.path[ask.num_inside], ask.blocks = b, b + 1
        ask.num_inside += 1
    return 0
