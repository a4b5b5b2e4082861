# Owns: the order "lru": lower priorities first; within one, what is passed, then the rest, first in, first out.
# Does not know: ages, why a page is listed.


cdef inline int32_t class_of_idle(Page *page) noexcept nogil:
    """Where an idle page waits, but for the adaptive order."""
    return FIRST + (page.claimed & 0xFF)


cdef int32_t pick_page(Pool *g, Order *o, bint shadows) noexcept nogil:
    cdef uint64_t bits
    cdef int32_t word, kind, slot
    for word in range(CLASS_WORDS):
        bits = o.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            slot = o.cursor[kind]
            slot = pass_claimed(g, o, slot) if kind != SHADOW else pass_kept(g, o, slot)
            o.cursor[kind] = slot
            if slot < o.size and (shadows or kind != SHADOW):
                return slot
            bits &= bits - 1
    return -1


cdef inline bint outranks_class(Page *there, Page *page, bint passed) noexcept nogil:
    """Whether an idle page shall stay rather than another come, which is passed or not."""
    return class_of_idle(there) > class_at(priority_of(page), passed)
