# Owns: one group in its pool in one struct; where each slot is listed, and which is taken next. In the adaptive order a page waits in a cell, or is covered: in a group that needs all blocks a parent does not go before its child. In
# a group with a window pages that are passed go before others.
# Does not know: the tree beyond a page's node and what points say, who holds a page, rows.

cdef enum:
    TOTAL, NEW, REUSED_FULL, REUSED_PARTIAL, MISSED, ONBOARDED
    OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS
    REUSED_FROM               # one per tier from here on
    MAX_TIERS = 8
    MAX_CLAIMS = 0xFFFFFF
    PARTIAL_FROM = 20         # of those, partial hits
    SKIPPED = 28              # snapshots not taken: the state may have gone on
    BEHIND = 29               # of the dropped: those that should have had a copy in the slow tier
    COPIED_DOWN = 30          # background copies
    PREFETCHED = 31
    NUM_COUNTERS = 32
    MAX_RUN = 32

cdef uint32_t COPYING = 1 << 31           # in `stays`: a background copy of the page is being made

cdef struct Pool:             # the pages of one group: numbers of its own, and its pool's
    Room *room
    char *pages
    void *pages_memory        # where they were had
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
    int32_t ranked            # pages may be passed: it has a window, and its order ranks
    int32_t overtakes         # the same of one that has snapshots
    int32_t leaves_only       # it needs all blocks: in the adaptive order a parent does not go before its child
    int32_t first             # group of the pool; it gives the memory back
    int32_t num_peaks         # rows for which slots are reserved
    int32_t empty_class
    int32_t[MAX_RUN] run      # slots cut out of the order for pages that are being made; empty between calls
    int32_t[MAX_RUN] dropped  # for the first `num_paired` of them: the page there, or one of the host if that goes down
    int32_t num_paired, run_at, run_end
    int64_t to_cut            # slots the present call will still cut
    uint64_t salt             # keeps its ghosts apart from those of other groups of the pool
    uint16_t *owners          # per page: its group; NULL: the pool is one group's
    Order *tiers
    Cells *cells              # of the adaptive order; NULL in others
    Ghosts *ghosts            # its own, or those of an order that learns nothing; NULL: what is gone is not remembered
    Tree *tree
    int64_t *counters         # NumPy memory from here on
    int64_t *row_counters
    int32_t *row_pages
    int32_t *row_slots
    int32_t *capacity
    int32_t *currents         # per row: that page, or -1
    int32_t *current_slots
    uint32_t *stays           # per page, not NumPy's any more: who needs its colder copies where they are | COPYING; NULL with one tier
    Notes *notes              # of changes in the slow tier; NULL: nobody wants them
    int32_t slow              # the tier that no step waits for, -1: there is none


cdef inline Page *page_at(Pool *g, int32_t p) noexcept nogil:
    return <Page *> (g.pages + p * g.stride)


cdef inline bint is_mine(Pool *g, int32_t p) noexcept nogil:
    """Whether a page of the pool is one of the group's."""
    return g.owners == NULL or g.owners[p] == g.index


cdef inline uint32_t stays_of(Pool *g, int32_t p) noexcept nogil:
    return 0 if g.stays == NULL else g.stays[p] & ~COPYING


cdef inline bint is_copying(Pool *g, int32_t p) noexcept nogil:
    return g.stays != NULL and g.stays[p] & COPYING


cdef inline Memory *memory_behind(Pool *g, Page *page) noexcept nogil:
    """What the adaptive order knows of a page."""
    return <Memory *> (<char *> page + g.stride - sizeof(Memory))


cdef inline int32_t hottest(Pool *g, Page *page) noexcept nogil:
    """The tier of the hottest copy; num_tiers when there is none."""
    cdef int32_t t = 0
    while t < g.num_tiers and page.slot[t] < 0:
        t += 1
    return t


cdef inline bint is_near(Pool *g, int32_t p) noexcept nogil:
    """Whether there is a page, and a copy of it outside the slow tier."""
    return p >= 0 and (g.slow < 0 or hottest(g, page_at(g, p)) != g.slow)


cdef inline void list_empty(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    g.tiers[t].slots[slot].page = -1
    push_back(g.tiers + t, slot, g.empty_class)
    g.tiers[t].num_empty += 1
    if t == 0:
        g.room.available += 1


cdef inline void unlist_empty(Pool *g, int32_t t, int32_t slot) noexcept nogil:
    unlist(g.tiers + t, slot, g.empty_class)
    g.tiers[t].num_empty -= 1
    if t == 0:
        g.room.available -= 1


cdef inline bint has_any(const int32_t *kids, int32_t t) noexcept nogil:
    """Whether there are children in that tier or a hotter one."""
    cdef int32_t u
    for u in range(t + 1):
        if kids[u]:
            return True
    return False


cdef inline bint has_child(Pool *g, Page *page, int32_t t) noexcept nogil:
    """Whether a child of the page's block is in that tier or a hotter one, and would be of no use without it."""
    if not g.leaves_only or page.node < 0:
        return False
    return has_any(kids_at(g.tree, page.node, g.index), t)


cdef void use_page(Pool *g, int32_t p) noexcept nogil:
    """An admission found a page."""
    if memory_at(g.cells, p).reuse & WATCHED:
        find_watched(&g.cells.rival, key_at(g.tree, page_at(g, p).node) ^ g.salt)
    use(g.cells, p)


cdef inline int32_t list_of(Pool *g, Page *page, int32_t p) noexcept nogil:
    """The list in which an idle page belongs that is not covered."""
    cdef int32_t first = NUM_CLASSES + g.cells.level_of[priority_of(page)] * NUM_LISTS
    return first + 1 + listed_cell(g.cells, p) if page.claimed & NEEDED else first


cdef void list_adaptive(Pool *g, int32_t t, Page *page, bint released) noexcept nogil:
    """An idle page goes to where it belongs; `released`: by its last child."""
    cdef Order *o = g.tiers + t
    cdef int32_t slot = page.slot[t], p = o.slots[slot].page
    cdef int32_t kind = COVERED if has_child(g, page, t) else list_of(g, page, p)
    memory_at(g.cells, p).kind = <uint16_t> kind
    if kind == COVERED:
        push_back(o, slot, COVERED)
    elif released:
        push_released(o, g.cells, slot, kind)
    else:
        push_cell(o, g.cells, slot, kind)


cdef inline void list_covered(Pool *g, int32_t t, Page *page) noexcept nogil:
    """The same of a page that is known to be covered."""
    memory_behind(g, page).kind = COVERED
    push_back(g.tiers + t, page.slot[t], COVERED)


cdef inline void unlist_adaptive(Pool *g, int32_t t, Page *page) noexcept nogil:
    cdef int32_t kind = memory_behind(g, page).kind
    if kind == COVERED:
        unlist(g.tiers + t, page.slot[t], COVERED)
    else:
        unlist_cell(g.tiers + t, g.cells, page.slot[t], kind)


cdef bint passes(Pool *g, Page *page) noexcept nogil:
    """Whether a page of the tree is passed now."""
    if g.overtakes:
        return is_overtaken(g.tree, page.node, g.index)
    return g.ranked and is_passed(g.tree, page.node, g.tail, g.sink)


cdef void set_passed(Pool *g, Page *page, int32_t known) noexcept nogil:
    """Apart: most groups have neither a window nor snapshots."""
    page.claimed |= NEEDED
    if known == IS_PASSED or (known == UNKNOWN and passes(g, page)):
        page.claimed -= NEEDED


cdef inline int32_t class_of_idle(Page *page) noexcept nogil:
    """Where an idle page waits, but for the adaptive order."""
    return FIRST + (page.claimed & 0xFF)


cdef inline void enter_idle(Pool *g, int32_t t, Page *page, int32_t known) noexcept nogil:
    """The hottest copy of an idle page goes to the back of its class; what is counted is the caller's."""
    if g.ranked or g.overtakes:
        set_passed(g, page, known)
    if g.cells == NULL:
        push_back(g.tiers + t, page.slot[t], class_of_idle(page))
    else:
        list_adaptive(g, t, page, False)


cdef inline void leave_idle(Pool *g, int32_t t, Page *page) noexcept nogil:
    """And out of it."""
    if g.cells == NULL:
        unlist(g.tiers + t, page.slot[t], class_of_idle(page))
    else:
        unlist_adaptive(g, t, page)


cdef inline void list_idle(Pool *g, int32_t t, Page *page, int32_t known) noexcept nogil:
    """A page has become idle; `known`: what is, of its place."""
    if known == IS_COVERED:
        list_covered(g, t, page)
    else:
        enter_idle(g, t, page, known)
    g.tiers[t].num_idle += 1
    if t == 0 and claims_of(page) == 0:
        g.room.available += 1


cdef inline void unlist_idle(Pool *g, int32_t t, Page *page) noexcept nogil:
    leave_idle(g, t, page)
    g.tiers[t].num_idle -= 1
    if t == 0 and claims_of(page) == 0:
        g.room.available -= 1


cdef inline void list_shadow(Pool *g, int32_t t, Page *page) noexcept nogil:
    push_back(g.tiers + t, page.slot[t], SHADOW)
    g.tiers[t].num_shadow += 1


cdef inline void unlist_shadow(Pool *g, int32_t t, Page *page) noexcept nogil:
    unlist(g.tiers + t, page.slot[t], SHADOW)
    g.tiers[t].num_shadow -= 1


cdef inline void relist(Pool *g, int32_t t, Page *page) noexcept nogil:
    """An idle page goes to the back of the class in which it belongs now."""
    leave_idle(g, t, page)
    enter_idle(g, t, page, UNKNOWN)


cdef void rank_anew(Pool *g, int32_t p) noexcept nogil:
    """An idle page joins another class if it is passed now, or is not any more."""
    cdef Page *page = page_at(g, p)
    if page.holders == 0 and passes(g, page) == (page.claimed & NEEDED != 0):
        relist(g, hottest(g, page), page)


cdef void look_at_parent(Pool *g, int32_t p) noexcept nogil:
    """A child of an idle page has come or gone: it may belong in another class now."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t = hottest(g, page)
    cdef bint covered
    if t == g.num_tiers:
        return                # it is on its way somewhere
    covered = has_child(g, page, t)
    if (memory_at(g.cells, p).kind == COVERED) != covered:
        unlist_adaptive(g, t, page)
        list_adaptive(g, t, page, not covered)


cdef inline void child_moved(Pool *g, int32_t node, int32_t source, int32_t target) noexcept nogil:
    """The page of a node went from one tier to another (-1: it was not there, is not any more)."""
    cdef int32_t parent = at(g.tree, node).parent, p
    cdef int32_t *kids
    if not g.leaves_only or at(g.tree, parent).flags & ROOT:
        return
    kids = kids_at(g.tree, parent, g.index)
    if source >= 0:
        kids[source] -= 1
    if target >= 0:
        kids[target] += 1
    p = at(g.tree, parent).page[g.index]
    if p >= 0 and page_at(g, p).holders == 0:
        look_at_parent(g, p)


cdef inline bint outranks(Pool *g, int32_t q, int32_t kind, int32_t p, int32_t u) noexcept nogil:
    """In the adaptive order: whether idle page q in the list `kind` of a colder tier shall stay there rather than page p
    come."""
    cdef int32_t there = priority_of(page_at(g, q)), mine = priority_of(page_at(g, p))
    if kind == COVERED or has_child(g, page_at(g, p), u):
        return kind == COVERED
    if there != mine:
        return there > mine
    mine = 0 if passes(g, page_at(g, p)) else 1 + listed_cell(g.cells, p)
    return g.cells.rank_of[(kind - NUM_CLASSES) % NUM_LISTS] > g.cells.rank_of[mine]


cdef bint is_outranked(Pool *g, int32_t p, int32_t u, int32_t slot) noexcept nogil:
    """Whether the idle page listed in a slot of a colder tier shall stay there rather than page p come."""
    cdef int32_t q = g.tiers[u].slots[slot].page
    if g.cells != NULL:
        return outranks(g, q, memory_at(g.cells, q).kind, p, u)
    return class_of_idle(page_at(g, q)) > class_at(priority_of(page_at(g, p)), passes(g, page_at(g, p)))


cdef inline bint is_kept(Pool *g, Order *o, int32_t p) noexcept nogil:
    """Whether a copy of the page in this tier, below the device, must stay there."""
    return o != g.tiers and stays_of(g, p)


cdef int32_t pass_claimed(Pool *g, Order *o, int32_t slot) noexcept nogil:
    """The first slot of a list, from this one on, whose page nobody claims; its sentinel when there is none."""
    cdef int32_t p
    while slot < o.size:
        p = o.slots[slot].page
        if p < 0 or not (claims_of(page_at(g, p)) or is_kept(g, o, p)):
            break
        slot = o.slots[slot].next
    return slot


cdef int32_t pass_kept(Pool *g, Order *o, int32_t slot) noexcept nogil:
    """The same among shadows, which are not claimed."""
    while slot < o.size and is_kept(g, o, o.slots[slot].page):
        slot = o.slots[slot].next
    return slot


cdef int32_t pick_cell(Pool *g, Order *o, Level *level) noexcept nogil:
    """The slot of a priority to take next, or -1."""
    cdef uint64_t bits
    cdef int32_t word, i
    for word in range(LIST_WORDS):
        bits = level.filled[word]
        while bits:
            i = g.cells.list_at[64 * word + lowest_bit(bits)]
            level.cursor[i] = pass_claimed(g, o, level.cursor[i])
            if level.cursor[i] < o.size:
                return level.cursor[i]
            bits &= bits - 1
    return -1


cdef int32_t pick_adaptive(Pool *g, Order *o, bint shadows) noexcept nogil:
    """The slot to take next, or -1, when none is empty: shadows, then cells by priority, then covered pages."""
    cdef uint64_t bits
    cdef int32_t word, kind, slot
    for word in range(CLASS_WORDS):
        bits = o.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            if kind == SHADOW:
                slot = o.cursor[kind] = pass_kept(g, o, o.cursor[kind])
                slot = slot if shadows else -1
            elif kind == COVERED:
                slot = o.cursor[kind] = pass_claimed(g, o, o.cursor[kind])
            else:
                slot = pick_cell(g, o, o.levels + g.cells.level_of[(kind - FIRST) >> 1])
            if 0 <= slot < o.size:
                return slot
            bits &= bits - 1
    return -1


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


cdef inline int32_t pick(Pool *g, int32_t t) noexcept nogil:
    """The slot to take next, or -1: classes ascending, front to back, no claimed pages (but shadows of them)."""
    cdef Order *o = g.tiers + t
    if o.filled[0] & 1:       # EMPTY
        return o.cursor[EMPTY]
    return pick_page(g, o, True) if g.cells == NULL else pick_adaptive(g, o, True)


cdef int32_t pick_unshadowed(Pool *g, int32_t t) noexcept nogil:
    """The same, but no shadow."""
    cdef Order *o = g.tiers + t
    if o.filled[0] & 1:
        return o.cursor[EMPTY]
    return pick_page(g, o, False) if g.cells == NULL else pick_adaptive(g, o, False)


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
