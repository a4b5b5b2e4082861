# Owns: pages whose bytes come from outside: slots in any tier, findable when they are written. Present pages are
# neither asked for nor evicted on the way; a call gets all its pages or none.
# Does not know: who writes.


cdef int64_t room_in(Pool *g, int32_t t, int64_t wanted) noexcept nogil:
    """Slots of a tier that can be had, counted up to `wanted`: listed, and not the hottest copy of a claimed page."""
    cdef Order *o = g.tiers + t
    cdef int32_t slot, p
    cdef int64_t count = 0
    if t == 0:
        return g.room.available
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


cdef int fill_blocks(State *s, Pool *g, int32_t tier, int32_t *blocks, int32_t *pages, int32_t *slots, Py_ssize_t n,
                     Ask *ask) noexcept nogil:
    """Open pages for the first n blocks; -1: no slot."""
    cdef Py_ssize_t i, end = 0
    s.makes = -1
    for i in range(n):
        if i == end:
            end += take_some(s, g, tier, <int32_t> min(n - i, <Py_ssize_t> MAX_RUN), pages + i, slots + i)
            if i == end:
                return -1
        renew_page(g, pages[i], priority_at(ask, blocks[i]), duration_at(ask, blocks[i]))
        put_copy(g, pages[i], tier, slots[i])
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


cdef int32_t nodes_behind(State *s, Text *text, int32_t root, int32_t last, int32_t *low) noexcept nogil:
    """As `nodes_along`, but `path` begins at block `low`: where a writer has been before, the search does not start at
    the root. A node whose key is that of so many blocks is theirs; if ever it were not, slots would be asked for in
    vain."""
    cdef Tree *t = &s.tree
    cdef int32_t b = text.tip_blocks, node = text.tip
    low[0] = 0
    if not (0 < b <= last and node < t.used and at(t, node).size == t.block_size
            and key_at(t, node) == text.keys[b - 1] ^ seed_of(t, root)):
        return nodes_along(s, text, root, last)
    low[0], s.path[b - 1] = b - 1, node
    while b < last:
        node = find_block(t, node, <uint32_t> text.keys[b] ^ at(t, root).key,
                          text.tokens + <Py_ssize_t> b * t.block_size, extras_of(text, b))
        if node < 0:
            break
        s.path[b] = node
        b += 1
    return b


cdef void count_owed(State *s) noexcept nogil:
    """How many slots the groups of each pool want together."""
    cdef int32_t i
    for i in range(s.num_groups):
        s.pools[i].room.owed = 0
    for i in range(s.num_groups):
        s.pools[i].room.owed += s.needs[i]


cdef int32_t first_lack(State *s, int32_t tier, int64_t *have) noexcept nogil:
    """The first group whose pool has fewer slots than its groups want together, and how many; -1: none."""
    cdef int32_t i
    for i in range(s.num_groups):
        if s.needs[i]:
            have[0] = room_in(s.pools + i, tier, s.pools[i].room.owed)
            if s.pools[i].room.owed > have[0]:
                return i
    return -1


cdef object fill_groups(State *s, Numbers *named, object room, Written *w, Ask *ask):
    """Take; there is room. An array for all: to make and to find one costs more than to fill it."""
    cdef Py_ssize_t each = len(room) // 3, begin = 0, n
    cdef int32_t i
    cdef list made = []
    none = room[:0]
    for i in range(s.num_groups):
        n = s.needs[i]
        made.append((room[begin:begin + n], room[begin + each:begin + each + n],
                     room[begin + 2 * each:begin + 2 * each + n]) if n else (none, none, none))
        begin += named[i].count
    for i in range(s.num_groups):
        if s.pools[i].cells != NULL:
            s.pools[i].cells.fresh = fresh_class(w.found, ask.row)
        expect(s.needs[i] == 0 or fill_blocks(s, s.pools + i, w.tier, named[i].at, named[i].at + each,
                                              named[i].at + 2 * each, s.needs[i], ask) == 0, "write")
    return made


cdef object fill_claimed(State *s, Numbers *named, object room, Written *w, Ask *ask):
    """Claim what is in `path`, count, then take; (group, wanted, there) without room."""
    cdef int32_t *along = <int32_t *> malloc(4 * (<Py_ssize_t> w.found * s.num_groups + 1))
    cdef int32_t lacks
    cdef int64_t have = 0
    if along == NULL:
        raise MemoryError("write: no memory")
    claim_along(s, w.found, along)
    try:
        lacks = first_lack(s, w.tier, &have)
        if lacks >= 0:
            return lacks, s.pools[lacks].room.owed, have
        refresh(s, ask.now)
        return fill_groups(s, named, room, w, ask)
    finally:
        unclaim_along(s, w.found, along)
        free(along)


cdef object write_blocks(State *s, Text *text, int32_t root, int32_t tier, Numbers *named, Ask *ask):
    """A page for every named block that has none, held by the caller; per group those blocks, their pages and slots."""
    cdef int32_t i, found = 0, low = 0, last = end_named(s, named)
    cdef Written written
    retention_check(s, ask)
    if text_keys(text, last):
        raise MemoryError("write: no memory for keys")
    room = room_for(s, named)
    if root >= 0:
        found = nodes_behind(s, text, root, last, &low)
    if low and first_named(s, named) < low:
        low = climb_all(s, low)
    if found:
        text.tip, text.tip_blocks = s.path[found - 1], found
    for i in range(s.num_groups):
        s.needs[i] = keep_missing(s, s.pools + i, named[i].at, named[i].count, found, tier)
    check_needs(s)
    count_owed(s)
    ask.row = <int32_t> (text.length // s.block_size)     # of a writer: blocks that are known of its text
    written.text, written.root, written.tier, written.found = text, root, tier, found
    if found and is_spared(s, &written):
        refresh(s, ask.now)
        if is_spared(s, &written):                        # what was to be kept may have run out
            return fill_groups(s, named, room, &written, ask)
    if low:
        climb_all(s, low)
    return fill_claimed(s, named, room, &written, ask)


cdef object write_checked(State *s, Text *text, int32_t root, int32_t tier, blocks, Ask *ask):
    """Look at what is named, then act."""
    cdef Numbers *named = look_at_all(s, blocks, min(text.length // s.block_size, s.num_columns))
    try:
        return write_blocks(s, text, root, tier, named, ask)
    finally:
        free(named)


cdef int32_t climb_all(State *s, int32_t low) noexcept nogil:
    """`path` from the first block on, where it begins at block `low`; 0."""
    climb(&s.tree, s.path[low], 0, low + 1, s.path)
    return 0


cdef object write_retained(State *s, Text *text, int32_t root, int32_t tier, blocks, priorities, durations,
                           int64_t now):
    """Read the retention per block, then act."""
    cdef Ask ask
    cdef Py_buffer values, ticks
    ask.priority, ask.duration, ask.blocks, ask.priorities, ask.durations = DEFAULT_PRIORITY, -1, 0, NULL, NULL
    ask.now = now
    if priorities is None:
        return write_checked(s, text, root, tier, blocks, &ask)
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
            return write_checked(s, text, root, tier, blocks, &ask)
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


cdef inline void rank_as(Pool *g, int32_t p, int32_t known) noexcept nogil:
    """As `rank_anew`, where it is known which of the two."""
    cdef Page *page = page_at(g, p)
    cdef int32_t t
    if page.claimed & UNWANTED:
        known = IS_PASSED
    if page.holders == 0 and (known == IS_PASSED) == (page.claimed & NEEDED != 0):
        t = hottest(g, page)
        leave_idle(g, t, page)
        enter_idle(g, t, page, known)


cdef void rank_path(State *s, Pool *g, int32_t first, int32_t last) noexcept nogil:
    """Idle pages of the blocks [first, last) of `path` are ranked anew, the last first; none looks down for itself."""
    cdef int32_t b, p, below = -1, steps = 0, known
    for b in range(last - 1, first - 1, -1):
        known = rank_above(g, s.path[b], &below, &steps)
        p = at(&s.tree, s.path[b]).page[g.index]
        if p >= 0:
            rank_as(g, p, known)


cdef void let_go_written(State *s, Pool *g, const int32_t *blocks, const int32_t *pages, Py_ssize_t n,
                         int32_t last) noexcept nogil:
    """Let go of the pages, the last first; what is above and between them is ranked anew."""
    cdef Py_ssize_t i
    cdef int32_t first = last, below = -1, steps = 0, known = UNKNOWN
    for i in range(n - 1, -1, -1):
        first = min(first, blocks[i])
        if g.ranked and page_at(g, pages[i]).node >= 0:
            known = rank_above(g, page_at(g, pages[i]).node, &below, &steps)
        let_go(g, pages[i], s.now, known)
    if g.ranked:
        rank_path(s, g, max(0, first - g.tail), last)


cdef void reach_end(State *s, Text *text, int32_t root, int32_t last, Sight *sight) noexcept nogil:
    """The nodes of the first blocks of a text go into `path`, found or made. Where it parts from one that is known
    something is learned; its points have their kinds."""
    cdef int32_t before = s.tree.num_nodes
    s.tree.parted = -1
    extend_path(&s.tree, text, root, seed_of(&s.tree, root), 0, last, s.path)
    if s.has_kinds:
        see_parting(&s.tree)
        set_kinds_along(s, sight, 0, last, last - (s.tree.num_nodes - before), s.path)


cdef object publish_checked(State *s, Text *text, int32_t root, Numbers *where, Numbers *which, int64_t now,
                            Sight *sight):
    """The same, of what was looked at one by one."""
    cdef int32_t i, last = end_named(s, where)
    cdef int64_t stored = 0
    for i in range(s.num_groups):
        if which[i].count != where[i].count or not unhold_check(s.pools + i, which[i].at, which[i].count):
            raise LookupError("publish: a page is not held, or has no block")
    if text_keys(text, last) or tree_reserve(&s.tree, last, text.extras != NULL):
        raise MemoryError("publish: no memory for nodes")
    tell_time(s, now)
    reach_end(s, text, root, last, sight)
    if last:
        text.tip, text.tip_blocks = s.path[last - 1], last
    for i in range(s.num_groups):
        if which[i].count:
            stored += publish_group(s, s.pools + i, where[i].at, which[i].at, which[i].count)
    for i in range(s.num_groups):
        if which[i].count:
            let_go_written(s, s.pools + i, where[i].at, which[i].at, which[i].count, last)
    return stored


cdef object publish(State *s, Text *text, int32_t root, blocks, pages, int64_t now, Sight *sight):
    """Written pages take their places in the tree, unless other pages came first, and are let go; how many did."""
    cdef Numbers *where = look_at_all(s, blocks, min(text.length // s.block_size, s.num_columns))
    cdef Numbers *which = NULL
    try:
        which = look_at_all(s, pages, 0x7FFFFFFF)
        return publish_checked(s, text, root, where, which, now, sight)
    finally:
        free(which)
        free(where)
