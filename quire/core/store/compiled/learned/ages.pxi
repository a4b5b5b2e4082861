# Owns: the age and the class of a page as the adaptive order tells them apart: integers from a table.
# Does not know: pages.

cdef enum:
    ONCE, CONTINUED, FEW, MANY    # classes: new text; new text behind known text; two or three uses; more;
    SOON, LATER, NEVER            # and, whatever the uses: the hint given when it was last used
    NUM_REUSE_CLASSES = 7
    HINT_SHIFT = 3            # from the number of a hint to its class
    NUM_AGES = 160
    NUM_CELLS = 1120
    FEW_USES = 3
    MAX_USES = 255
    MOST_YOUNGER = 15         # ages
    MAX_CENSUS = 1 << 14      # pages, and ghosts, that a census looks at
    AGING = 32                # how often pages move to their next bins while as many are made as there are slots
    REST_TICKS = 250000       # how exactly it is known when a page went

cdef enum:
    EVICTED = 1               # why a page is gone
    SPOILT = 2

cdef int64_t[NUM_AGES + 2] EDGES          # first tick of each bin but the first; then more than there ever are
cdef int32_t[64] FIRST_BIN                # of the ages whose highest bit is this one; they reach at most three on

for _nth in range(NUM_AGES + 2):
    EDGES[_nth] = AGE_EDGES[_nth] if _nth < len(AGE_EDGES) else 2**63 - 1
for _nth in range(64):
    FIRST_BIN[_nth] = sum([_edge <= 2**_nth for _edge in AGE_EDGES])


cdef inline int32_t age_bin(int64_t age) noexcept nogil:
    """The bin of an age in ticks."""
    cdef int32_t bin
    if age <= 0:
        return 0
    bin = FIRST_BIN[highest_bit(age)]
    return bin + (EDGES[bin] <= age) + (EDGES[bin + 1] <= age) + (EDGES[bin + 2] <= age)


cdef inline int32_t class_of(int32_t uses, int32_t fresh) noexcept nogil:
    """The class of a page used so often; `fresh`: that of a page used once."""
    return fresh if uses == 1 else FEW if uses <= FEW_USES else MANY


cdef inline int32_t fresh_class(int64_t known, int64_t blocks) noexcept nogil:
    """The class of new blocks of a prompt: whether half of it, or more, was known."""
    return CONTINUED if known and 2 * known >= blocks else ONCE


cdef inline int32_t hint_in(int32_t reuse) noexcept nogil:
    """The hint that a class stands for, 0: none."""
    return max(0, reuse - HINT_SHIFT)


cdef inline bint follows_hint(int32_t reuse) noexcept nogil:
    """Whether text of this class was said to come back."""
    return reuse == SOON or reuse == LATER


cdef inline int32_t told_class(int32_t back, int32_t uses, int32_t reuse) noexcept nogil:
    """The class of a page of which a hint is given; none leaves its uses."""
    if back:
        return back + HINT_SHIFT
    return class_of(uses, ONCE) if reuse >= SOON else reuse


cdef inline int32_t listed_class(int32_t reuse, bint recency) noexcept nogil:
    """The class in which a page is listed: by age alone all pages share one, except those that never come back."""
    return reuse if not recency or reuse == NEVER else 0
