# Owns: durations and expiries of a group's pages, allocated when first used; the heap of noted expiries, which has at
# most one entry a page: an expiry that was called off stays in it until it comes up or the page gets another one.
# Does not know: what happens to a page whose time has come.


cdef int expiry_open(Pool *g) noexcept nogil:
    """Allocate durations and expiries; -1 without memory."""
    cdef Py_ssize_t n = g.num_pages, i
    cdef int64_t *ticks
    cdef int32_t *places
    if g.duration != NULL:
        return 0
    ticks = <int64_t *> malloc(32 * n)
    places = <int32_t *> malloc(8 * n)
    if ticks == NULL or places == NULL:
        free(ticks)
        free(places)
        return -1
    g.duration, g.expiry, g.noted, g.turn = ticks, ticks + n, ticks + 2 * n, ticks + 3 * n
    g.heap, g.heap_at = places, places + n
    for i in range(n):
        g.duration[i] = g.expiry[i] = g.noted[i] = g.turn[i] = g.heap_at[i] = -1
    return 0


cdef inline bint sooner(Pool *g, int32_t p, int32_t q) noexcept nogil:
    return g.noted[p] < g.noted[q] or (g.noted[p] == g.noted[q] and g.turn[p] < g.turn[q])


cdef inline void heap_put(Pool *g, int32_t place, int32_t p) noexcept nogil:
    g.heap[place] = p
    g.heap_at[p] = place


cdef void heap_settle(Pool *g, int32_t place, int32_t p) noexcept nogil:
    """Put p at `place`, then up or down to where it belongs."""
    cdef int32_t above, below
    while place > 0:
        above = (place - 1) >> 1
        if not sooner(g, p, g.heap[above]):
            break
        heap_put(g, place, g.heap[above])
        place = above
    while True:
        below = 2 * place + 1
        if below + 1 < g.heap_size and sooner(g, g.heap[below + 1], g.heap[below]):
            below += 1
        if below >= g.heap_size or not sooner(g, g.heap[below], p):
            break
        heap_put(g, place, g.heap[below])
        place = below
    heap_put(g, place, p)


cdef void heap_note(Pool *g, int32_t p) noexcept nogil:
    """Note the page's expiry."""
    cdef int32_t place = g.heap_at[p]
    if place < 0:
        place = g.heap_size
        g.heap_size += 1
    g.noted[p], g.turn[p] = g.expiry[p], g.turns
    g.turns += 1
    heap_settle(g, place, p)


cdef int32_t heap_due(Pool *g, int64_t now) noexcept nogil:
    """Take the earliest note out of the heap if its time has come, else -1."""
    cdef int32_t p, last
    if g.heap_size == 0 or g.noted[g.heap[0]] > now:
        return -1
    p = g.heap[0]
    g.heap_at[p] = -1
    g.heap_size -= 1
    last = g.heap[g.heap_size]
    if last != p:
        heap_settle(g, 0, last)
    return p
