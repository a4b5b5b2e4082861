# Owns: durations and expiries of a group's pages, allocated when first used; the heap of noted expiries, which has at
# most one entry a page: an expiry that was called off stays in it until it comes up or the page gets another one.
# Does not know: what happens to a page whose time has come.

cdef struct Expiries:
    int64_t *duration         # of each page in ticks, -1: none; NULL until somebody gives one
    int64_t *expiry           # -1: none
    int64_t *noted            # the expiry a page has in the heap
    int64_t *turn             # and when it was noted
    int64_t turns
    int32_t *heap             # pages by (noted, turn)
    int32_t *heap_at          # place of a page in it, -1: not in
    int32_t heap_size


cdef int expiry_open(Expiries *e, Py_ssize_t n) noexcept nogil:
    """Allocate durations and expiries of n pages; -1 without memory."""
    cdef Py_ssize_t i
    cdef int64_t *ticks
    cdef int32_t *places
    if e.duration != NULL:
        return 0
    ticks = <int64_t *> malloc(32 * n)
    places = <int32_t *> malloc(8 * n)
    if ticks == NULL or places == NULL:
        free(ticks)
        free(places)
        return -1
    e.duration, e.expiry, e.noted, e.turn = ticks, ticks + n, ticks + 2 * n, ticks + 3 * n
    e.heap, e.heap_at = places, places + n
    for i in range(n):
        e.duration[i] = e.expiry[i] = e.noted[i] = e.turn[i] = e.heap_at[i] = -1
    return 0


cdef inline bint sooner(Expiries *e, int32_t p, int32_t q) noexcept nogil:
    return e.noted[p] < e.noted[q] or (e.noted[p] == e.noted[q] and e.turn[p] < e.turn[q])


cdef inline void heap_put(Expiries *e, int32_t place, int32_t p) noexcept nogil:
    e.heap[place] = p
    e.heap_at[p] = place


cdef void heap_settle(Expiries *e, int32_t place, int32_t p) noexcept nogil:
    """Put p at `place`, then up or down to where it belongs."""
    cdef int32_t above, below
    while place > 0:
        above = (place - 1) >> 1
        if not sooner(e, p, e.heap[above]):
            break
        heap_put(e, place, e.heap[above])
        place = above
    while True:
        below = 2 * place + 1
        if below + 1 < e.heap_size and sooner(e, e.heap[below + 1], e.heap[below]):
            below += 1
        if below >= e.heap_size or not sooner(e, e.heap[below], p):
            break
        heap_put(e, place, e.heap[below])
        place = below
    heap_put(e, place, p)


cdef void heap_note(Expiries *e, int32_t p) noexcept nogil:
    """Note the page's expiry."""
    cdef int32_t place = e.heap_at[p]
    if place < 0:
        place = e.heap_size
        e.heap_size += 1
    e.noted[p], e.turn[p] = e.expiry[p], e.turns
    e.turns += 1
    heap_settle(e, place, p)


cdef int32_t heap_due(Expiries *e, int64_t now) noexcept nogil:
    """Take the earliest note out of the heap if its time has come, else -1."""
    cdef int32_t p, last
    if e.heap_size == 0 or e.noted[e.heap[0]] > now:
        return -1
    p = e.heap[0]
    e.heap_at[p] = -1
    e.heap_size -= 1
    last = e.heap[e.heap_size]
    if last != p:
        heap_settle(e, 0, last)
    return p
