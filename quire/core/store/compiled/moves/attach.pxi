# Owns: how a page becomes the page of a node and stops being it, and which page gets the place when two rows have
# computed the same block.
# Does not know: when a row offers its pages.


cdef inline void watch(Pool *g, int32_t p, int32_t node) noexcept nogil:
    """A page has come to the node of a full block; from now on it is watched, or not."""
    cdef Rival *rival = &g.cells.rival
    if not chooses(rival, tokens_at(g.tree, node), g.tree.block_size):
        return
    if at(g.tree, node).size != g.tree.block_size:
        return
    if come_watched(rival, key_at(g.tree, node) ^ g.salt):
        memory_at(g.cells, p).reuse |= WATCHED


cdef inline void unwatch(Pool *g, int32_t p) noexcept nogil:
    """A page leaves its node."""
    cdef Memory *memory = memory_behind(g, page_at(g, p))
    if g.cells != NULL and memory.reuse & WATCHED:
        memory.reuse -= WATCHED
        g.cells.rival.watched -= 1


cdef inline void weigh(Pool *g, int32_t p, int32_t node) noexcept nogil:
    """A page has come to a node: the deeper that is, the more it costs to compute it again."""
    cdef Memory *memory = memory_at(g.cells, p)
    cdef int32_t ages = 0
    while ages < g.dear and g.tree.depths[node] >= g.dear_from[ages]:
        ages += 1
    memory.reuse = <unsigned char> (memory.reuse & (WATCHED | CLASS) | ages << YOUNGER)


cdef void note_insert(Pool *g, int32_t p, int32_t node, int32_t before) noexcept nogil:
    """A page took a place in the tree, where one was in tier `before` (-1: none)."""
    g.cells.inserted += 1
    watch(g, p, node)
    if g.dear:
        weigh(g, p, node)
    child_moved(g, node, before, hottest(g, page_at(g, p)))


cdef void rank_before(State *s, Pool *g, int32_t node) noexcept nogil:
    """A snapshot has come to a node: the one before it may be passed now, or, where texts part, not any more."""
    cdef int32_t p = snapshot_before(&s.tree, node, g.index)
    if p >= 0:
        rank_anew(g, p)


cdef inline void attach(State *s, Pool *g, int32_t p, int32_t node) noexcept nogil:
    """An open page becomes the page of a node, which had none; the caller logs it."""
    at(&s.tree, node).page[g.index] = p
    page_at(g, p).node = node
    note_page(&s.tree, node, g.current)
    if g.notes != NULL:
        note_slot(g, g.slow, page_at(g, p).slot[g.slow])
    if g.cells != NULL:
        note_insert(g, p, node, -1)
    if g.overtakes:
        rank_before(s, g, node)


cdef inline bint follows_own(State *s, Pool *g, int32_t node, int32_t before) noexcept nogil:
    """Whether the parent of a node has the page that a row has in the column before."""
    return before >= 0 and at(&s.tree, at(&s.tree, node).parent).page[g.index] == before


cdef inline void attach_next(State *s, Pool *g, int32_t p, int32_t node) noexcept nogil:
    """In the adaptive order, below a page of the same row: it is held, and so not listed."""
    at(&s.tree, node).page[g.index] = p
    page_at(g, p).node = node
    note_page(&s.tree, node, g.current)
    g.cells.inserted += 1
    watch(g, p, node)
    if g.dear:
        weigh(g, p, node)
    if g.leaves_only:
        kids_at(&s.tree, at(&s.tree, node).parent, g.index)[hottest(g, page_at(g, p))] += 1


cdef inline void leave_node(State *s, Pool *g, int32_t p, int32_t tier) noexcept nogil:
    """A committed page, last logged in `tier`, leaves its node; the node goes too if it has no other use."""
    cdef Page *page = page_at(g, p)
    cdef int32_t node = page.node
    unwatch(g, p)
    at(&s.tree, node).page[g.index] = -1
    page.node = -1
    s.tree.epoch += 1
    note_page(&s.tree, node, g.current)
    if g.notes != NULL:
        note_slot(g, g.slow, page.slot[g.slow])
    if s.log.batches != NULL:
        log_removed(&s.log, g.index, s.tree.hashes[node], facts_of(s, page, node, tier))
    prune(&s.tree, node)


cdef inline void detach(State *s, Pool *g, int32_t p, int32_t tier) noexcept nogil:
    """The same of a page that counted as a child until now."""
    if g.cells != NULL:
        child_moved(g, page_at(g, p).node, tier, -1)
    leave_node(s, g, p, tier)


cdef bint is_unused(Pool *g, int32_t p) noexcept nogil:
    """Whether a committed page has neither holders nor claims, and need not stay where it is."""
    cdef Page *page = page_at(g, p)
    return page.holders == 0 and claims_of(page) == 0 and stays_of(g, p) == 0


cdef bint displaces(Pool *g, int32_t p, int32_t q) noexcept nogil:
    """Whether open page p shall replace q as the page of a block."""
    cdef Page *old = page_at(g, q)
    return (is_unused(g, q) and old.slot[0] < 0
            and page_at(g, p).slot[0] >= 0 and page_at(g, p).node < 0)


cdef void replace_page(State *s, Pool *g, int32_t q, int32_t p) noexcept nogil:
    """Idle page q of a block is in colder tiers only than p of the same block: p takes its place and its copies. A copy
    that a plan under way may still fail to write is not trusted; a copy in the slow tier is."""
    cdef Page *old = page_at(g, q)
    cdef Page *new = page_at(g, p)
    cdef int32_t t = hottest(g, old), u, slot
    for u in range(t, g.num_tiers):
        slot = old.slot[u]
        if slot < 0:
            continue
        if u == t:
            unlist_idle(g, u, old)
        else:
            unlist_shadow(g, u, old)
        note_slot(g, u, slot)
        if (u == g.slow or (s.shadows and s.inherit)) and new.slot[u] < 0:
            put_copy(g, p, u, slot)
            list_shadow(g, u, new)
        else:
            list_empty(g, u, slot)
    at(&s.tree, old.node).page[g.index] = p
    new.node = old.node
    unwatch(g, q)
    if g.cells != NULL:
        note_insert(g, p, old.node, t)
    log_page(s, g, new, MOVED, t, hottest(g, new))
    if priority_of(old) != priority_of(new):
        log_page(s, g, new, RETAINED, priority_of(old), priority_of(new))
    push_page(g, q)


cdef int32_t attach_row(State *s, Pool *g, int32_t row, int32_t first, int32_t last, int32_t *path,
                        bint counted) noexcept nogil:
    """Attach the row's pages of [first, last) to the nodes of a path; the number attached. Those that find their place
    taken are twins, to be `counted` or not."""
    cdef int32_t *pages = pages_of(s, g, row) + first
    cdef int32_t i, p, q, run = 0, stored = 0     # run: blocks attached without a gap up to here
    for i in range(last - first):
        p, q = pages[i], at(&s.tree, path[i]).page[g.index]
        if q < 0 and p >= 0 and page_at(g, p).node < 0:
            if g.cells != NULL and first + i and follows_own(s, g, path[i], pages[i - 1]):
                attach_next(s, g, p, path[i])
            else:
                attach(s, g, p, path[i])
            run += 1
            stored += 1
            continue
        log_stored(s, g, path + i - run, run)
        run = 0
        if p < 0 or p == q or q < 0:
            continue
        if displaces(g, p, q):
            replace_page(s, g, q, p)
        else:
            s.rows[row].twins += counted
    log_stored(s, g, path + last - first - run, run)
    return stored
