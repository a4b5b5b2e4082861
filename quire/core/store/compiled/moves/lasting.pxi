# Owns: what changed in the slow tier, as arrays: slots whose page went, new pages, the blocks that they need; and the
# numbers of blocks: one for a block's life, never reused.
# Does not know: who keeps them.

cdef struct Fresh:            # blocks that have just got their numbers, parents first
    int32_t *nodes
    Py_ssize_t room
    Py_ssize_t count


cdef int number_blocks(Tree *t, int32_t node, Fresh *fresh) noexcept nogil:
    """Numbers for a block and those above it that have none yet; -1 without memory."""
    cdef Py_ssize_t depth = 0, i
    cdef int32_t n = node
    while not at(t, n).flags & ROOT and t.lasting[n] == 0:
        depth += 1
        n = at(t, n).parent
    if reserve(<void **> &fresh.nodes, &fresh.room, fresh.count + depth, 4):
        return -1
    n = node
    for i in range(depth - 1, -1, -1):
        fresh.nodes[fresh.count + i] = n
        n = at(t, n).parent
    for i in range(depth):
        t.numbered += 1
        t.lasting[fresh.nodes[fresh.count + i]] = t.numbered
    fresh.count += depth
    return 0


cdef tuple fresh_arrays(Tree *t, Fresh *fresh):
    """(blocks, start, tokens, words, where words are, roots)."""
    cdef Py_ssize_t i, k, total = 0
    cdef int32_t n, above
    cdef const uint64_t *extras
    cdef dict roots = {}
    blocks, start = np.empty((fresh.count, 2), np.int64), np.zeros(fresh.count + 1, np.int64)
    words, word_at = [], []
    for i in range(fresh.count):
        n = fresh.nodes[i]
        above, extras = at(t, n).parent, extras_at(t, n)
        name = t.lasting[above] if not at(t, above).flags & ROOT else -1 - roots.setdefault(above, len(roots))
        blocks[i, 0], blocks[i, 1] = t.lasting[n], name
        for k in range(at(t, n).size if extras != NULL else 0):
            if not is_plain(extras + 3 * k):
                words.append((extras[3 * k], extras[3 * k + 1], extras[3 * k + 2]))
                word_at.append(total + k)
        total += at(t, n).size
        start[i + 1] = total
    tokens = np.empty(total, np.int32)
    total = 0
    for i in range(fresh.count):
        memcpy(<int32_t *> memory_of(tokens) + total, tokens_at(t, fresh.nodes[i]), 4 * at(t, fresh.nodes[i]).size)
        total += at(t, fresh.nodes[i]).size
    return (blocks, start, tokens, np.array(words, np.uint64).reshape(-1, 3), np.array(word_at, np.int64), list(roots))


cdef tuple take_changes(State *s):
    """What `interface.py` says; parents before children."""
    cdef Fresh fresh
    cdef Pool *g
    cdef int32_t i, p
    cdef list freed = [], pages = []
    fresh.nodes, fresh.room, fresh.count = NULL, 0, 0
    try:
        for i in range(s.num_groups):
            g = s.pools + i
            for slot in take_changed(g.notes) if g.notes != NULL and g.first == i else ():
                if is_told(g.notes, slot):
                    set_told(g.notes, slot, False)
                    freed.append((told_group(g.notes, slot, i), slot))
                p = g.tiers[g.slow].slots[<int32_t> slot].page
                if p >= 0 and page_at(g, p).node >= 0:
                    tell_page(g.notes, slot, keeper(s, g, p).index)
                    if number_blocks(&s.tree, page_at(g, p).node, &fresh):
                        raise MemoryError("take_changes: no memory")
                    pages.append((keeper(s, g, p).index, slot, s.tree.lasting[page_at(g, p).node]))
        return (np.array(freed, np.int32).reshape(-1, 2), *fresh_arrays(&s.tree, &fresh),
                np.array(pages, np.int64).reshape(-1, 3))
    finally:
        free(fresh.nodes)
