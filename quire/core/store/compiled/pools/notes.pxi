# Owns: which slots of the slow tier have changed since somebody was told, and what was told; no more than there are
# slots, however long nobody asks.
# Does not know: pages.

cdef enum:
    CHANGED = 1               # marks of a slot
    TOLD = 2                  # it was told to hold a page

cdef struct Notes:
    unsigned char *marks
    int32_t *changed          # slots that have changed
    int32_t num_changed


cdef int notes_open(Notes *e, int32_t size) noexcept nogil:
    """-1 without memory."""
    e.marks = <unsigned char *> calloc(size + 1, 1)
    e.changed = <int32_t *> malloc(4 * (<Py_ssize_t> size + 1))
    return 0 if e.marks and e.changed else -1


cdef void notes_close(Notes *e) noexcept nogil:
    free(e.marks)
    free(e.changed)


cdef void mark_changed(Notes *e, int32_t slot) noexcept nogil:
    """What is in the slot may not be what was told of it."""
    if not e.marks[slot] & CHANGED:
        e.marks[slot] |= CHANGED
        e.changed[e.num_changed] = slot
        e.num_changed += 1


cdef object take_changed(Notes *e):
    """Slots that have changed, ascending, int32, which is told then."""
    cdef int32_t i
    slots = as_array(e.changed, e.num_changed, 4, np.int32)
    for i in range(e.num_changed):
        e.marks[e.changed[i]] &= ~CHANGED
    e.num_changed = 0
    slots.sort()
    return slots
