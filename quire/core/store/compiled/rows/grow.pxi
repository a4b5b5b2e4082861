# Owns: rows that get longer and shorter: columns for coming tokens, tokens that come, tokens taken back.
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


cdef inline Py_ssize_t more_of(State *s, Py_ssize_t place, Py_ssize_t k) noexcept nogil:
    """Tokens that come to the row in this place of the batch."""
    return k if s.more == NULL else s.more[place]


cdef int grow_check(State *s, const int32_t *rows, Py_ssize_t n, Py_ssize_t k, bint known) noexcept nogil:
    """Check a batch, note the rows that need more columns and count the pages for them; nothing changes. Tokens that are
    `known` come behind all others, places behind what was handed out."""
    cdef const int32_t *more = s.more
    cdef int32_t *length = s.length if known else s.handed
    cdef int32_t *edge = s.edge
    cdef int32_t row, count = 0
    cdef int why = 0, refusal
    cdef Py_ssize_t i = -1
    cdef int64_t end
    s.batch += 1
    memset(s.needs, 0, 8 * s.num_groups)
    while True:
        i += 1
        if more == NULL:
            i = join_plain(s, rows, n, i, length, edge, <int32_t> min(k, <Py_ssize_t> NO_DEPTH))
        if i == n:
            break
        row = rows[i]
        if not joins(s, row):
            return UNKNOWN_ROW
        end = length[row] + (k if more == NULL else more[i])
        if end > edge[row]:
            refusal = count_growth(s, row, end)
            if refusal and why != UNDER_WAY:
                why, s.culprit = refusal, row
            s.crossing[count] = <int32_t> i
            count += 1
    s.num_crossing = count
    return why


cdef inline bint add_one(Row *table, int32_t row, int32_t token, int32_t *length) noexcept nogil:
    """A token more for a checked row, unless its text has extras, or no room."""
    cdef Text *text = table[row].text
    cdef Py_ssize_t place = text.length
    if place >= text.token_room or text.extras != NULL:
        return False
    text.tokens[place] = token
    text.length = place + 1
    length[row] = <int32_t> (place + 1)
    return True


cdef Py_ssize_t add_ones(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens) noexcept nogil:
    """The same for rows, up to the first that needs more than that: its place. What is written is fetched ahead."""
    cdef int32_t *length = s.length
    cdef Row *table = s.rows
    cdef Py_ssize_t i = 0
    cdef Text *text
    while i < n - 8:
        text = table[rows[i + 8]].text
        prefetch(text.tokens + text.length)
        if not add_one(table, rows[i], tokens[i], length):
            return i
        i += 1
    while i < n and add_one(table, rows[i], tokens[i], length):
        i += 1
    return i


cdef int add_known(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k) noexcept nogil:
    """Tokens more for every checked row; -1 without memory: then nothing has changed."""
    cdef Py_ssize_t i, more, begin = add_ones(s, rows, n, tokens) if k == 1 and s.more == NULL else 0
    cdef Text *text
    tokens += begin
    for i in range(begin, n):
        more = more_of(s, i, k)
        text = s.rows[rows[i]].text
        if more == 1 and text.length < text.token_room and text.extras == NULL:
            text.tokens[text.length] = tokens[0]
            text.length += 1
        elif text_append(text, tokens, more):
            while i > 0:
                i -= 1
                s.length[rows[i]] -= <int32_t> more_of(s, i, k)
                text_truncate(s.rows[rows[i]].text, s.length[rows[i]])
            return -1
        tokens += more
        s.length[rows[i]] += <int32_t> more
    return 0


cdef void hand_out_more(State *s, const int32_t *rows, Py_ssize_t n, Py_ssize_t k, bint known) noexcept nogil:
    """All that is known of checked rows is handed out, or places more."""
    cdef int32_t *handed = s.handed
    cdef int32_t *length = s.length
    cdef Py_ssize_t i
    for i in range(n if s.num_current and s.num_launched else 0):
        keep_ahead(s, rows[i])
    for i in range(n if known else 0):
        if handed[rows[i]] < length[rows[i]]:
            handed[rows[i]] = length[rows[i]]
    for i in range(0 if known else n):
        handed[rows[i]] += <int32_t> more_of(s, i, k)


cdef int32_t grow_snapshots(State *s, Pool *g, int32_t row, int32_t first, int32_t columns) noexcept nogil:
    """Pages for the snapshots in [first, columns), as far as there is room: no request waits for one."""
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


cdef int64_t grow(State *s, const int32_t *rows) noexcept nogil:
    """New pages for the noted rows of a checked batch, to hold what they were handed out; how many, or -1."""
    cdef int32_t i, c, row, more
    cdef int64_t grown = 0
    cdef Pool *g
    for i in range(s.num_groups):
        s.pools[i].to_cut = 0 if s.pools[i].current else s.needs[i]
    for c in range(s.num_crossing):
        row = s.makes = rows[s.crossing[c]]
        for i in range(s.num_groups):
            g = s.pools + i
            more = grow_group(s, g, row, <int32_t> columns_of(g, s.handed[row], s.block_size))
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
    s.rows[row].as_seated = False
    s.opening[row] = 0
    s.length[row] = length
    s.prompt[row] = min(s.prompt[row], length)
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


cdef void take_back(State *s, int32_t row, int32_t end, bint ran) noexcept nogil:
    """A row's tokens from `end` on are not handed out any more. If a step may have run there, what is current has moved
    on, and what was kept of it behind `end` is not what a step will make there."""
    cdef int32_t i
    if ran:
        s.rows[row].reached = max(s.rows[row].reached, s.handed[row])
    for i in range(s.num_groups):
        written_of(s, s.pools + i, row)[0] = min(written_of(s, s.pools + i, row)[0], end // s.block_size)
    s.handed[row] = end
    set_edge(s, row)


cdef inline Py_ssize_t before_negative(const int32_t *tokens, Py_ssize_t k) noexcept nogil:
    """How many tokens come before the first negative one."""
    cdef Py_ssize_t i = 0
    while i < k and tokens[i] >= 0:
        i += 1
    return i


cdef int append(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k) noexcept nogil:
    """Tokens that steps have made are known now: of each row those before the first negative one. All rows or none."""
    cdef Py_ssize_t i, new
    cdef int32_t row, g
    cdef Text *text
    cdef int why = 0
    s.batch += 1
    for i in range(n):
        row, new = rows[i], before_negative(tokens + i * k, k)
        if not joins(s, row):
            return UNKNOWN_ROW
        text = s.rows[row].text
        for g in range(s.num_groups if new else 0):
            if columns_of(s.pools + g, text.length + new, s.block_size) > s.num_columns:
                why, s.culprit = (why if why else TOO_LONG), row
        if new and s.handed[row] < s.prompt[row]:
            why, s.culprit = UNDER_WAY, row
        if new and text_room(text, text.length + new):
            return NO_MEMORY
    for i in range(n if not why else 0):
        text = s.rows[rows[i]].text
        text_append(text, tokens + i * k, before_negative(tokens + i * k, k))
        s.length[rows[i]] = <int32_t> text.length
    return why


cdef object grow_batch(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k):
    cdef int64_t grown
    refused(s, grow_check(s, rows, n, k, tokens != NULL), "grow")
    if lacks_room(s, -1, False):
        return -1
    check_needs(s, n * s.num_current)
    if tokens != NULL and add_known(s, rows, n, tokens, k):
        raise MemoryError("grow: no memory for tokens")
    hand_out_more(s, rows, n, k, tokens != NULL)
    grown = grow(s, rows)
    expect(grown >= 0, "grow")
    return grown


cdef Py_ssize_t read_counts(State *s, Py_buffer *counts, k, Py_ssize_t n, Py_ssize_t *each) except -1:
    """Tokens that come to each of n rows, k or, from an array, as many as it says; how many in all."""
    cdef Py_ssize_t i, total = 0
    s.more = NULL
    if isinstance(k, int):
        each[0] = k
        if each[0] < 0:
            raise ValueError(f"grow: k is {k}")
        return n * each[0]
    if borrow(counts, k, 4, b"il", "counts") == n:
        s.more = <const int32_t *> counts.buf
        for i in range(n):
            if s.more[i] < 0:
                break
            total += s.more[i]
        else:
            return total
    s.more = NULL
    PyBuffer_Release(counts)
    raise ValueError(f"grow: {k} tokens for {n} rows")


cdef object grow_arrays(State *s, rows, tokens, k):
    """k more tokens for every row, or for each as many as an array says, or places of such (None)."""
    cdef Py_buffer names, text, counts
    cdef Py_ssize_t each = 0, n = borrow(&names, rows, 4, b"il", "rows"), total
    try:
        total = read_counts(s, &counts, k, n, &each)
        if tokens is None:
            return grow_batch(s, <const int32_t *> names.buf, n, NULL, each)
        if borrow(&text, tokens, 4, b"il", "tokens") != total:
            PyBuffer_Release(&text)
            raise ValueError(f"grow: {k} tokens for each of {n} rows")
        try:
            return grow_batch(s, <const int32_t *> names.buf, n, <const int32_t *> text.buf, each)
        finally:
            PyBuffer_Release(&text)
    finally:
        if s.more != NULL:
            PyBuffer_Release(&counts)
            s.more = NULL
        PyBuffer_Release(&names)


cdef object append_arrays(State *s, rows, tokens, Py_ssize_t k):
    """Tokens that steps have made, up to k a row."""
    cdef Py_buffer names, text
    cdef Py_ssize_t n = borrow(&names, rows, 4, b"il", "rows")
    try:
        if k < 0:
            raise ValueError(f"append: k is {k}")
        if borrow(&text, tokens, 4, b"il", "tokens") != n * k:
            PyBuffer_Release(&text)
            raise ValueError(f"append: up to {k} tokens for each of {n} rows")
        try:
            refused(s, append(s, <const int32_t *> names.buf, n, <const int32_t *> text.buf, k), "append")
        finally:
            PyBuffer_Release(&text)
    finally:
        PyBuffer_Release(&names)


cdef object launch_rows(State *s, rows, ends):
    """Steps in flight compute live rows up to `ends`."""
    cdef Py_buffer names, numbers
    cdef Py_ssize_t i, n = borrow(&names, rows, 4, b"il", "rows")
    try:
        if borrow(&numbers, ends, 4, b"il", "ends") != n:
            PyBuffer_Release(&numbers)
            raise ValueError("launch: as many ends as rows")
        try:
            for i in range(n):
                check_live(s, (<const int32_t *> names.buf)[i])
            for i in range(n):
                set_launched(s, (<const int32_t *> names.buf)[i], (<const int32_t *> numbers.buf)[i])
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&names)
