# Owns: introspection: the whole state as plain Python values, in time proportional to its size; one page's numbers.
# Does not know: what it is for. Nothing here changes anything.


cdef object dump_node(State *s, int32_t n, int32_t parent, uint64_t root):
    cdef Node *node = at(&s.tree, n)
    cdef const uint64_t *extras = extras_at(&s.tree, n)
    cdef int32_t *own = tokens_at(&s.tree, n)
    cdef int32_t i
    tokens = tuple([own[i] for i in range(node.size)])
    words = () if extras == NULL else tuple([(extras[3 * i], extras[3 * i + 1], extras[3 * i + 2])
                                             for i in range(node.size)])
    pages = tuple([node.page[i] for i in range(s.num_groups)])
    return DumpedNode(parent, root, node.size, tokens, words, pages, num_children(&s.tree, n), node.tips,
                      node.flags & ASKED != 0, point_kind(&s.tree, n))


cdef list dump_nodes(State *s, dict hashes, dict numbers):
    """All nodes by number, which `numbers` gets for each; then those that no root leads to."""
    cdef Tree *t = &s.tree
    cdef list nodes = []
    cdef int32_t n
    for root in sorted(hashes, key=hashes.get):
        n = root
        while n >= 0:
            nodes.append(dump_node(s, n, NONE if n == root else numbers[at(t, n).parent], hashes[root]))
            numbers[n] = len(numbers)
            n = next_block(t, n)
    for n in range(t.used):
        if at(t, n).size and n not in numbers:
            nodes.append(dump_node(s, n, LOST, 0))
    return nodes


cdef object number_of(dict numbers, int32_t n):
    """A node's number in the dump."""
    return NONE if n < 0 else numbers.get(n, LOST)


cdef tuple slots_tuple(Pool *g, int32_t p):
    cdef int32_t t
    return tuple([page_at(g, p).slot[t] for t in range(g.num_tiers)])


cdef dict dump_order(Order *o, Cells *c):
    """Class -> slots front to back, classes that are not empty only."""
    cdef dict lists = {}
    cdef int32_t kind, slot
    for kind in range(NUM_CLASSES):
        if c != NULL and FIRST <= kind < COVERED:
            continue
        slot = o.slots[o.size + kind].next
        slots = []
        while slot < o.size:
            slots.append(slot)
            slot = o.slots[slot].next
        if slots:
            lists[kind] = slots
        if bool(slots) != bool(o.filled[kind >> 6] >> (kind & 63) & 1):
            raise BrokenInvariant(f"class {kind} has {len(slots)} slots, and its mark says otherwise")
    if c != NULL:
        dump_levels(o, c, lists)
    return lists


cdef int dump_levels(Order *o, Cells *c, dict lists) except -1:
    """The same for the cells of each priority."""
    cdef int32_t k, i, slot, place
    for k in range(c.num_levels):
        for i in range(NUM_LISTS):
            slot, place = o.slots[o.size + NUM_CLASSES + k * NUM_LISTS + i].next, c.rank_of[i]
            slots = []
            while slot < o.size:
                slots.append(slot)
                slot = o.slots[slot].next
            if slots:
                lists[NUM_CLASSES + o.levels[k].priority * NUM_LISTS + i] = slots
            if bool(slots) != bool(o.levels[k].filled[place >> 6] >> (place & 63) & 1):
                raise BrokenInvariant(f"list {i} of level {k} has {len(slots)} slots, and its mark says otherwise")
    return 0


cdef object dump_ghost(Ghost *ghost):
    return DumpedGhost(ghost.used, ghost.facts >> 12, why_of(ghost), uses_of(ghost), reuse_of(ghost), ghost.admission)


cdef object dump_cells(Pool *g):
    cdef Cells *c = g.cells
    cdef Ghosts *e = &c.ghosts
    cdef int32_t p, i
    pages = {p: DumpedReuse(memory_at(c, p).uses, class_in(memory_at(c, p)), memory_at(c, p).used)
             for p in range(g.num_pages) if page_at(g, p).holders >= 0 and is_mine(g, p)}
    ghosts = [None if e.ring[i].facts == 0 else dump_ghost(e.ring + i) for i in range(num_used(e))]
    ghosts += [None] * (e.room - num_used(e))
    return DumpedCells(pages, ghosts, [c.hits[i] for i in range(NUM_CELLS)], [c.lost[i] for i in range(NUM_CELLS)],
                       c.inserted, c.made, [c.list_at[i + 1] - 1 for i in range(NUM_CELLS)], bool(c.recency),
                       (c.rival.gained, c.rival.missed, c.rival.watched, c.rival.count), (c.now, c.asked, c.aged))


cdef object dump_page(Pool *g, int32_t p, dict numbers):
    cdef Page *page = page_at(g, p)
    expiry = -1 if g.room.times.expiry == NULL else g.room.times.expiry[p]
    return DumpedPage(number_of(numbers, page.node), page.holders, claims_of(page), slots_tuple(g, p), priority_of(page),
                      duration_of(g, p), expiry, stays_of(g, p), bool(is_copying(g, p)), page.claimed & UNWANTED != 0)


cdef object dump_group(Pool *g, dict numbers):
    cdef dict pages = {}
    cdef list idle = []
    cdef int32_t p, t
    for p in range(g.num_pages):
        if page_at(g, p).holders >= 0 and is_mine(g, p):
            pages[p] = dump_page(g, p, numbers)
    p = g.room.free
    while p >= 0:
        idle.append(p)
        p = page_at(g, p).node
    orders = [dump_order(g.tiers + t, g.cells) for t in range(g.num_tiers)]
    cells = None if g.cells == NULL else dump_cells(g)
    return DumpedGroup(pages, orders, idle[::-1], g.room.available, [g.counters[t] for t in range(NUM_COUNTERS)], cells)


cdef tuple dump_stakes(State *s, int32_t row):
    """(fronts, showns, bases, owns, peaks, currents), each per group."""
    cdef Stake *stakes = s.stakes + <Py_ssize_t> row * s.num_groups
    cdef int32_t i
    return ([stakes[i].front for i in range(s.num_groups)], [stakes[i].shown for i in range(s.num_groups)],
            [stakes[i].base for i in range(s.num_groups)], [stakes[i].own for i in range(s.num_groups)],
            [stakes[i].peak for i in range(s.num_groups)], [s.pools[i].currents[row] for i in range(s.num_groups)])


cdef object dump_row(State *s, int32_t row, dict numbers):
    cdef Row *r = s.rows + row
    cdef Spares *spares
    cdef int32_t i, k
    cdef list kept = [], fresh = [stake_of(s, s.pools + i, row).fresh for i in range(s.num_groups)]
    cdef list followed = [bool(stake_of(s, s.pools + i, row).followed) for i in range(s.num_groups)]
    cdef list written = [written_of(s, s.pools + i, row)[0] for i in range(s.num_groups)]
    for i in range(s.num_groups):
        spares = s.spares + row * s.num_groups + i
        kept.append([spares.pages[k] for k in range(spares.count)])
    return DumpedRow(s.length[row], s.computed[row], s.committed[row], [r.text.tokens[i] for i in range(r.text.length)],
                     number_of(numbers, r.tip), bool(r.keep), r.twins, kept, r.priority, r.duration,
                     *dump_stakes(s, row), bool(r.ahead), s.handed[row], r.reached,
                     s.launched[row], s.prompt[row], fresh,
                     followed, written)


cdef object dump(State *s, dict hashes):
    """Everything; `hashes` has the roots with their event hashes."""
    cdef dict numbers = {}
    cdef int32_t i
    nodes = dump_nodes(s, hashes, numbers)
    groups = [dump_group(s.pools + i, numbers) for i in range(s.num_groups)]
    rows = {row: dump_row(s, row, numbers) for row in range(s.num_rows) if is_live(s, row)}
    return Dump(nodes, groups, rows, dump_kinds(&s.tree.kinds) if s.has_kinds else None)


cdef object dump_kinds(Kinds *k):
    cdef int32_t i
    return DumpedKinds([k.cost[i] for i in range(NUM_KINDS)], [k.gain[i] for i in range(NUM_KINDS)],
                       [bool(k.kept >> i & 1) for i in range(NUM_KINDS)])


cdef tuple nbytes(State *s):
    """(metadata, tokens): what the tree, its index and the pools occupy; not the rows' tables, chains and the log."""
    cdef Tree *t = &s.tree
    cdef Py_ssize_t total = t.room * t.stride + 8 * <Py_ssize_t> t.places
    cdef int32_t i, k
    cdef Pool *g
    total += t.room * (12 * (t.hashes != NULL) + 8 * (t.extras != NULL) + 8 * (t.lasting != NULL) + 4 * (t.births != NULL)
                       + 4 * (t.depths != NULL))
    for i in range(s.num_groups):
        g = s.pools + i
        if g.first != i:
            continue          # its pool has been counted
        total += 2 * g.num_pages * (g.owners != NULL)
        total += g.num_pages * (g.stride + (40 if g.room.times.duration != NULL else 0)) + g.num_tiers * sizeof(Order)
        total += 4 * g.num_pages * (g.stays != NULL) + (notes_bytes(g.notes) if g.notes != NULL else 0)
        for k in range(g.num_tiers):
            total += (g.tiers[k].size + NUM_CLASSES) * sizeof(Slot)
        if g.cells != NULL:
            total += cells_bytes(g.cells, g.num_tiers)
        elif g.ghosts != NULL:
            total += <Py_ssize_t> ghosts_bytes(g.ghosts)
    return total, t.room * t.block_size * 4 + 24 * <Py_ssize_t> t.num_extras


cdef object page_info(Pool *g, int32_t p):
    """One page now."""
    cdef Page *page = page_at(g, p)
    cdef int32_t group = g.index if g.owners == NULL else g.owners[p]
    if page.holders < 0:
        return PageInfo(-1, 0, 0, DEFAULT_PRIORITY, -1, -1, group, page.stamp)
    expiry = -1 if g.room.times.expiry == NULL else g.room.times.expiry[p]
    return PageInfo(page.node, page.holders, claims_of(page), priority_of(page), duration_of(g, p), expiry,
                    group, page.stamp)
