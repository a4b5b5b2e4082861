# Owns: rows that get longer and shorter: columns for coming tokens, tokens taken back.
# Does not know: what a token's block becomes; admission, release.


cdef inline int32_t new_from(State *s, Pool *g, int32_t row) noexcept nogil:
    """The first column that may get a page when the row grows: with a current page none that has been passed."""
    return max(g.capacity[row], stake_of(s, g, row).front) if g.current else g.capacity[row]


cdef inline int count_growth(State *s, int32_t row, int64_t tokens) noexcept nogil:
    """Add the pages a row of that length needs to `needs`, or say why it may not have it. What is reserved for a row is
    for its prompt, not for growth."""
    cdef int64_t columns
    cdef int32_t i
    cdef Pool *g
    if s.edge[row] == NO_LENGTH:
        return UNDER_WAY
    prefetch(s.stakes + <Py_ssize_t> row * s.num_groups)
    for i in range(s.num_groups):
        g = s.pools + i
        columns = columns_of(g, tokens, s.block_size)
        if columns > s.num_columns:
            return TOO_LONG
        if columns > g.capacity[row]:
            s.needs[i] += pages_between(g, new_from(s, g, row), columns, s.rows[row].keep)
            prefetch(pages_of(s, g, row) + g.capacity[row])   # written soon, each in a memory page of its own
            prefetch(slots_of(s, g, row) + g.capacity[row])
    return 0


cdef int grow_check(State *s, const int32_t *rows, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    """Check a batch, note the rows that need more columns and count the pages for them; nothing changes."""
    cdef Py_ssize_t i
    cdef int32_t *length = s.length
    cdef int32_t *edge = s.edge
    cdef int32_t row, count = 0
    cdef int why = 0, refusal
    s.batch += 1
    memset(s.needs, 0, 8 * s.num_groups)
    for i in range(n):
        row = rows[i]
        if not joins(s, row):
            return UNKNOWN_ROW
        if length[row] + k > edge[row]:
            refusal = count_growth(s, row, length[row] + k)
            if refusal and why != UNDER_WAY:
                why, s.culprit = refusal, row
            s.crossing[count] = <int32_t> i
            count += 1
    s.num_crossing = count
    return why


cdef void expect_more(State *s, const int32_t *rows, Py_ssize_t n, int32_t k) noexcept nogil:
    """Rows that got slots for k tokens which nobody has told: a step may compute them before anybody does."""
    cdef Py_ssize_t i
    for i in range(n):
        s.rows[rows[i]].reached = max(s.rows[rows[i]].reached, s.length[rows[i]] + k)


cdef int append(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k) noexcept nogil:
    """k tokens more for every checked row, NULL: nobody knows them yet; -1 without memory: then nothing has changed."""
    cdef Py_ssize_t i
    cdef Text *text
    if tokens == NULL:
        expect_more(s, rows, n, <int32_t> k)
        return 0
    for i in range(n):
        text = s.rows[rows[min(i + 8, n - 1)]].text
        prefetch(text.tokens + text.length)
        text = s.rows[rows[i]].text
        if k == 1 and text.length < text.token_room and text.extras == NULL:
            text.tokens[text.length] = tokens[i]
            text.length += 1
        elif text_append(text, tokens + i * k, k):
            while i > 0:
                i -= 1
                s.length[rows[i]] -= <int32_t> k
                s.handed[rows[i]] -= <int32_t> k
                text_truncate(s.rows[rows[i]].text, s.length[rows[i]])
            return -1
        s.length[rows[i]] += <int32_t> k
        s.handed[rows[i]] += <int32_t> k          # all before were, or the row would not grow
    return 0


cdef int32_t grow_snapshots(State *s, Pool *g, int32_t row, int32_t first, int32_t columns) noexcept nogil:
    """Pages for the snapshots in [first, columns), as far as there is room: nobody is kept waiting for one."""
    cdef int32_t b, p, more = 0
    if not s.rows[row].keep or g.every == 0:
        return 0
    b = (first // g.every + 1) * g.every - 1
    while b < columns and g.room.available > g.room.owed:
        p = new_page(s, g, s.rows[row].priority, s.rows[row].duration)
        set_column(s, g, row, b, p)
        more += 1
        b += g.every
    return more


cdef inline int32_t grow_group(State *s, Pool *g, int32_t row, int32_t columns) noexcept nogil:
    """A row gets so many columns of a group; new pages, or -1."""
    cdef int32_t first = new_from(s, g, row), more
    if columns <= g.capacity[row]:
        return 0
    set_fresh(s, g, row)
    if g.current:
        more = grow_snapshots(s, g, row, first, columns)
    else:
        more = columns - first
        if fill_columns(s, g, row, first, columns, NULL):
            return -1
        g.room.owed -= more
    g.capacity[row] = columns
    g.counters[GROWN] += more
    count_own(g, stake_of(s, g, row), more)
    return more


cdef int64_t grow(State *s, const int32_t *rows, Py_ssize_t ahead) noexcept nogil:
    """New pages for the noted rows of a checked batch, to hold `ahead` tokens beyond their length; how many, or -1."""
    cdef int32_t i, k, row, more
    cdef int64_t grown = 0
    cdef Pool *g
    for i in range(s.num_groups):
        s.pools[i].to_cut = 0 if s.pools[i].current else s.needs[i]
    for k in range(s.num_crossing):
        row = rows[s.crossing[k]]
        for i in range(s.num_groups):
            g = s.pools + i
            more = grow_group(s, g, row, <int32_t> columns_of(g, s.length[row] + ahead, s.block_size))
            if more < 0:
                return -1
            grown += more
        set_edge(s, row)
    return grown


cdef int32_t trim(State *s, int32_t row, int32_t k) noexcept nogil:
    """Take back the last k tokens and every column beyond what is left; the number of pages given back."""
    cdef int32_t i, first, columns, given = 0, length = s.length[row] - k
    cdef Pool *g
    text_truncate(s.rows[row].text, length)
    s.rows[row].seat = 0      # it is not as it was seated
    s.opening[row] = 0
    s.length[row] = length
    s.rows[row].reached = max(s.rows[row].reached, s.handed[row])
    s.handed[row] = min(s.handed[row], length)
    s.computed[row] = min(s.computed[row], length)
    for i in range(s.num_groups):
        g = s.pools + i
        columns = <int32_t> columns_of(g, length, s.block_size)
        written_of(s, g, row)[0] = min(written_of(s, g, row)[0], columns)
        first = max(columns, stake_of(s, g, row).base)
        if first < g.capacity[row]:
            count_own(g, stake_of(s, g, row), <int32_t> count_holes(s, g, row, first, g.capacity[row])
                      - (g.capacity[row] - first))
        given += drop_columns(s, g, row, columns)
    set_edge(s, row)
    return given


cdef object grow_batch(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k):
    cdef int64_t grown
    refused(s, grow_check(s, rows, n, k), "grow")
    if lacks_room(s, -1, False):
        return -1
    check_needs(s)
    if append(s, rows, n, tokens, k):
        raise MemoryError("grow: no memory for tokens")
    grown = grow(s, rows, 0 if tokens != NULL else k)
    expect(grown >= 0, "grow")
    return grown


cdef object grow_arrays(State *s, rows, tokens, Py_ssize_t k):
    """k more tokens for every row, or capacity for them (None)."""
    cdef Py_buffer names, text
    cdef Py_ssize_t n = borrow(&names, rows, 4, b"il", "rows")
    try:
        if k < 0:
            raise ValueError(f"grow: k is {k}")
        if tokens is None:
            return grow_batch(s, <const int32_t *> names.buf, n, NULL, k)
        if borrow(&text, tokens, 4, b"il", "tokens") != n * k:
            PyBuffer_Release(&text)
            raise ValueError(f"grow: {k} tokens for each of {n} rows")
        try:
            return grow_batch(s, <const int32_t *> names.buf, n, <const int32_t *> text.buf, k)
        finally:
            PyBuffer_Release(&text)
    finally:
        PyBuffer_Release(&names)
