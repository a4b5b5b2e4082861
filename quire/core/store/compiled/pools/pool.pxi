# Owns: the pages of one group: copies, holders, claims, retention; where each copy is listed; what is available.
# Does not know: the tree (a page's node is a number), rows, when to evict.

cdef enum:
    TOTAL, NEW, REUSED_FULL, REUSED_PARTIAL, MISSED, ONBOARDED
    OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS
    REUSED_FROM               # one per tier from here on
    MAX_TIERS = 8
    MAX_CLAIMS = 0xFFFFFF
    PARTIAL_FROM = 20         # of those, partial hits
    SKIPPED = 28              # snapshots not taken: the state may have gone on
    NUM_COUNTERS = 29
    MAX_RUN = 32

cdef struct Pool:
    char *pages
    Py_ssize_t stride         # bytes of a page
    int32_t num_pages
    int32_t num_tiers
    int32_t index             # of the group
    int32_t tail              # blocks a hit needs before its end, -1: all
    int32_t sink              # and at its start
    int32_t keep              # blocks before its committed end that a row goes on holding, -1: all
    int32_t every             # with `current`: a growing row gets a page in every so-manieth column, 0: in none
    int32_t extra             # tokens of standing room behind a row's length
    int32_t current           # 1: a row has one page outside its columns, which it goes on writing
    int32_t free              # top of the free pages, or -1
    int32_t available         # slots of tier 0 that are empty or hold an idle page nobody claims, less `reserved`
    int32_t reserved          # slots promised to rows
    int32_t empty_class
    int32_t[MAX_RUN] run      # slots cut out of the order for pages that are being made; empty between calls
    int32_t run_at
    int32_t run_end
    int64_t to_cut            # slots the present call will still cut
    Order *tiers
    Expiries times
    int64_t *counters         # NumPy memory from here on
    int64_t *row_counters
    int32_t *row_pages
    int32_t *row_slots
    int32_t *capacity
    int32_t *currents         # per row: that page, or -1
    int32_t *current_slots


cdef inline Page *page_at(Pool *g, int32_t p) noexcept nogil:
    return <Page *> (g.pages + p * g.stride)


cdef inline int32_t hottest(Pool *g, Page *page) noexcept nogil:
    """The tier of the hottest copy; num_tiers when there is none."""
    cdef int32_t t = 0
    while t < g.num_tiers and page.slot[t] < 0:
        t += 1
    return t


cdef inline void list_empty(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    g.tiers[t].slots[slot].page = -1
    push_back(g.tiers + t, slot, g.empty_class)
    g.tiers[t].num_empty += 1
    if t == 0:
        g.available += 1


cdef inline void unlist_empty(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    unlist(g.tiers + t, slot, g.empty_class)
    g.tiers[t].num_empty -= 1
    if t == 0:
        g.available -= 1


cdef inline void list_idle(Pool *g, int32_t t, Page *page) noexcept nogil:
    push_back(g.tiers + t, page.slot[t], FIRST + priority_of(page))
    g.tiers[t].num_idle += 1
    if t == 0 and claims_of(page) == 0:
        g.available += 1


cdef inline void unlist_idle(Pool *g, int32_t t, Page *page) noexcept nogil:
    unlist(g.tiers + t, page.slot[t], FIRST + priority_of(page))
    g.tiers[t].num_idle -= 1
    if t == 0 and claims_of(page) == 0:
        g.available -= 1


cdef inline void list_shadow(Pool *g, int32_t t, Page *page) noexcept nogil:
    push_back(g.tiers + t, page.slot[t], SHADOW)
    g.tiers[t].num_shadow += 1


cdef inline void unlist_shadow(Pool *g, int32_t t, Page *page) noexcept nogil:
    unlist(g.tiers + t, page.slot[t], SHADOW)
    g.tiers[t].num_shadow -= 1


cdef inline void put_copy(Pool *g, int32_t p, int32_t t, int32_t slot) noexcept nogil:
    """Page p has a copy there now; it is not listed yet."""
    page_at(g, p).slot[t] = slot
    g.tiers[t].slots[slot].page = p


cdef bint drop_copy(Pool *g, int32_t p, int32_t t) noexcept nogil:
    """Give up one copy, if it is a shadow."""
    cdef Page *page = page_at(g, p)
    if page.holders < 0 or page.slot[t] < 0 or hottest(g, page) == t:
        return False
    unlist_shadow(g, t, page)
    list_empty(g, t, page.slot[t])
    page.slot[t] = -1
    return True


cdef inline void drop_shadows(Pool *g, Page *page, int32_t t) noexcept nogil:
    """Give up all copies colder than tier t, the hottest."""
    cdef int32_t u
    for u in range(t + 1, g.num_tiers):
        if page.slot[u] >= 0:
            unlist_shadow(g, u, page)
            list_empty(g, u, page.slot[u])
            page.slot[u] = -1


cdef inline int64_t duration_of(Pool *g, int32_t p) noexcept nogil:
    return -1 if g.times.duration == NULL else g.times.duration[p]


cdef inline void set_duration(Pool *g, int32_t p, int64_t duration) noexcept nogil:
    if g.times.duration != NULL:
        g.times.duration[p] = duration


cdef inline void renew_page(Pool *g, int32_t p, int32_t priority, int64_t duration) noexcept nogil:
    """The page id is handed out: an open page without copies, held once."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t
    page.node = -1
    page.holders = 1
    page.claimed = <uint32_t> priority
    page.stamp += 1
    page.slot[0] = -1         # apart, so that one tier does not cost a call of memset
    for t in range(1, g.num_tiers):
        page.slot[t] = -1
    if g.times.duration != NULL:
        g.times.duration[p] = duration
        g.times.expiry[p] = -1


cdef inline int32_t pop_page(Pool *g, int32_t priority, int64_t duration) noexcept nogil:
    """A free page, renewed. There is always one: as many pages as slots."""
    cdef int32_t p = g.free
    g.free = page_at(g, p).node
    renew_page(g, p, priority, duration)
    return p


cdef inline void push_page(Pool *g, int32_t p) noexcept nogil:
    """The page id is free; its copies are somebody else's, or none."""
    cdef Page *page = page_at(g, p)
    page.node = g.free
    page.holders = -1
    g.free = p
    if g.times.expiry != NULL:
        g.times.expiry[p] = -1


cdef inline void free_page(Pool *g, int32_t p, bint listed) noexcept nogil:
    """Free a page without node; its hottest copy is `listed` or not, its shadows are."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t = hottest(g, page)
    if t < g.num_tiers:
        if listed:
            unlist_idle(g, t, page)
        list_empty(g, t, page.slot[t])
        if t + 1 < g.num_tiers:
            drop_shadows(g, page, t)
    push_page(g, p)


cdef inline void hold_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    page.holders += 1
    if page.holders == 1:
        unlist_idle(g, hottest(g, page), page)
        if g.times.expiry != NULL:
            g.times.expiry[p] = -1


cdef inline void let_go(Pool *g, int32_t p, int64_t now) noexcept nogil:
    """One holder less; the last one leaves a committed page idle, an open one free."""
    cdef Page *page = page_at(g, p)
    page.holders -= 1
    if page.holders:
        return
    if page.node < 0:
        free_page(g, p, False)
        return
    list_idle(g, hottest(g, page), page)
    if g.times.duration != NULL and g.times.duration[p] >= 0 and priority_of(page) != DEFAULT_PRIORITY:
        g.times.expiry[p] = <int64_t> (<uint64_t> now + <uint64_t> g.times.duration[p])
        heap_note(&g.times, p)


cdef inline bint is_own(Pool *g, int32_t p) noexcept nogil:
    """Open and in one hand only."""
    return page_at(g, p).node < 0 and page_at(g, p).holders == 1


cdef inline void claim_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    if claims_of(page) == 0 and page.holders == 0 and page.slot[0] >= 0:
        g.available -= 1
    page.claimed += ONE_CLAIM


cdef inline void unclaim_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    page.claimed -= ONE_CLAIM
    if claims_of(page) == 0 and page.holders == 0:
        if page.slot[0] >= 0:
            g.available += 1
        rewind(g.tiers + hottest(g, page), FIRST + priority_of(page))


cdef int32_t pick_page(Pool *g, Order *o) noexcept nogil:
    cdef uint64_t bits
    cdef int32_t word, kind, slot
    for word in range(2):
        bits = o.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            slot = o.cursor[kind]
            if kind != SHADOW:
                while slot < o.size and o.slots[slot].page >= 0 and claims_of(page_at(g, o.slots[slot].page)):
                    slot = o.slots[slot].next
                o.cursor[kind] = slot
            if slot < o.size:
                return slot
            bits &= bits - 1
    return -1


cdef inline int32_t pick(Pool *g, int32_t t) noexcept nogil:
    """The slot to take next, or -1: classes ascending, front to back, no claimed pages (but shadows of them)."""
    cdef Order *o = g.tiers + t
    if o.filled[0] & 1:       # EMPTY
        return o.cursor[EMPTY]
    return pick_page(g, o)


cdef inline bint is_short(Pool *g, int64_t wanted, int64_t more) noexcept nogil:
    """Whether so many slots are more than is available, and `more`. What is available may be less than nothing (claims
    rest on promised slots), but who wants nothing is not short."""
    return wanted > 0 and wanted > g.available + more


cdef int pool_open(Pool *g, const int32_t *sizes, int32_t empty_class) noexcept nogil:
    """All pages free, all slots empty; -1 without memory."""
    cdef int32_t p, t, slot
    g.stride = sizeof(Page) + 4 * (g.num_tiers - 1)
    g.empty_class = empty_class
    g.pages = <char *> calloc(max(1, g.num_pages), g.stride)
    g.tiers = <Order *> calloc(g.num_tiers, sizeof(Order))
    if g.pages == NULL or g.tiers == NULL:
        return -1
    for t in range(g.num_tiers):
        if order_open(g.tiers + t, sizes[t]):
            return -1
        for slot in range(sizes[t]):
            list_empty(g, t, slot)
    g.free = -1
    for p in range(g.num_pages - 1, -1, -1):
        for t in range(g.num_tiers):
            page_at(g, p).slot[t] = -1
        page_at(g, p).claimed = DEFAULT_PRIORITY
        push_page(g, p)
    return 0


cdef void pool_close(Pool *g) noexcept nogil:
    cdef int32_t t
    if g.tiers != NULL:
        for t in range(g.num_tiers):
            free(g.tiers[t].slots)
    free(g.tiers)
    free(g.pages)
    free(g.times.duration)
    free(g.times.heap)
