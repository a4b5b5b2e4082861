# Owns: kinds of resume points that are guessed or named before any request has resumed there: what each has cost in
# pages and gained in blocks, and so whether its points count.
# Does not know: nodes.

cdef enum:
    SPACED = 1                # kinds; 0: none
    NEAR = 2                  # the first of six bins: 1 to 2 blocks before a prompt's end, 3 to 4, 5 to 8, ...
    END = 8
    NAMED = 9
    NUM_KINDS = 10
    FARTHEST = 64             # blocks of a prompt behind the first point near its end
    WORTH = 2                 # pages of each group that one gained block may have cost

cdef struct Kinds:
    int32_t spacing           # in blocks; 0: nothing is guessed
    int32_t apart             # there are points only where a state is kept
    uint32_t kept             # a bit for each kind whose points count
    int64_t slots
    int64_t worth             # pages that one gained block may have cost
    int64_t prices[NUM_KINDS]
    int64_t cost[NUM_KINDS]   # pages
    int64_t gain[NUM_KINDS]   # blocks


cdef void kinds_open(Kinds *k, int32_t spacing, int64_t row_pages, int64_t point_pages, int64_t slots,
                     int32_t num_groups) noexcept nogil:
    cdef int32_t i
    k.spacing, k.apart, k.slots, k.kept, k.worth = spacing, row_pages == 0, slots, 1 << NAMED, WORTH * num_groups
    for i in range(1, NUM_KINDS):
        k.prices[i] = row_pages if NEAR <= i < END else point_pages   # those near an end lie side by side


cdef inline int32_t kind_at(Kinds *k, int32_t depth, int32_t edge) noexcept nogil:
    """What the node at that depth is to a prompt whose last block edge is `edge`; 0: nothing."""
    cdef int32_t bin = 0
    if k.spacing == 0:
        return 0
    if depth == edge:
        return END
    if not k.apart and edge - depth <= FARTHEST:
        while edge - depth > 2 << bin:
            bin += 1
        return NEAR + bin
    return 0 if depth % k.spacing else SPACED


cdef bint judge(Kinds *k, int32_t kind) noexcept nogil:
    """Whether another verdict is given. Callers are trusted until what they named has cost a fourth of the slots."""
    cdef uint32_t before = k.kept
    cdef bint trusted = kind == NAMED and k.cost[kind] <= k.slots // 4
    k.kept &= ~(<uint32_t> 1 << kind)
    if trusted or 0 < k.cost[kind] <= k.worth * k.gain[kind]:
        k.kept |= <uint32_t> 1 << kind
    return k.kept != before


cdef bint pay(Kinds *k, int32_t kind) noexcept nogil:
    """One more point of a kind."""
    k.cost[kind] += k.prices[kind]
    if k.cost[kind] >= 2 * k.slots:
        k.cost[kind] //= 2
        k.gain[kind] //= 2
    return judge(k, kind)


cdef bint earn(Kinds *k, int32_t kind, int32_t blocks) noexcept nogil:
    """A point of a kind was resumed at, or would have been: so many blocks behind any other."""
    k.gain[kind] += blocks
    return judge(k, kind)
