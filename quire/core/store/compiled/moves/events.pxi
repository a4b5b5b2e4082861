# Owns: what the log says about pages: their facts, one record per act, and the whole state at once.
# Does not know: why a page changes, who reads the log.


cdef inline int32_t facts_of(State *s, Page *page, int32_t node, int32_t tier) noexcept nogil:
    """What stands beside a page's hash: priority, tier, whether its block is partial and whether tokens have words."""
    cdef int32_t facts = priority_of(page) | tier << 8
    if at(&s.tree, node).size < s.block_size:
        facts |= PARTIAL
    return facts if extras_at(&s.tree, node) == NULL else facts | WORDS


cdef int64_t *log_blocks(State *s, int kind, int32_t group, const int32_t *nodes, Py_ssize_t count) noexcept nogil:
    """A record of blocks with their tokens, parent and root, its hashes to be added; NULL without memory."""
    cdef Tree *t = &s.tree
    cdef Log *log = &s.log
    cdef int32_t parent = at(t, nodes[0]).parent, size = at(t, nodes[0]).size
    cdef int64_t *record
    cdef Py_ssize_t i
    if log_room(log, count, count * size):
        return NULL
    record = log_record(log, kind, group, count)
    record[4], record[5], record[10] = log.num_tokens, size, at(t, parent).flags & ROOT
    record[8], record[9] = <int64_t> t.hashes[parent], <int64_t> t.hashes[t.roots[nodes[0]]]
    for i in range(count):
        memcpy(log.tokens + log.num_tokens, tokens_at(t, nodes[i]), 4 * size)
        log.num_tokens += size
    return record


cdef void log_page(State *s, Pool *g, Page *page, int kind, int64_t before, int64_t after) noexcept nogil:
    """MOVED from tier to tier or RETAINED from priority to priority, if the page is a committed one."""
    cdef Log *log = &s.log
    cdef int64_t *record
    if log.batches == NULL or page.node < 0:
        return
    if kind == MOVED:
        record = log_blocks(s, MOVED, g.index, &page.node, 1)
    else:
        record = NULL if log_room(log, 1, 0) else log_record(log, kind, g.index, 1)
    if record == NULL:
        return
    record[6], record[7] = before, after
    log_hash(log, s.tree.hashes[page.node], facts_of(s, page, page.node, hottest(g, page)))
    log_bound(log, 1)


cdef void log_stored(State *s, Pool *g, const int32_t *nodes, Py_ssize_t count) noexcept nogil:
    """STORED: `count` nodes, one under the other, all of one size, whose pages have just been attached."""
    cdef Py_ssize_t i
    cdef Page *page
    cdef int64_t *record
    cdef int32_t tier
    if s.log.batches == NULL or count == 0:
        return
    log_flush(&s.log, g.index)
    record = log_blocks(s, STORED, g.index, nodes, count)
    if record == NULL:
        return
    tier = hottest(g, page_at(g, at(&s.tree, nodes[0]).page[g.index]))
    record[7] = tier
    for i in range(count):
        page = page_at(g, at(&s.tree, nodes[i]).page[g.index])
        log_hash(&s.log, s.tree.hashes[nodes[i]], facts_of(s, page, nodes[i], tier))
    log_bound(&s.log, count)


cdef int log_group(State *s, Pool *g, int32_t root) noexcept nogil:
    """STORED for every page of a group below a root, a chain in one tier as one record; -1 without memory."""
    cdef Tree *t = &s.tree
    cdef Log *log = &s.log
    cdef int32_t n = next_block(t, root), above = -1, p, tier
    cdef int64_t *record = NULL
    while n >= 0:
        p = at(t, n).page[g.index]
        if p >= 0:
            tier = hottest(g, page_at(g, p))
            if record != NULL and at(t, n).parent == above and record[7] == tier and record[5] == at(t, n).size:
                if log_room(log, 1, at(t, n).size):
                    return -1
                record = log.records + RECORD_WIDTH * (log.num_records - 1)
                record[2] += 1
                memcpy(log.tokens + log.num_tokens, tokens_at(t, n), 4 * at(t, n).size)
                log.num_tokens += at(t, n).size
            else:
                record = log_blocks(s, STORED, g.index, &n, 1)
                if record == NULL:
                    return -1
                record[7] = tier
            log_hash(log, t.hashes[n], facts_of(s, page_at(g, p), n, tier))
            above = n
        n = next_block(t, n)
    return 0


cdef void log_restored(State *s, Py_ssize_t count) noexcept nogil:
    """STORED for all `count` pages of a store that was empty; as a loss if they are more than may wait."""
    cdef Log *log = &s.log
    cdef int32_t i, root
    if log.batches == NULL:
        return
    if log.num_pending + count >= log.max_pending:
        log.num_pending += count
        log_discard(log)
        return
    for i in range(s.num_groups):
        root = s.tree.first_root
        while root >= 0:
            if log_group(s, s.pools + i, root):
                return
            root = at(&s.tree, root).right
    log.num_pending += count


cdef int log_whole(State *s) noexcept nogil:
    """Instead of what waits in the log: CLEARED and CREATED for every group, then all pages; -1 without memory."""
    cdef Log *log = &s.log
    cdef int32_t i, k, root
    cdef Pool *g
    log.num_pending = log.num_records = log.num_hashes = log.num_tokens = 0
    log_cleared(log)
    for i in range(s.num_groups):
        g = s.pools + i
        if log_room(log, g.num_tiers, 0):
            return -1
        log_record(log, CREATED, i, g.num_tiers)
        for k in range(g.num_tiers):
            log_hash(log, <uint64_t> g.tiers[k].size, 0)
    for i in range(s.num_groups):
        root = s.tree.first_root
        while root >= 0:
            if log_group(s, s.pools + i, root):
                return -1
            root = at(&s.tree, root).right
    return 0
