# Owns: which pages have got or lost copies since last asked, for which rows they were made, which were dropped; for
# whoever bills memory to those who use it. No more than the pages there are, however seldom it is taken.
# Does not know: copies; whoever takes it looks where the pages are then.

cdef struct Tenure:
    uint64_t *changed         # bits of pages
    uint64_t *dropped         # evicted with their last copy; a page's number may be another's at once
    int32_t *makers           # per page: the row that it was made for, -1: for none
    const int32_t *makes      # the row that pages are being made for, the store's one number
    int32_t num_words
    int32_t count             # pages that have changed


cdef int tenure_open(Tenure *e, int32_t num_pages, const int32_t *makes) noexcept nogil:
    """-1 without memory."""
    e.num_words, e.makes = (num_pages >> 6) + 1, makes
    e.changed = <uint64_t *> calloc(e.num_words, 8)
    e.dropped = <uint64_t *> calloc(e.num_words, 8)
    e.makers = <int32_t *> malloc(4 * <size_t> num_pages + 4)
    return 0 if e.changed and e.dropped and e.makers else -1


cdef void tenure_close(Tenure *e) noexcept nogil:
    free(e.changed)
    free(e.dropped)
    free(e.makers)


cdef inline void note_copy(Tenure *e, int32_t p) noexcept nogil:
    """The page has got a copy or lost one."""
    if e != NULL:
        e.count += not e.changed[p >> 6] >> (p & 63) & 1
        e.changed[p >> 6] |= <uint64_t> 1 << (p & 63)


cdef inline void note_made(Tenure *e, int32_t p) noexcept nogil:
    """The page is a new one."""
    if e != NULL:
        e.makers[p] = e.makes[0]


cdef inline void note_dropped(Tenure *e, int32_t p) noexcept nogil:
    """The page was evicted with its last copy."""
    if e != NULL:
        e.dropped[p >> 6] |= <uint64_t> 1 << (p & 63)
