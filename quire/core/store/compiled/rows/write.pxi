# Owns: pages whose bytes come from outside: slots in any tier, findable when they are written. What is there already is
# neither asked for nor evicted on the way; all pages are had or none.
# Does not know: who writes.


cdef int64_t room_in(Pool *g, int32_t t, int64_t wanted) noexcept nogil:
    """Slots of a tier that can be had, counted up to `wanted`: listed, and not the hottest copy of a claimed page."""
    cdef Order *o = g.tiers + t
    cdef int32_t slot, p
    cdef int64_t count = 0
    if t == 0:
        return g.available
    for slot in range(o.size):
        if count == wanted:
            break
        p = o.slots[slot].page
        if o.slots[slot].prev >= 0:
            count += p < 0 or ((claims_of(page_at(g, p)) == 0 or hottest(g, page_at(g, p)) != t) and not is_kept(g, o, p))
    return count


cdef int32_t claim_along(State *s, int32_t found, int32_t *along) noexcept nogil:
    """Claim all pages of the nodes in `path`; they go into `along`, -1 where there is none. How many numbers it has."""
    cdef int32_t i, b, n = 0
    for i in range(s.num_groups):
        for b in range(found):
            along[n] = at(&s.tree, s.path[b]).page[i]
            if along[n] >= 0:
                claim_page(s.pools + i, along[n])
            n += 1
    return n


cdef void unclaim_along(State *s, int32_t found, int32_t *along) noexcept nogil:
    cdef int32_t i, b
    for i in range(s.num_groups):
        for b in range(found):
            if along[i * found + b] >= 0:
                unclaim_page(s.pools + i, along[i * found + b])


cdef int fill_blocks(State *s, Pool *g, int32_t tier, int32_t *blocks, int32_t *pages, Py_ssize_t n,
                     Ask *ask) noexcept nogil:
    """Open pages for the first n blocks; -1: no slot."""
    cdef Py_ssize_t i
    cdef int32_t slot
    for i in range(n):
        slot = take_in(s, g, tier)
        if slot < 0:
            return -1
        pages[i] = pop_page(g, priority_at(ask, blocks[i]), duration_at(ask, blocks[i]))
        put_copy(g, pages[i], tier, slot)
    return 0


cdef int64_t keep_missing(State *s, Pool *g, int32_t *blocks, Py_ssize_t n, int32_t found, int32_t tier) noexcept nogil:
    """Blocks without a page move to the front; how many. What is in the slow tier only is missing in others."""
    cdef Py_ssize_t i
    cdef int64_t missing = 0
    cdef int32_t p
    for i in range(n):
        p = at(&s.tree, s.path[blocks[i]]).page[g.index] if blocks[i] < found else -1
        if p < 0 or not (tier == g.slow or is_near(g, p)):
            blocks[missing] = blocks[i]
            missing += 1
    return missing


cdef int64_t end_of_numbers(object numbers) except -2:
    """One more than the largest of an int32 array of our own, 0 when it is empty; -1: one is negative."""
    cdef Py_ssize_t i, n = len(numbers)
    cdef int32_t *at = <int32_t *> memory_of(numbers) if n else NULL
    cdef int64_t end = 0
    for i in range(n):
        if at[i] < 0:
            return -1
        end = max(end, <int64_t> at[i] + 1)
    return end


cdef list own_blocks(State *s, blocks, Py_ssize_t limit):
    """Copies of the block numbers per group, checked."""
    cdef list copies = [np.array(some, np.int32) for some in blocks]
    if len(copies) != s.num_groups:
        raise ValueError(f"write: blocks of {len(copies)} groups, there are {s.num_groups}")
    for some in copies:
        if some.ndim != 1 or not 0 <= end_of_numbers(some) <= limit:
            raise ValueError(f"write: a block is not one of {limit}")
    return copies


cdef object write_groups(State *s, list wanted, int32_t tier, int32_t found, int32_t *along, Ask *ask):
    """Count, then take; (group, wanted, there) without room."""
    cdef int32_t i
    cdef int64_t have
    cdef object lack = None
    cdef list pages
    for i in range(s.num_groups):
        n = len(wanted[i])
        s.needs[i] = keep_missing(s, s.pools + i, <int32_t *> memory_of(wanted[i]), n, found, tier) if n else 0
    check_needs(s)
    pages = [np.empty(s.needs[i], np.int32) for i in range(s.num_groups)]
    claim_along(s, found, along)
    for i in range(s.num_groups):
        have = room_in(s.pools + i, tier, s.needs[i])
        if lack is None and s.needs[i] and s.needs[i] > have:
            lack = (i, s.needs[i], have)
    if lack is None:
        refresh(s, ask.now)
    for i in range(s.num_groups if lack is None else 0):
        if s.pools[i].cells != NULL:
            s.pools[i].cells.fresh = fresh_class(found, ask.row)
        expect(s.needs[i] == 0 or fill_blocks(s, s.pools + i, tier, <int32_t *> memory_of(wanted[i]),
                                              <int32_t *> memory_of(pages[i]), s.needs[i], ask) == 0, "write")
    unclaim_along(s, found, along)
    if lack is not None:
        return lack
    return [(wanted[i][:len(pages[i])], pages[i]) for i in range(s.num_groups)]


cdef object write_blocks(State *s, Text *text, int32_t root, int32_t tier, blocks, Ask *ask):
    """A page for every named block that has none, held by the caller; per group those blocks and their pages."""
    cdef Py_ssize_t limit = min(text.length // s.block_size, s.num_columns)
    cdef list wanted = own_blocks(s, blocks, limit)
    cdef int32_t found = 0, last = max([0] + [end_of_numbers(some) for some in wanted])
    cdef int32_t *along
    retention_check(s, ask)
    if text_keys(text, last):
        raise MemoryError("write: no memory for keys")
    if root >= 0:
        found = nodes_along(s, text, root, last)
    along = <int32_t *> malloc(4 * (<Py_ssize_t> found * s.num_groups + 1))
    if along == NULL:
        raise MemoryError("write: no memory")
    ask.row = <int32_t> (text.length // s.block_size)     # of a writer: blocks that are known of its text
    try:
        return write_groups(s, wanted, tier, found, along, ask)
    finally:
        free(along)


cdef object write_retained(State *s, Text *text, int32_t root, int32_t tier, blocks, priorities, durations,
                           int64_t now):
    """Read the retention per block, then act."""
    cdef Ask ask
    cdef Py_buffer values, ticks
    ask.priority, ask.duration, ask.blocks, ask.priorities, ask.durations = DEFAULT_PRIORITY, -1, 0, NULL, NULL
    ask.now = now
    if priorities is None:
        return write_blocks(s, text, root, tier, blocks, &ask)
    ask.blocks = <int32_t> borrow(&values, priorities, 2, b"h", "priorities")
    try:
        ask.priorities = <const int16_t *> values.buf
        if borrow(&ticks, durations, 8, b"lq", "durations") != ask.blocks:
            PyBuffer_Release(&ticks)
            raise ValueError("write: as many durations as priorities")
        try:
            if ask.blocks < min(text.length // s.block_size, s.num_columns):
                raise ValueError(f"write: fewer priorities than blocks of {text.length} tokens")
            ask.durations = <const int64_t *> ticks.buf
            return write_blocks(s, text, root, tier, blocks, &ask)
        finally:
            PyBuffer_Release(&ticks)
    finally:
        PyBuffer_Release(&values)


cdef object slots_in(Pool *g, int32_t tier, object pages):
    """The slot of each of these pages in a tier, -1: no copy there."""
    cdef Py_buffer view
    cdef Py_ssize_t i, n = borrow(&view, pages, 4, b"il", "pages")
    cdef const int32_t *which = <const int32_t *> view.buf
    cdef int32_t *slots
    try:
        found = np.empty(n, np.int32)
        slots = <int32_t *> memory_of(found) if n else NULL
        for i in range(n):
            if not 0 <= which[i] < g.num_pages:
                raise LookupError(f"no page {which[i]}")
            slots[i] = page_at(g, which[i]).slot[tier]
    finally:
        PyBuffer_Release(&view)
    return found


cdef bint comes_up(Pool *g, int32_t p, int32_t q) noexcept nogil:
    """Whether written page p shall replace q, that of its block: one that is in the slow tier only."""
    return not is_near(g, q) and hottest(g, page_at(g, p)) < g.slow and is_unused(g, q)


cdef int64_t publish_group(State *s, Pool *g, const int32_t *blocks, const int32_t *pages, Py_ssize_t n) noexcept nogil:
    """Pages take their places if those are free; how many did."""
    cdef Py_ssize_t i
    cdef int32_t run = 0, before = -1, node, q
    cdef int64_t stored = 0
    for i in range(n):
        node = s.path[blocks[i]]
        q = at(&s.tree, node).page[g.index]
        if run and before != blocks[i] - 1:
            log_stored(s, g, s.path + before + 1 - run, run)
            run = 0
        if q < 0:
            attach(s, g, pages[i], node)
            run += 1
            before = blocks[i]
            stored += 1
        elif comes_up(g, pages[i], q):
            log_stored(s, g, s.path + before + 1 - run, run)
            run = 0
            replace_page(s, g, q, pages[i])
            stored += 1
    log_stored(s, g, s.path + before + 1 - run, run)
    return stored


cdef void let_go_written(State *s, Pool *g, const int32_t *blocks, const int32_t *pages, Py_ssize_t n,
                         int32_t last) noexcept nogil:
    """Nobody holds the pages any more, the last first; what is above and between them is ranked anew."""
    cdef Py_ssize_t i
    cdef int32_t b, first = last, below = -1, steps = 0, known = UNKNOWN
    for i in range(n - 1, -1, -1):
        first = min(first, blocks[i])
        if g.ranked and page_at(g, pages[i]).node >= 0:
            known = rank_above(g, page_at(g, pages[i]).node, &below, &steps)
        let_go(g, pages[i], s.now, known)
    for b in range(last - 1, max(0, first - g.tail) - 1 if g.ranked else last - 1, -1):
        if at(&s.tree, s.path[b]).page[g.index] >= 0:
            rank_anew(g, at(&s.tree, s.path[b]).page[g.index])


cdef object publish(State *s, Text *text, int32_t root, blocks, pages, int64_t now):
    """Written pages take their places in the tree, unless others have come before, and are let go; how many did."""
    cdef list where = own_blocks(s, blocks, min(text.length // s.block_size, s.num_columns))
    cdef list which = own_blocks(s, pages, 0x7FFFFFFF)
    cdef int32_t i, last = max([0] + [end_of_numbers(some) for some in where])
    cdef int64_t stored = 0
    for i in range(s.num_groups):
        n = len(which[i])
        if n != len(where[i]) or (n and not unhold_check(s.pools + i, <const int32_t *> memory_of(which[i]), n)):
            raise LookupError("publish: a page is not held, or has no block")
    if text_keys(text, last) or tree_reserve(&s.tree, last, text.extras != NULL):
        raise MemoryError("publish: no memory for nodes")
    tell_time(s, now)
    extend_path(&s.tree, text, root, seed_of(&s.tree, root), 0, last, s.path)
    for i in range(s.num_groups):
        n = len(which[i])
        if n:
            stored += publish_group(s, s.pools + i, <const int32_t *> memory_of(where[i]),
                                    <const int32_t *> memory_of(which[i]), n)
    for i in range(s.num_groups):
        n = len(which[i])
        if n:
            let_go_written(s, s.pools + i, <const int32_t *> memory_of(where[i]),
                           <const int32_t *> memory_of(which[i]), n, last)
    return stored
