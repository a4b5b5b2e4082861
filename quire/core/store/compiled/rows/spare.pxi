# Owns: when a writer takes few slots without a claim on every page of its text: if the pages that go next are not of
# that text. Outside the adaptive order an eviction does not change what goes after it, so a look ahead is enough.
# Does not know: who writes; whether there are pages to be made.

cdef enum:
    MOST_SPARED = 48          # slots of a pool; for more than that claims cost less

cdef struct Written:          # a text, and where slots for it are taken
    Text *text
    int32_t root
    int32_t tier
    int32_t found             # blocks of it that are in the tree


cdef bint is_of_text(State *s, Pool *g, Written *w, int32_t p) noexcept nogil:
    """Whether a page is one of the text's."""
    cdef int32_t b
    cdef uint64_t key
    if p < 0 or page_at(g, p).node < 0:
        return False
    key = key_at(&s.tree, page_at(g, p).node) ^ seed_of(&s.tree, w.root)
    for b in range(w.found):
        if w.text.keys[b] == key:
            return True
    return False


cdef bint is_next_another(State *s, Pool *g, Written *w) noexcept nogil:
    """Whether there is a slot to be taken next, and not with a page of the text."""
    cdef int32_t slot = pick(g, w.tier)
    return slot >= 0 and not is_of_text(s, g, w, g.tiers[w.tier].slots[slot].page)


cdef bint are_others(State *s, Pool *g, Written *w) noexcept nogil:
    """The same of as many slots as the pool owes; not of cells."""
    cdef Order *o = g.tiers + w.tier
    cdef int64_t left = g.room.owed
    cdef int32_t word, kind, slot, p, looks = 2 * MOST_SPARED
    cdef uint64_t bits
    for word in range(CLASS_WORDS):
        bits = o.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            slot = o.cursor[kind]
            while slot < o.size and left and looks:
                p = o.slots[slot].page
                if p < 0 or not (is_kept(g, o, p) or (kind != SHADOW and claims_of(page_at(g, p)))):
                    if kind != SHADOW and is_of_text(s, g, w, p):
                        return False
                    left -= 1
                slot = o.slots[slot].next
                looks -= 1
            if left == 0 or looks == 0:
                return left == 0
            bits &= bits - 1
    return False


cdef bint is_spared(State *s, Written *w) noexcept nogil:
    """Whether few slots are wanted, and taking them costs the text nothing: no other tier has to make room."""
    cdef int32_t i
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        if s.needs[i] == 0:
            continue
        if w.tier == 0 or w.tier != num_fast(g) - 1 or g.room.owed > MOST_SPARED:
            return False
        if not (are_others(s, g, w) if g.cells == NULL else g.room.owed == 1 and is_next_another(s, g, w)):
            return False
    return True
