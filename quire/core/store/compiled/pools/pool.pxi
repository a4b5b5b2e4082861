# Owns: the pages of one group in its pool: copies, holders, claims, retention; what is available.
# Does not know: the tree (a page's node is a number), rows, when to evict.


cdef inline void note_slot(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    """What is to be reported of a slot of the slow tier has changed."""
    if g.notes != NULL and slot >= 0 and t == g.slow:
        mark_changed(g.notes, slot)


cdef inline void put_copy(Pool *g, int32_t p, int32_t t, int32_t slot) noexcept nogil:
    """Page p has a copy there now; it is not listed yet."""
    page_at(g, p).slot[t] = slot
    g.tiers[t].slots[slot].page = p
    note_copy(g.tenure, p)
    if t:
        note_slot(g, t, slot)


cdef bint drop_copy(Pool *g, int32_t p, int32_t t) noexcept nogil:
    """Give up one copy, if it is a shadow that nobody reads."""
    cdef Page *page = page_at(g, p)
    if page.holders < 0 or page.slot[t] < 0 or hottest(g, page) == t or (stays_of(g, p) and claims_of(page)):
        return False
    note_slot(g, t, page.slot[t])
    unlist_shadow(g, t, page)
    list_empty(g, t, page.slot[t])
    page.slot[t] = -1
    note_copy(g.tenure, p)
    return True


cdef inline void drop_shadows(Pool *g, Page *page, int32_t t) noexcept nogil:
    """Give up all copies colder than tier t, the hottest."""
    cdef int32_t u
    if g.tenure != NULL:
        note_copy(g.tenure, <int32_t> ((<char *> page - <char *> g.pages) // g.stride))
    for u in range(t + 1, g.num_tiers):
        if page.slot[u] >= 0:
            note_slot(g, u, page.slot[u])
            unlist_shadow(g, u, page)
            list_empty(g, u, page.slot[u])
            page.slot[u] = -1


cdef inline int64_t duration_of(Pool *g, int32_t p) noexcept nogil:
    return -1 if g.room.times.duration == NULL else g.room.times.duration[p]


cdef inline void set_duration(Pool *g, int32_t p, int64_t duration) noexcept nogil:
    if g.room.times.duration != NULL:
        g.room.times.duration[p] = duration


cdef inline void renew_page(Pool *g, int32_t p, int32_t priority, int64_t duration) noexcept nogil:
    """The page id is handed out: an open page without copies, held once."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t
    page.node = -1
    page.holders = 1
    page.claimed = <uint32_t> priority << 1 | NEEDED
    page.stamp += 1
    note_made(g.tenure, p)
    page.slot[0] = -1         # apart, so that one tier does not cost a call of memset
    for t in range(1, g.num_tiers):
        page.slot[t] = -1
    if g.room.times.duration != NULL:
        g.room.times.duration[p] = duration
        g.room.times.expiry[p] = -1
    if g.owners != NULL:
        g.owners[p] = <uint16_t> g.index
    if g.cells != NULL:
        g.cells.made += 1
        begin(g.cells, p, 1)


cdef inline int32_t free_id(Pool *g) noexcept nogil:
    """A page that is free no more, to be renewed. There is always one: as many pages as slots."""
    cdef int32_t p = g.room.free
    g.room.free = page_at(g, p).node
    return p


cdef inline int32_t pop_page(Pool *g, int32_t priority, int64_t duration) noexcept nogil:
    """A free page, renewed."""
    cdef int32_t p = free_id(g)
    renew_page(g, p, priority, duration)
    return p


cdef inline void push_page(Pool *g, int32_t p) noexcept nogil:
    """The page id is free; its copies are somebody else's, or none."""
    cdef Page *page = page_at(g, p)
    page.node = g.room.free
    page.holders = -1
    g.room.free = p
    note_copy(g.tenure, p)
    if g.stays != NULL:
        g.stays[p] = 0
    if g.room.times.expiry != NULL:
        g.room.times.expiry[p] = -1


cdef inline void free_page(Pool *g, int32_t p, bint listed) noexcept nogil:
    """Free a page without node; its hottest copy is `listed` or not, its shadows are."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t = hottest(g, page)
    if t < g.num_tiers:
        if listed:
            unlist_idle(g, t, page)
        note_slot(g, t, page.slot[t])
        list_empty(g, t, page.slot[t])
        if t + 1 < g.num_tiers:
            drop_shadows(g, page, t)
    push_page(g, p)


cdef void free_unused(Pool *g, int32_t p) noexcept nogil:
    """A page outside the tree without holders and claims goes back. Apart: it is seldom called."""
    free_page(g, p, False)


cdef inline void hold_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    page.holders += 1
    if page.holders == 1:
        unlist_idle(g, hottest(g, page), page)
        if g.room.times.expiry != NULL:
            g.room.times.expiry[p] = -1


cdef inline void let_go(Pool *g, int32_t p, int64_t now, int32_t known) noexcept nogil:
    """One holder less; the last one leaves a committed page idle, an open one free. `known`: what is, of its place."""
    cdef Page *page = page_at(g, p)
    page.holders -= 1
    if page.holders:
        return
    if page.node < 0:
        if page.claimed < ONE_CLAIM:
            free_page(g, p, False)
        return
    list_idle(g, hottest(g, page), page, known)
    if g.room.times.duration != NULL and g.room.times.duration[p] >= 0 and priority_of(page) != DEFAULT_PRIORITY:
        g.room.times.expiry[p] = <int64_t> (<uint64_t> now + <uint64_t> g.room.times.duration[p])
        heap_note(&g.room.times, p)


cdef int32_t rank_above(Pool *g, int32_t n, int32_t *below, int32_t *steps) noexcept nogil:
    """What is known of the place of a block's page, the node `below` which is so many steps from a resume point: where
    pages go one after the other, the last first, nobody has to look down from each of them."""
    if below[0] >= 0 and at(g.tree, below[0]).parent == n:
        steps[0] = 0 if is_point(g.tree, n) else min(steps[0] + 1, g.tail)
    else:
        steps[0] = steps_to_point(g.tree, n, g.tail)
    below[0] = n
    if steps[0] < g.tail or at(g.tree, n).size < g.tree.block_size or is_sink(g.tree, n, g.sink):
        return IS_NEEDED
    return IS_PASSED


cdef void strand_page(Pool *g, int32_t p) noexcept nogil:
    """A page that was idle has left its node: it stays, unlisted, for those who claim it, or goes back."""
    cdef Page *page = page_at(g, p)
    if claims_of(page) == 0:
        free_page(g, p, True)
        return
    unlist_idle(g, hottest(g, page), page)
    if g.room.times.expiry != NULL:
        g.room.times.expiry[p] = -1


cdef inline bint is_own(Pool *g, int32_t p) noexcept nogil:
    """Open and in one hand only."""
    return page_at(g, p).node < 0 and page_at(g, p).holders == 1


cdef inline void claim_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    if claims_of(page) == 0 and page.holders == 0 and page.slot[0] >= 0:
        g.room.available -= 1
    page.claimed += ONE_CLAIM


cdef inline void rewind_idle(Pool *g, int32_t t, int32_t p) noexcept nogil:
    """An idle page whose hottest copy is in tier t may be taken again: it may lie before the cursor."""
    if g.cells == NULL:
        rewind(g.tiers + t, class_of_idle(page_at(g, p)))
    elif memory_at(g.cells, p).kind == IN_COVERED:
        rewind(g.tiers + t, COVERED)
    else:
        rewind_cell(g.tiers + t, kind_of(g, page_at(g, p)))


cdef inline void unclaim_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    page.claimed -= ONE_CLAIM
    if claims_of(page) == 0 and page.holders == 0:
        if page.node < 0:     # it was kept for its claims alone
            free_unused(g, p)
            return
        if page.slot[0] >= 0:
            g.room.available += 1
        rewind_idle(g, hottest(g, page), p)


cdef inline void put_unwanted(Page *page, bint unwanted) noexcept nogil:
    """An unlisted page becomes unwanted, or wanted again."""
    page.claimed = page.claimed & ~<uint32_t> UNWANTED | NEEDED
    if unwanted:
        page.claimed |= UNWANTED


cdef void hear_page(Pool *g, int32_t p, int32_t back) noexcept nogil:
    """A hint says when a page comes back (0: unknown): an idle page goes to where it belongs then."""
    cdef Page *page = page_at(g, p)
    cdef bint unwanted = g.hears and back + HINT_SHIFT == NEVER, idle = page.holders == 0 and page.node >= 0
    if g.cells != NULL:
        if tell(g.cells, p, back) and idle:
            relist(g, hottest(g, page), page)
    elif unwanted != (page.claimed & UNWANTED != 0):
        if idle:
            leave_idle(g, hottest(g, page), page)
        put_unwanted(page, unwanted)
        if idle:
            enter_idle(g, hottest(g, page), page, UNKNOWN)


cdef inline int32_t hint_of(Pool *g, Page *page) noexcept nogil:
    """The hint that a page is ranked by, 0: none."""
    if g.cells != NULL:
        return hint_in(class_in(memory_behind(g, page)))
    return NEVER - HINT_SHIFT if page.claimed & UNWANTED else 0


cdef inline void end_hint(Pool *g, int32_t p) noexcept nogil:
    """A page is used: the hint given for it ends."""
    cdef int32_t hint = hint_of(g, page_at(g, p))
    if hint:
        g.counters[FOUND_AGAIN + hint] += 1
        if g.cells == NULL:
            hear_page(g, p, 0)


cdef void use_page(Pool *g, int32_t p) noexcept nogil:
    """An admission found a page."""
    if g.hinted:
        end_hint(g, p)
    if g.cells == NULL:
        return
    if memory_at(g.cells, p).reuse & WATCHED:
        find_watched(&g.cells.rival, key_at(g.tree, page_at(g, p).node) ^ g.salt)
    use(g.cells, p)


cdef inline void keep_page(Pool *g, int32_t p) noexcept nogil:
    """Its copies below the device stay where they are: their slots are not taken. With one tier there are none."""
    if g.stays != NULL:
        g.stays[p] += 1


cdef void unkeep_page(Pool *g, int32_t p) noexcept nogil:
    cdef Page *page = page_at(g, p)
    cdef int32_t t, first
    if g.stays == NULL:
        return
    g.stays[p] -= 1
    if stays_of(g, p):
        return
    first = hottest(g, page)
    for t in range(1, g.num_tiers):
        if page.slot[t] >= 0 and g.tiers[t].slots[page.slot[t]].prev >= 0:
            if t == first:
                rewind_idle(g, t, p)
            else:
                rewind(g.tiers + t, SHADOW)


cdef inline bint is_short(Pool *g, int64_t wanted, int64_t more) noexcept nogil:
    """Whether so many slots are more than is available, and `more`. What is available may be less than nothing (claims
    rest on reserved slots), but who wants nothing is not short."""
    return wanted > 0 and wanted > g.room.available + more


cdef void count_pages(Pool *g, int64_t *census) noexcept nogil:
    """Pages in the tree by cell."""
    cdef int32_t p = 0, step = stride(g.num_pages)
    while p < g.num_pages:
        if page_at(g, p).holders >= 0 and page_at(g, p).node >= 0:
            census[cell(g.cells, p)] += step
        p += step


cdef void set_rank(Pool *g, const int32_t *cells, bint recency) noexcept nogil:
    """The order in which cells are evicted, in every tier; `recency`: from now on all pages join those of one class."""
    cdef int32_t i, t
    g.cells.falls += recency and not g.cells.recency
    g.cells.recency = recency
    for i in range(NUM_CELLS):
        g.cells.list_at[i + 1] = cells[i] + 1
        g.cells.rank_of[cells[i] + 1] = i + 1
    for t in range(g.num_tiers):
        order_ranked(g.tiers + t, g.cells)


cdef int level_open(Pool *g, int32_t priority) noexcept nogil:
    """Lists for the cells of a priority, in every tier, if there are none yet; -1 without memory."""
    cdef int32_t t
    if g.cells == NULL or g.cells.level_of[priority] >= 0:
        return 0
    for t in range(g.num_tiers):
        if order_widen(g.tiers + t, g.cells.num_levels, priority):
            return -1
    g.cells.level_of[priority] = g.cells.num_levels
    g.cells.num_levels += 1
    return 0


cdef int pool_open(Pool *g, const int32_t *sizes, int32_t empty_class, bint adaptive) noexcept nogil:
    """All pages free, all slots empty; -1 without memory. In the adaptive order each page has its memory behind it."""
    cdef int32_t p, t, slot
    g.stride = sizeof(Page) + 4 * (g.num_tiers - 1)
    if adaptive:
        g.stride = (g.stride + sizeof(Memory) + 7) & ~7
    g.empty_class = empty_class
    g.pages_memory = table_alloc(g.num_pages * g.stride + LINE)
    g.pages = on_line(g.pages_memory)
    g.tiers = <Order *> calloc(g.num_tiers, sizeof(Order))
    if g.pages_memory == NULL or g.tiers == NULL:
        return -1
    if g.num_tiers > 1:
        g.stays = <uint32_t *> calloc(g.num_pages, 4)
        if g.stays == NULL:
            return -1
    for t in range(g.num_tiers):
        if order_open(g.tiers + t, sizes[t]):
            return -1
        for slot in range(sizes[t]):
            list_empty(g, t, slot)
    g.room.free = -1
    for p in range(g.num_pages - 1, -1, -1):
        for t in range(g.num_tiers):
            page_at(g, p).slot[t] = -1
        page_at(g, p).claimed = DEFAULT_PRIORITY << 1 | NEEDED
        push_page(g, p)
    return 0


cdef void pool_close(Pool *g) noexcept nogil:
    cdef int32_t t
    if g.tiers != NULL:
        for t in range(g.num_tiers):
            free(g.tiers[t].slots)
            free(g.tiers[t].levels)
    free(g.tiers)
    free(g.pages_memory)
    free(g.stays)
    free(g.owners)
    if g.notes != NULL:
        notes_close(g.notes)
        free(g.notes)
    if g.tenure != NULL:
        tenure_close(g.tenure)
        free(g.tenure)
    free(g.room.times.duration)
    free(g.room.times.heap)
    if g.cells != NULL:
        cells_close(g.cells)
        free(g.cells)
    elif g.ghosts != NULL:
        ghosts_close(g.ghosts)
        free(g.ghosts)


cdef object take_tenure(Pool *g):
    """Rows of (page, stamp, row it was made for, tiers of its copies | 256 for a dropped one), by page."""
    cdef Tenure *e = g.tenure
    cdef Page *page
    cdef int32_t word, p, t
    made = np.empty((e.count, 4), np.int32)
    cdef int32_t *row = <int32_t *> memory_of(made)
    for word in range(e.num_words if e.count else 0):
        while e.changed[word]:
            p = 64 * word + lowest_bit(e.changed[word])
            page = page_at(g, p)
            row[0], row[1], row[2] = p, page.stamp, e.makers[p]
            row[3] = 256 * <int32_t> (e.dropped[word] >> (p & 63) & 1)
            for t in range(g.num_tiers if page.holders >= 0 else 0):      # one that is free has its old places
                row[3] |= (page.slot[t] >= 0) << t
            row += 4
            e.changed[word] &= e.changed[word] - 1
        e.dropped[word] = 0
    e.count = 0
    return made
