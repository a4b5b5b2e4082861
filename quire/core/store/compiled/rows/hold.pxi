# Owns: holds of a row's pages beyond the row.
# Does not know: whom they are for.


cdef int32_t hold_check(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Pages of [first, last) that are to leave the row and would not be back then; -1: there is no room for
    as many more."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t count
    first = max(first, stake.base)
    if stake.peak == 0 or g.current or first >= last:
        return 0
    count = last - first - <int32_t> count_holes(s, g, row, first, last)
    return -1 if is_short(g, count, 0) else count


cdef object hold(State *s, Pool *g, int32_t row, int32_t first, int32_t last):
    """Hold the row's pages of [first, last), or the current one if `computed` is in there; their ids, int32. None: they
    are to leave the row, and there is no room for as many more."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t b, count = 0, more = hold_check(s, g, row, first, last)
    cdef int64_t size = s.block_size
    if more < 0:
        return None
    for b in range(first, last if not g.current else first):
        if pages[b] >= 0:
            s.path[count] = pages[b]
            count += 1
    if g.current and g.currents[row] >= 0 and first * size < s.computed[row] <= last * size and not is_past(s, row):
        s.path[0] = g.currents[row]
        count = 1
    held = as_array(s.path, count, 4, np.int32)
    for b in range(count):
        hold_page(g, s.path[b])
    if more:
        keep_more(g, stake, more)
    return held


cdef bint unhold_check(Pool *g, const int32_t *pages, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if not 0 <= pages[i] < g.num_pages or page_at(g, pages[i]).holders < 1:
            return False
    return True


cdef void unhold(State *s, Pool *g, const int32_t *pages, Py_ssize_t n) noexcept nogil:
    """Let go of checked pages, last to first."""
    cdef Py_ssize_t i
    for i in range(n - 1, -1, -1):
        if page_at(g, pages[i]).holders > 0:
            let_go(g, pages[i], s.now, UNKNOWN)


cdef int unhold_array(State *s, Pool *g, pages, int64_t now) except -1:
    """Let go of held pages, last to first."""
    cdef Py_buffer view
    cdef Py_ssize_t n = borrow(&view, pages, 4, b"il", "pages")
    try:
        if not unhold_check(g, <const int32_t *> view.buf, n):
            raise LookupError("unhold: a page is not held")
        tell_time(s, now)
        unhold(s, g, <const int32_t *> view.buf, n)
    finally:
        PyBuffer_Release(&view)
    return 0
