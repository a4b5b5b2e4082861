# Owns: how blocks go at once: the end of a chain, everything, a page whose bytes are gone.
# Does not know: rows beyond their tips.


cdef void doom(State *s, int32_t top) noexcept nogil:
    """Mark a subtree; rows whose tip is in it commit nothing any more."""
    cdef Tree *t = &s.tree
    cdef int32_t row, n = deepest(t, top)
    while n != top:
        at(t, n).flags |= DOOMED
        n = following(t, n)
    at(t, top).flags |= DOOMED
    for row in range(s.num_rows):
        if is_live(s, row) and s.rows[row].tip >= 0 and at(t, s.rows[row].tip).flags & DOOMED:
            s.rows[row].tip = -1


cdef int32_t strip(State *s, int32_t n, bint logged) noexcept nogil:
    """Detach all pages of a node: idle ones are freed, held and claimed ones stay their users'; the number of them."""
    cdef int32_t i, p, count = 0
    cdef Pool *g
    for i in range(s.num_groups):
        g, p = s.pools + i, at(&s.tree, n).page[i]
        if p < 0:
            continue
        unbury(s, g, n)
        unwatch(g, p)
        at(&s.tree, n).page[i] = -1
        page_at(g, p).node = -1
        s.tree.epoch += 1
        if g.notes != NULL:
            note_slot(g, g.slow, page_at(g, p).slot[g.slow])
        if g.cells != NULL:
            child_moved(g, n, hottest(g, page_at(g, p)), -1)
        if logged and s.log.batches != NULL:
            log_removed(&s.log, i, s.tree.hashes[n], facts_of(s, page_at(g, p), n, hottest(g, page_at(g, p))))
        if page_at(g, p).holders == 0:
            strand_page(g, p)
        count += 1
    return count


cdef int32_t remove_subtree(State *s, int32_t top, bint logged) noexcept nogil:
    """Remove a node and all below it, deepest first; no row's tip is in there. The number of pages detached."""
    cdef Tree *t = &s.tree
    cdef int32_t n = deepest(t, top), parent, count = 0
    while True:
        parent = at(t, n).parent
        count += strip(s, n, logged)
        drop_node(t, n)
        if n == top:
            return count
        n = deepest(t, parent)


cdef int32_t remove_branch(State *s, int32_t top) noexcept nogil:
    """Remove a subtree and what was only there to lead to it; the number of pages detached."""
    cdef int32_t count, parent = at(&s.tree, top).parent
    doom(s, top)
    count = remove_subtree(s, top, True)
    prune(&s.tree, parent)
    return count


cdef int32_t find_end(State *s, Text *text, int32_t root, Py_ssize_t usable, Py_ssize_t blocks) noexcept nogil:
    """The node that many full blocks down the chain's path, or -1. Keys have been made."""
    cdef Tree *t = &s.tree
    cdef int32_t node = root, size = t.block_size
    cdef Py_ssize_t b
    for b in range(blocks):
        if (b + 1) * size > usable:
            return -1
        node = find_block(t, node, <uint32_t> text.keys[b] ^ at(t, root).key, text.tokens + b * size,
                          extras_of(text, b))
        if node < 0:
            return -1
    return node


cdef int32_t truncate(State *s, Text *text, int32_t root, Py_ssize_t usable, Py_ssize_t keep) noexcept nogil:
    """Remove the chain's blocks, full and partial, that begin at or after `keep`, with all below them; the number of
    pages detached."""
    cdef Py_ssize_t begin = max(0, (keep + s.block_size - 1) // s.block_size) * s.block_size
    cdef int32_t node = find_end(s, text, root, usable, begin // s.block_size), n, size, count = 0
    cdef Query q
    if node < 0:
        return 0
    q.tokens = text.tokens + begin
    q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
    for size in range(1, <int32_t> min(s.block_size, usable - begin) + 1):
        q.size = size
        n = find_child(&s.tree, node, &q)
        if n >= 0:
            count += remove_branch(s, n)
    return count


cdef void forget_ghosts(State *s) noexcept nogil:
    cdef int32_t i
    for i in range(s.num_groups):
        if s.pools[i].ghosts != NULL:
            ghosts_clear(s.pools[i].ghosts)


cdef int32_t clear(State *s) noexcept nogil:
    """Remove everything, roots too; the number of pages detached."""
    cdef int32_t row, count = 0
    forget_ghosts(s)          # first: what is removed then has none to be looked for
    for row in range(s.num_rows):
        s.rows[row].tip = -1
    while s.tree.first_root >= 0:
        at(&s.tree, s.tree.first_root).tips = 0
        while at(&s.tree, s.tree.first_root).child >= 0:
            count += remove_subtree(s, leftmost(&s.tree, at(&s.tree, s.tree.first_root).child), False)
        free_root(&s.tree, s.tree.first_root)
    if s.log.batches != NULL:
        log_cleared(&s.log)
    return count


cdef bint lose(State *s, Pool *g, int32_t p) noexcept nogil:
    """A page's bytes are gone: out of the tree with it, and freed unless it is held."""
    cdef Page *page = page_at(g, p)
    cdef bint idle = page.node >= 0 and page.holders == 0
    if page.node >= 0:
        bury(s, g, p, SPOILT)
        detach(s, g, p, hottest(g, page))
    if (page.holders or claims_of(page)) and not (stays_of(g, p) and claims_of(page)):   # else they are being read
        drop_shadows(g, page, hottest(g, page))
    if idle:
        strand_page(g, p)
    return True


cdef int32_t forget_below(State *s, int32_t root) noexcept nogil:
    """Remove all below a root, and all ghosts, which do not say whose they are; the number of pages detached."""
    cdef int32_t row, count = 0
    forget_ghosts(s)
    for row in range(s.num_rows):
        if is_live(s, row) and s.rows[row].root == root and s.rows[row].tip >= 0:
            set_tip(s, row, -1)
    while at(&s.tree, root).child >= 0:
        count += remove_branch(s, leftmost(&s.tree, at(&s.tree, root).child))
    return count


cdef object truncate_chain(State *s, Text *text, int32_t root, Py_ssize_t usable, Py_ssize_t keep):
    """Truncate along a text."""
    usable, keep = max(0, min(usable, text.length)), min(keep, text.length + 1)
    if text_keys(text, usable // s.block_size):
        raise MemoryError("truncate: no memory for keys")
    return truncate(s, text, root, usable, keep)
