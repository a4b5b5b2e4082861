# Owns: how a writer takes few slots without a claim on every page of its text: it looks at what goes next, and claims of
# the text only what would go. What goes is the same, and a long text costs little.
# Does not know: who writes; whether there are pages to be made.

cdef enum:
    MOST_WATCHED = 48         # slots of a pool; for more than that claims cost less

cdef struct Watch:            # the text, and what of it is claimed
    Text *text
    int32_t root
    int32_t tier
    int32_t found             # blocks of it that are in the tree
    int32_t count
    int32_t *pages            # each behind its group


cdef bint is_of_text(State *s, Pool *g, Watch *w, int32_t p) noexcept nogil:
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


cdef int32_t next_own(State *s, Pool *g, Watch *w) noexcept nogil:
    """The text's page in the slot to be taken next; -1: it is another's, or empty. -2: there is no slot."""
    cdef int32_t slot = pick(g, w.tier), p
    if slot < 0:
        return -2
    p = g.tiers[w.tier].slots[slot].page
    return p if is_of_text(s, g, w, p) else -1


cdef bint has_others(State *s, Pool *g, Watch *w) noexcept nogil:
    """Whether the slots to be taken next, as many as the pool owes, have no page of the text; not of cells, in which a
    list says little of what comes next. So there are enough of them, in whatever order they go then."""
    cdef Order *o = g.tiers + w.tier
    cdef int64_t left = g.room.owed
    cdef int32_t word, kind, slot, p, looks = 0
    cdef uint64_t bits
    for word in range(CLASS_WORDS):
        bits = o.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            slot = o.cursor[kind]
            while slot < o.size and left and looks < 2 * MOST_WATCHED:
                p = o.slots[slot].page
                if p < 0 or not (is_kept(g, o, p) or (kind != SHADOW and claims_of(page_at(g, p)))):
                    if kind != SHADOW and is_of_text(s, g, w, p):
                        return False
                    left -= 1
                slot = o.slots[slot].next
                looks += 1
            if left == 0 or looks == 2 * MOST_WATCHED:
                return left == 0
            bits &= bits - 1
    return False


cdef bint is_spared(State *s, Watch *w) noexcept nogil:
    """Whether few slots are wanted, and can be had at nobody's cost but others': no other tier has to make room."""
    cdef int32_t i
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        if s.needs[i] == 0:
            continue
        if w.tier == 0 or w.tier != num_fast(g) - 1 or g.room.owed > MOST_WATCHED:
            return False
        if not (has_others(s, g, w) if g.cells == NULL else g.room.owed == 1 and next_own(s, g, w) == -1):
            return False
    return True


cdef inline void spare_own(State *s, Pool *g, Watch *w) noexcept nogil:
    """Claim pages of the text that would be taken next: what went before may have changed the order."""
    cdef int32_t p = next_own(s, g, w)
    while p >= 0:
        claim_page(g, p)
        w.pages[2 * w.count], w.pages[2 * w.count + 1] = g.index, p
        w.count += 1
        p = next_own(s, g, w)


cdef void end_watch(State *s, Watch *w) noexcept nogil:
    """What was claimed of the text is not any more."""
    cdef int32_t i
    for i in range(w.count):
        unclaim_page(s.pools + w.pages[2 * i], w.pages[2 * i + 1])
    free(w.pages)
