# Owns: what an engine copies of the tables of slots: cells that have changed since it was told last, or whole rows.
# Does not know: what changes a table.


cdef Py_ssize_t count_cells(State *s, Pool *g, int32_t *out, Py_ssize_t most) noexcept nogil:
    """How many cells of a group are not as they were told; with `out` each is written there, three times `most` numbers
    in all: rows, columns, slots. Then they are told."""
    cdef int32_t row, b
    cdef int32_t *touched
    cdef Py_ssize_t at, n = 0
    for row in range(s.most_rows):
        touched = g.touched + 2 * <Py_ssize_t> row
        for b in range(touched[0], touched[1]):
            at = <Py_ssize_t> row * s.num_columns + b
            if g.told[at] == g.row_slots[at]:
                continue
            if out != NULL:
                out[n], out[most + n], out[2 * most + n] = row, b, g.row_slots[at]
                g.told[at] = g.row_slots[at]
            n += 1
        if out != NULL:
            touched[0] = touched[1] = 0
    return n


cdef object take_cells(State *s, Pool *g):
    """Rows, columns and slots of the cells that are not as they were told last, in order; int32 [3, cells]."""
    cdef Py_ssize_t cells = count_cells(s, g, NULL, 0)
    taken = np.empty((3, cells), np.int32)
    count_cells(s, g, <int32_t *> memory_of(taken), cells)
    return taken


cdef int32_t widest(State *s, Pool *g, const int32_t *rows, Py_ssize_t n) except -1:
    """The most columns that one of these rows uses."""
    cdef int32_t width = 0
    cdef Py_ssize_t i
    for i in range(n):
        if not 0 <= rows[i] < s.num_rows:
            raise LookupError(f"row {rows[i]} is not there")
        width = max(width, g.capacity[rows[i]])
    return width


cdef object copy_rows(State *s, Pool *g, rows, out):
    """Copy the used columns of rows to the front of an array's rows; the width that was copied."""
    cdef Py_buffer names, target
    cdef Py_ssize_t i, columns, n = borrow(&names, rows, 4, b"il", "rows")
    cdef int32_t width
    try:
        width = widest(s, g, <const int32_t *> names.buf, n)
        if out.ndim != 2 or out.dtype != np.int32 or out.shape[0] < n or out.shape[1] < width:
            raise ValueError(f"{n} rows of {width} columns do not fit {out.shape} of {out.dtype}")
        columns = out.shape[1]
        PyObject_GetBuffer(out, &target, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        for i in range(n):
            memcpy(<int32_t *> target.buf + i * columns, slots_of(s, g, (<const int32_t *> names.buf)[i]), 4 * width)
        PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&names)
    return width
