# Owns: blocks or pages that a caller names, an array for each group.
# Does not know: what is done with them.

cdef struct Numbers:          # of one group: blocks, or pages, that a caller names
    int32_t *at
    Py_ssize_t count
    int64_t first             # the least,
    int64_t end               # and one more than the largest


cdef int look_at(Numbers *some, object array, int64_t limit) except -1:
    """Where the numbers of a caller's int32 array are; the caller keeps it."""
    cdef Py_buffer view
    cdef Py_ssize_t i
    some.count = borrow(&view, array, 4, b"il", "write: numbers")
    some.at, some.first, some.end = <int32_t *> view.buf, 0x7FFFFFFF, 0
    i = view.ndim
    PyBuffer_Release(&view)
    if i != 1:
        raise ValueError("write: numbers of a group have one dimension")
    for i in range(some.count):
        some.first = min(some.first, <int64_t> some.at[i])
        some.end = max(some.end, <int64_t> some.at[i] + 1)
    if some.first < 0 or some.end > limit:
        raise ValueError(f"write: a block is not one of {limit}")
    return 0


cdef Numbers *look_at_all(State *s, object arrays, int64_t limit) except NULL:
    """Of every group, looked at; to be freed."""
    cdef Numbers *named
    cdef int32_t i
    if len(arrays) != s.num_groups:
        raise ValueError(f"write: blocks of {len(arrays)} groups, there are {s.num_groups}")
    named = <Numbers *> malloc(s.num_groups * sizeof(Numbers))
    if named == NULL:
        raise MemoryError("write: no memory")
    try:
        for i in range(s.num_groups):
            look_at(named + i, arrays[i], limit)
    except BaseException:
        free(named)
        raise
    return named


cdef int32_t end_named(State *s, Numbers *named) noexcept nogil:
    cdef int64_t end = 0
    cdef int32_t i
    for i in range(s.num_groups):
        end = max(end, named[i].end)
    return <int32_t> end


cdef int64_t first_named(State *s, Numbers *named) noexcept nogil:
    cdef int64_t first = 0x7FFFFFFF
    cdef int32_t i
    for i in range(s.num_groups):
        first = min(first, named[i].first)
    return first


cdef object room_for(State *s, Numbers *named):
    """Blocks, pages and slots of all groups in one array; the blocks are there, and `named` are those."""
    cdef Py_ssize_t each = 0
    cdef int32_t i
    cdef int32_t *at
    for i in range(s.num_groups):
        each += named[i].count
    room = np.empty(3 * each, np.int32)
    at = <int32_t *> memory_of(room) if each else NULL
    for i in range(s.num_groups):
        if named[i].count:
            memcpy(at, named[i].at, 4 * named[i].count)
        named[i].at = at
        at += named[i].count
    return room
