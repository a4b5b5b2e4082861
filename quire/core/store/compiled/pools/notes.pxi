# Owns: which slots of the slow tier have changed since somebody was told, and what was told: two bits for each, however
# long nobody asks.
# Does not know: pages.

cdef struct Notes:
    uint64_t *changed         # bits of slots
    uint64_t *told            # to hold a page
    int32_t num_words


cdef int notes_open(Notes *e, int32_t size) noexcept nogil:
    """-1 without memory."""
    e.num_words = (size >> 6) + 1
    e.changed = <uint64_t *> calloc(e.num_words, 8)
    e.told = <uint64_t *> calloc(e.num_words, 8)
    return 0 if e.changed and e.told else -1


cdef void notes_close(Notes *e) noexcept nogil:
    free(e.changed)
    free(e.told)


cdef Py_ssize_t notes_bytes(Notes *e) noexcept nogil:
    return 16 * <Py_ssize_t> e.num_words


cdef inline void mark_changed(Notes *e, int32_t slot) noexcept nogil:
    """What is in the slot may not be what was told of it."""
    e.changed[slot >> 6] |= <uint64_t> 1 << (slot & 63)


cdef inline bint is_told(Notes *e, int32_t slot) noexcept nogil:
    return e.told[slot >> 6] >> (slot & 63) & 1


cdef inline void set_told(Notes *e, int32_t slot, bint told) noexcept nogil:
    """Whether the slot was last told to hold a page."""
    e.told[slot >> 6] &= ~(<uint64_t> 1 << (slot & 63))
    e.told[slot >> 6] |= <uint64_t> told << (slot & 63)


cdef list take_changed(Notes *e):
    """Slots that have changed, ascending, which is told then."""
    cdef list slots = []
    cdef int32_t word
    for word in range(e.num_words):
        while e.changed[word]:
            slots.append(64 * <Py_ssize_t> word + lowest_bit(e.changed[word]))
            e.changed[word] &= e.changed[word] - 1
    return slots
