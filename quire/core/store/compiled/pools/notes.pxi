# Owns: which slots of the slow tier have changed since the last report, and what was reported: two bits for each,
# however long no report is taken.
# Does not know: pages but for their groups.

cdef struct Notes:
    uint64_t *changed         # bits of slots
    uint64_t *told            # to hold a page
    uint16_t *groups          # of those pages; NULL: the pool is one group's
    int32_t num_words


cdef int notes_open(Notes *e, int32_t size, bint shared) noexcept nogil:
    """-1 without memory."""
    e.num_words = (size >> 6) + 1
    e.changed = <uint64_t *> calloc(e.num_words, 8)
    e.told = <uint64_t *> calloc(e.num_words, 8)
    e.groups = <uint16_t *> calloc(size + 1, 2) if shared else NULL
    return 0 if e.changed and e.told and (e.groups or not shared) else -1


cdef void notes_close(Notes *e) noexcept nogil:
    free(e.changed)
    free(e.told)
    free(e.groups)


cdef Py_ssize_t notes_bytes(Notes *e) noexcept nogil:
    return (16 + 128 * (e.groups != NULL)) * <Py_ssize_t> e.num_words


cdef inline void mark_changed(Notes *e, int32_t slot) noexcept nogil:
    """The slot may no longer hold what was reported of it."""
    e.changed[slot >> 6] |= <uint64_t> 1 << (slot & 63)


cdef inline bint is_told(Notes *e, int32_t slot) noexcept nogil:
    return e.told[slot >> 6] >> (slot & 63) & 1


cdef inline void set_told(Notes *e, int32_t slot, bint told) noexcept nogil:
    """Whether the slot was last reported to hold a page."""
    e.told[slot >> 6] &= ~(<uint64_t> 1 << (slot & 63))
    e.told[slot >> 6] |= <uint64_t> told << (slot & 63)


cdef inline int32_t told_group(Notes *e, int32_t slot, int32_t alone) noexcept nogil:
    """The group of the page that a slot was reported to hold; `alone`: the only one there is."""
    return alone if e.groups == NULL else e.groups[slot]


cdef inline void tell_page(Notes *e, int32_t slot, int32_t group) noexcept nogil:
    """The slot is reported to hold a page of a group."""
    set_told(e, slot, True)
    if e.groups != NULL:
        e.groups[slot] = <uint16_t> group


cdef list take_changed(Notes *e):
    """Slots that have changed since the last report, ascending; they count as reported then."""
    cdef list slots = []
    cdef int32_t word
    for word in range(e.num_words):
        while e.changed[word]:
            slots.append(64 * <Py_ssize_t> word + lowest_bit(e.changed[word]))
            e.changed[word] &= e.changed[word] - 1
    return slots
