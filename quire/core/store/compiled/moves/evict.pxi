# Owns: how a slot becomes free and a page is made in it: take, evict, make room in a colder tier. Which page goes next is
# its order's choice (orders/, by way of pools/order).
# Does not know: who asked; callers have made sure that something is available and that the log has room for the moves.


cdef int32_t log_part(State *s, Pool *g, int32_t source, int32_t p, int32_t tokens) noexcept nogil:
    """COPY of the first tokens of a page into page p on tier 0; the tier they come from."""
    cdef int32_t t = hottest(g, page_at(g, source))
    cdef int32_t *move = log_move(&s.log, COPY, g.index)
    move[0], move[1], move[2], move[3] = t, page_at(g, source).slot[t], 0, page_at(g, p).slot[0]
    move[4], move[5], move[6] = tokens, p, page_at(g, p).stamp
    if t > 0:  # if it cannot be read, the source is no good either
        move[7], move[8] = source, page_at(g, source).stamp
    return t


cdef inline void lift(Pool *g, int32_t t, int32_t p) noexcept nogil:
    """An idle page loses its hottest copy."""
    cdef Page *page = page_at(g, p)
    unlist_idle(g, t, page)
    if t:
        note_slot(g, t, page.slot[t])
    g.tiers[t].slots[page.slot[t]].page = -1
    page.slot[t] = -1
    note_copy(g.tenure, p)


cdef inline void bury(State *s, Pool *g, int32_t p, int32_t why) noexcept nogil:
    """Remember a page that leaves the tree; of a partial block nothing is kept."""
    cdef int32_t node = page_at(g, p).node
    cdef uint64_t key = key_at(&s.tree, node), above = key_at(&s.tree, at(&s.tree, node).parent)
    if g.ghosts == NULL or at(&s.tree, node).size != s.block_size:
        return
    if g.cells != NULL:
        remember(g.cells, p, key ^ g.salt, above ^ g.salt, s.admissions, why)
    else:
        add_ghost(g.ghosts, key ^ g.salt, above ^ g.salt, s.now, s.admissions, why,
                  NEVER if page_at(g, p).claimed & UNWANTED else 0)


cdef void unbury(State *s, Pool *g, int32_t node) noexcept nogil:
    """The page of a node goes for another reason: what is remembered of an older one no longer holds."""
    cdef uint64_t[MAX_HIDDEN + 1] keys
    cdef int32_t count
    if g.cells == NULL and g.ghosts != NULL and g.ghosts.count and at(&s.tree, node).size == s.block_size:
        count = keys_above(&s.tree, node, keys, MAX_HIDDEN + 1)
        drop_ghost(g.ghosts, keys + MAX_HIDDEN + 1 - count, count - 1, g.salt)


cdef inline void fetch_key(State *s, int32_t node) noexcept nogil:
    """Fetch what finds a block."""
    if not is_behind(&s.tree, node):
        touch(s.tree.index + home_of(&s.tree, at(&s.tree, node).key))


cdef inline void pass_block(State *s, Pool *g, int32_t n, int32_t way) noexcept nogil:
    """Pages that other windows have of a block go before others where requests resume farther below than they read."""
    cdef int32_t i, p
    cdef Pool *other
    for i in range(s.num_groups):
        other, p = s.pools + i, at(&s.tree, n).page[i]
        if p >= 0 and other.ranked and other != g and way >= other.tail and not is_sink(&s.tree, n, other.sink):
            pass_over(other, p)


cdef void pass_others(State *s, Pool *g, int32_t n) noexcept nogil:
    """A page of this block is gone, which a request read that resumed there or a few blocks below: what other windows
    keep for such requests alone goes before others, the last first. Where nothing is left of the block, its text ends
    earlier now."""
    cdef Tree *t = &s.tree
    cdef int32_t low = n, depth = 0, way, below
    if at(t, n).size == 0:
        return
    while depth < g.tail - 1:
        below = only_child(t, low)
        if below < 0:
            break
        low, depth = below, depth + 1
    way = way_below(t, low, s.most_read)
    while depth > -s.most_read:           # 0: at the block; less: above it
        if not is_lost(t, low):
            if depth < 0:
                return
            way = 0
        pass_block(s, g, low, way)
        below, low, depth, way = low, at(t, low).parent, depth - 1, min(way + 1, s.most_read)
        if depth < 0 and (at(t, low).flags & ROOT or only_child(t, low) != below):
            return


cdef inline void pass_useless(State *s, Pool *g, int32_t n) noexcept nogil:
    """The same, if there is such a block (-1: none) and a window."""
    if n >= 0 and s.most_read:
        pass_others(s, g, n)


cdef void cut_off_from(State *s, Pool *g, int32_t n) noexcept nogil:
    """Uncovered pages of groups that need all blocks, at a block that is a window's or a snapshot's and where it is
    read."""
    cdef int32_t i, k
    for k in range(g.tail):
        for i in range(s.num_groups):
            if s.pools[i].reads and at(&s.tree, n).page[i] >= 0:
                cut_off(s.pools + i, at(&s.tree, n).page[i])
        n = only_child(&s.tree, n)
        if n < 0:
            return


cdef inline int32_t cut_off_below(State *s, Pool *g, int32_t p) noexcept nogil:
    """A page goes that a request might have resumed with: none can resume at its block now, nor so near below it that
    its group reads the block there. What groups that need all blocks keep for that is of no use. The block, if so; or
    -1."""
    cdef Page *page = page_at(g, p)
    if g.tail < 1 or g.cells == NULL or page.claimed & NEEDED == 0 or at(&s.tree, page.node).size < s.block_size:
        return -1
    at(&s.tree, page.node).page[g.index] = -1
    cut_off_from(s, g, page.node)
    return page.node


cdef inline void drop_page(State *s, Pool *g, int32_t p, int32_t tier) noexcept nogil:
    """The last copy of an idle page, in `tier`, is gone."""
    cdef int32_t node
    if g.cells != NULL:
        fetch_key(s, at(&s.tree, page_at(g, p).node).parent)   # mostly the next to go
    bury(s, g, p, EVICTED)
    node = cut_off_below(s, g, p)
    detach(s, g, p, tier)
    pass_useless(s, g, node)
    note_dropped(g.tenure, p)
    push_page(g, p)
    g.counters[DROPPED] += 1


cdef int32_t soft_room(State *s, Pool *g, int32_t u, int32_t slot) noexcept nogil:
    """Take a picked slot if it is empty or a shadow, else -1."""
    cdef int32_t p
    if slot < 0:
        return -1
    p = g.tiers[u].slots[slot].page
    if p < 0:
        unlist_empty(g, u, slot)
        return slot
    if hottest(g, page_at(g, p)) == u:
        return -1
    note_slot(g, u, slot)
    unlist_shadow(g, u, page_at(g, p))
    page_at(g, p).slot[u] = -1
    g.tiers[u].slots[slot].page = -1
    note_copy(g.tenure, p)
    return slot


cdef bint is_worth_copying(State *s, Pool *g, int32_t p) noexcept nogil:
    """Whether a page is copied into the slow tier ahead of its eviction; a partial block would never come up again."""
    cdef Page *page = page_at(g, p)
    if page.node < 0 or at(&s.tree, page.node).size < s.block_size or priority_of(page) < s.offload_min:
        return False
    return g.cells == NULL or memory_behind(g, page).uses >= s.min_uses


cdef inline void note_move(Pool *g, int32_t p, int32_t source, int32_t target) noexcept nogil:
    """A page has its hottest copy in another tier: it may cover its parent, or not any more."""
    if g.cells != NULL and page_at(g, p).node >= 0:
        child_moved(g, page_at(g, p).node, source, target)


cdef void offload_to(State *s, Pool *g, int32_t p, int32_t t, int32_t slot, int32_t u, int32_t room) noexcept nogil:
    """An idle page that has just lost (t, slot), its only copy outside the slow tier, goes on at (u, room)."""
    log_copy(s, g, OFFLOAD, p, t, slot, u, room)
    put_copy(g, p, u, room)
    list_idle(g, u, page_at(g, p), UNKNOWN)
    log_page(s, g, page_at(g, p), MOVED, t, u)
    note_move(g, p, t, u)
    g.counters[OFFLOADED] += 1


cdef void demote(State *s, Pool *g, int32_t p, int32_t t) noexcept nogil:
    """An idle page that has lost its copy in tier t goes on with the next colder one, where it is."""
    cdef Page *page = page_at(g, p)
    cdef int32_t u = hottest(g, page)
    unlist_shadow(g, u, page)
    list_idle(g, u, page, UNKNOWN)
    log_page(s, g, page, MOVED, t, u)
    note_move(g, p, t, u)
    g.counters[DEMOTED] += 1
    if u == g.slow:
        s.tree.epoch += 1     # hits that were found with it are no more


cdef bint offload_somewhere(State *s, Pool *g, int32_t p, int32_t t, int32_t slot) noexcept nogil:
    """An idle page that has just lost (t, slot), its last copy outside the slow tier, goes on in a colder one with room.
    Making room must not mistake it for a page of the slow tier: it is on its way elsewhere."""
    cdef Page *page = page_at(g, p)
    cdef int32_t hidden = page.slot[g.slow] if g.slow >= 0 else -1, u, room
    cdef bint found = False
    if g.slow >= 0:
        page.slot[g.slow] = -1
    for u in range(t + 1, num_fast(g)):
        room = make_room(s, g, u, p)
        if room >= 0:
            offload_to(s, g, p, t, slot, u, room)
            found = True
            break
    if g.slow >= 0:
        page.slot[g.slow] = hidden
    return found


cdef void evict_copy(State *s, Pool *g, int32_t t, int32_t slot) noexcept nogil:
    """Free the slot of an idle page's hottest copy: demote to its shadow, else offload, else demote to the slow tier,
    else drop the page."""
    cdef int32_t p = g.tiers[t].slots[slot].page
    cdef Page *page = page_at(g, p)
    g = keeper(s, g, p)       # another group, perhaps, of the same pool
    lift(g, t, p)
    if hottest(g, page) < num_fast(g):
        demote(s, g, p, t)
        return
    if priority_of(page) >= s.offload_min and offload_somewhere(s, g, p, t, slot):
        return
    if hottest(g, page) < g.num_tiers:
        demote(s, g, p, t)
        return
    if t < g.slow and is_worth_copying(s, g, p):
        g.counters[BEHIND] += 1
    drop_page(s, g, p, t)


cdef int32_t make_room(State *s, Pool *g, int32_t u, int32_t p) noexcept nogil:
    """A slot of tier u for page p, unlisted and without page, or -1 when there is none that it may have."""
    cdef int32_t slot = pick(g, u)
    if slot < 0 or soft_room(s, g, u, slot) >= 0:
        return slot
    if is_outranked(g, p, u, slot):
        return -1
    evict_copy(s, g, u, slot)
    return slot


cdef int32_t take(State *s, Pool *g) noexcept nogil:
    """A slot of tier 0, unlisted and without page; -1 when there is none."""
    cdef int32_t slot = pick(g, 0)
    if slot < 0:
        return -1
    g.counters[TOTAL] += 1
    if g.tiers.slots[slot].page < 0:
        unlist_empty(g, 0, slot)
        g.counters[NEW] += 1
    else:
        evict_copy(s, g, 0, slot)
    return slot


cdef int32_t take_in(State *s, Pool *g, int32_t t) noexcept nogil:
    """A slot of any tier, unlisted and without page; of a colder one it is no device slot, and not counted as such."""
    cdef int32_t slot
    if t == 0:
        return take(s, g)
    slot = pick(g, t)
    if slot >= 0 and soft_room(s, g, t, slot) < 0:
        evict_copy(s, g, t, slot)
    return slot


cdef void bury_cut(State *s, Pool *g, const int32_t *slots, int32_t count) noexcept nogil:
    """Of the pages in these slots: fetch what finds their blocks, for all of them before the first is buried."""
    cdef int32_t i, p
    for i in range(count):
        p = g.tiers.slots[slots[i]].page
        if p >= 0:
            fetch_key(s, page_at(g, p).node)
    for i in range(count if g.ghosts != NULL else 0):
        p = g.tiers.slots[slots[i]].page
        if p >= 0:
            bury(s, g, p, EVICTED)


cdef int32_t cut_slots(State *s, Pool *g, int32_t wanted, int32_t *slots) noexcept nogil:
    """Take up to `wanted` slots of a lone tier that follow each other in one class; how many. Pages still in them are
    buried, and to be dropped one by one by the caller; what that touches is fetched here: far memory is slow, but comes
    at once."""
    cdef Order *o = g.tiers
    cdef int32_t slot = pick(g, 0), count = 0, empty = 0, p, kind, before
    if slot < 0:
        return 0
    p, before = o.slots[slot].page, o.slots[slot].prev
    kind = g.empty_class if p < 0 else class_of_idle(page_at(g, p))
    if p < 0:
        wanted = min(wanted, MAX_RUN // 4)        # nothing far away to be fetched: what is near is used at once
    while count < wanted and slot < o.size:
        p = o.slots[slot].page
        if p < 0:
            empty += 1
        elif claims_of(page_at(g, p)):
            break
        else:
            prefetch(at(&s.tree, page_at(g, p).node))
        slots[count] = slot
        count += 1
        o.slots[slot].prev = -1
        slot = o.slots[slot].next
    o.slots[before].next, o.slots[slot].prev, o.cursor[kind] = slot, before, slot
    if before == slot:
        o.filled[kind >> 6] &= ~(<uint64_t> 1 << (kind & 63))
    if count > empty:
        bury_cut(s, g, slots, count)
    o.num_empty -= empty
    o.num_idle -= count - empty
    g.room.available -= count
    g.counters[TOTAL] += count
    g.counters[NEW] += empty
    return count


cdef inline int32_t new_page(State *s, Pool *g, int32_t priority, int64_t duration) noexcept nogil:
    """An open page on tier 0, held once; -1 when nothing is available."""
    cdef int32_t slot = take(s, g), p
    if slot < 0:
        return -1
    p = pop_page(g, priority, duration)
    put_copy(g, p, 0, slot)
    return p


cdef int32_t spare_or_new(State *s, Pool *g, int32_t source, int32_t priority, int64_t duration,
                          int32_t *taken) noexcept nogil:
    """A page for a fork of the source: one kept aside, else a new one (`taken` + 1); -1: no slot."""
    cdef Spares *spares = s.spares + source * s.num_groups + g.index
    cdef int32_t p
    if spares.count == 0:
        taken[0] += 1
        return new_page(s, g, priority, duration)
    spares.count -= 1
    p = spares.pages[spares.count]
    put_priority(page_at(g, p), priority)
    set_duration(g, p, duration)
    return p
