# Owns: introspection: the whole state as plain Python values, for tests. Slow, and node ids never appear.
# Does not know: nothing here changes anything.


cdef tuple block_of(Tree *t, int32_t n):
    """The token identities of a node."""
    cdef const uint64_t *extras = extras_at(t, n)
    cdef int32_t *tokens = tokens_at(t, n)
    cdef int32_t i
    if extras == NULL:
        return tuple([(tokens[i], 0, 0, 0) for i in range(at(t, n).size)])
    return tuple([(tokens[i], extras[3 * i], extras[3 * i + 1], extras[3 * i + 2]) for i in range(at(t, n).size)])


cdef object path_of(Tree *t, dict numbers, int32_t n):
    """(number of the root, block, block, ...), or None."""
    cdef list path = []
    if n < 0:
        return None
    while not at(t, n).flags & ROOT:
        path.append(block_of(t, n))
        n = at(t, n).parent
    path.append(numbers[n])
    return tuple(reversed(path))


cdef list dump_nodes(State *s, dict numbers):
    cdef Tree *t = &s.tree
    cdef list nodes = []
    cdef int32_t n, i
    for n in range(t.used):
        if at(t, n).size:
            pages = tuple([at(t, n).page[i] for i in range(s.num_groups)])
            nodes.append((path_of(t, numbers, n), at(t, n).size, pages, num_children(t, n), at(t, n).tips))
    return sorted(nodes)


cdef tuple slots_tuple(Pool *g, int32_t p):
    cdef int32_t t
    return tuple([page_at(g, p).slot[t] for t in range(g.num_tiers)])


cdef dict dump_order(Order *o):
    """Class -> slots front to back, classes that are not empty only."""
    cdef dict lists = {}
    cdef int32_t kind, slot
    for kind in range(NUM_CLASSES):
        slot = o.slots[o.size + kind].next
        slots = []
        while slot < o.size:
            slots.append(slot)
            slot = o.slots[slot].next
        if slots:
            lists[kind] = slots
        if bool(slots) != bool(o.filled[kind >> 6] >> (kind & 63) & 1):
            raise BrokenInvariant(f"class {kind} has {len(slots)} slots, and its mark says otherwise")
    return lists


cdef dict dump_group(State *s, Pool *g, dict numbers):
    cdef dict pages = {}
    cdef list idle = []
    cdef int32_t p, t
    cdef Page *page
    for p in range(g.num_pages):
        page = page_at(g, p)
        if page.holders >= 0:
            expiry = -1 if g.times.expiry == NULL else g.times.expiry[p]
            pages[p] = (path_of(&s.tree, numbers, page.node), page.holders, claims_of(page), slots_tuple(g, p),
                        priority_of(page), duration_of(g, p), expiry)
    p = g.free
    while p >= 0:
        idle.append(p)
        p = page_at(g, p).node
    return {
        "pages": pages,
        "orders": [dump_order(g.tiers + t) for t in range(g.num_tiers)],
        "free_pages": idle[::-1],
        "available": g.available,
        "counters": [g.counters[t] for t in range(NUM_COUNTERS)],
    }


cdef dict dump_rows(State *s, dict numbers):
    cdef dict rows = {}
    cdef int32_t row, i, k
    cdef Row *r
    cdef Spares *spares
    for row in range(s.num_rows):
        r = s.rows + row
        if not is_live(s, row):
            continue
        kept = []
        for i in range(s.num_groups):
            spares = s.spares + row * s.num_groups + i
            kept.append([spares.pages[k] for k in range(spares.count)])
        rows[row] = (s.length[row], s.computed[row], s.committed[row], [r.text.tokens[i] for i in range(r.text.length)],
                     path_of(&s.tree, numbers, r.tip), bool(r.keep), r.twins, kept, r.priority, r.duration,
                     *dump_stakes(s, row), bool(r.ahead), s.handed[row], r.reached)
    return rows


cdef tuple dump_stakes(State *s, int32_t row):
    """(fronts, showns, bases, owns, peaks, currents), each per group."""
    cdef Stake *stakes = s.stakes + <Py_ssize_t> row * s.num_groups
    cdef int32_t i
    return ([stakes[i].front for i in range(s.num_groups)], [stakes[i].shown for i in range(s.num_groups)],
            [stakes[i].base for i in range(s.num_groups)], [stakes[i].own for i in range(s.num_groups)],
            [stakes[i].peak for i in range(s.num_groups)], [s.pools[i].currents[row] for i in range(s.num_groups)])


cdef dict dump(State *s, dict numbers):
    cdef int32_t i
    return {
        "nodes": dump_nodes(s, numbers),
        "groups": [dump_group(s, s.pools + i, numbers) for i in range(s.num_groups)],
        "rows": dump_rows(s, numbers),
        "roots": sorted([(number, num_children(&s.tree, root)) for root, number in numbers.items()]),
    }


cdef tuple nbytes(State *s):
    """(metadata, tokens): what the tree, its index and the pools occupy; not the rows' tables, chains and the log."""
    cdef Tree *t = &s.tree
    cdef Py_ssize_t total = t.room * t.stride + 8 * (<Py_ssize_t> t.mask + 1)
    cdef int32_t i, k
    cdef Pool *g
    total += t.room * (12 * (t.hashes != NULL) + 8 * (t.extras != NULL))
    for i in range(s.num_groups):
        g = s.pools + i
        total += g.num_pages * (g.stride + (40 if g.times.duration != NULL else 0)) + g.num_tiers * sizeof(Order)
        for k in range(g.num_tiers):
            total += (g.tiers[k].size + NUM_CLASSES) * sizeof(Slot)
    return total, t.room * t.block_size * 4 + 24 * <Py_ssize_t> t.num_extras


cdef tuple page_info(Pool *g, int32_t p):
    """(node, holders, claims, priority, duration, expiry, stamp)"""
    cdef Page *page = page_at(g, p)
    if page.holders < 0:
        return -1, 0, 0, DEFAULT_PRIORITY, -1, -1, page.stamp
    expiry = -1 if g.times.expiry == NULL else g.times.expiry[p]
    return page.node, page.holders, claims_of(page), priority_of(page), duration_of(g, p), expiry, page.stamp
