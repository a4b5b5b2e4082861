# Owns: how things end: release of a row (its tail is kept as a partial block), truncate, clear, lose.
# Does not know: admission.


cdef void adopt_twins(State *s, int32_t row) noexcept nogil:
    """Private twins whose block has lost its page in the meantime take its place."""
    cdef int32_t b, i, p, node = s.rows[row].tip
    cdef Pool *g
    for b in range(s.committed[row] - 1, -1, -1):
        for i in range(s.num_groups):
            g = s.pools + i
            p = pages_of(s, g, row)[b]
            if p >= 0 and page_at(g, p).node < 0 and at(&s.tree, node).page[i] < 0:
                attach(s, g, p, node)
                log_stored(s, g, &node, 1)
        node = at(&s.tree, node).parent


cdef bint is_covered(State *s, int32_t parent, int32_t group, Query *q) noexcept nogil:
    """Whether some child that has a page of the group begins with q."""
    cdef int32_t common, node = first_after(&s.tree, parent, q, True, &common)
    cdef Query own
    while node >= 0 and common_with(&s.tree, node, q) == q.size:
        if at(&s.tree, node).page[group] >= 0:
            return True
        own = query_of(&s.tree, node)
        node = first_after(&s.tree, parent, &own, False, &common)
    return False


cdef void keep_tail(State *s, int32_t row) noexcept nogil:
    """The computed tokens after the last committed block become a partial block, unless they are there already."""
    cdef Row *r = s.rows + row
    cdef int64_t begin = <int64_t> s.committed[row] * s.block_size
    cdef int32_t i, p, node
    cdef Pool *g
    cdef Query q
    if not 0 < s.computed[row] - begin < s.block_size or s.computed[row] > r.text.length:
        return
    q.tokens, q.size = r.text.tokens + begin, <int32_t> (s.computed[row] - begin)
    q.extras = NULL if r.text.extras == NULL else r.text.extras + 3 * begin
    for i in range(s.num_groups):
        g = s.pools + i
        p = pages_of(s, g, row)[s.committed[row]] if s.committed[row] < g.capacity[row] else -1
        if p < 0 or g.current or not is_own(g, p) or is_covered(s, r.tip, i, &q):
            continue
        node = find_child(&s.tree, r.tip, &q)
        if node < 0:
            node = new_block(&s.tree, r.tip, q.tokens, q.extras, q.size)
            link_child(&s.tree, r.tip, node)
        attach(s, g, p, node)
        log_stored(s, g, &node, 1)


cdef void drop_promises(State *s, int32_t row) noexcept nogil:
    """What is kept free for a row is available to all again."""
    cdef int32_t i
    for i in range(s.num_groups):
        if stake_of(s, s.pools + i, row).peak:
            set_peak(s.pools + i, stake_of(s, s.pools + i, row), 0)


cdef void release(State *s, int32_t row, bint tail, bint ahead) noexcept nogil:
    """End a row without promises: keep what is worth keeping, then let go of its pages, last to first. `ahead`: what is
    current belongs to no block it has computed. Room for one node is reserved."""
    cdef Row *r = s.rows + row
    cdef Spares *spares
    cdef int32_t i
    if tail and r.keep and r.tip >= 0:
        if r.twins:
            adopt_twins(s, row)
        if s.num_current and not ahead:
            keep_currents(s, row)
        if s.tails:
            keep_tail(s, row)
    set_tip(s, row, -1)
    for i in range(s.num_groups):
        spares = s.spares + row * s.num_groups + i
        while spares.count:
            spares.count -= 1
            let_go(s.pools + i, spares.pages[spares.count], s.now)
        drop_columns(s, s.pools + i, row, 0)
        close_current(s, s.pools + i, row)
    s.length[row] = s.handed[row] = s.computed[row] = s.committed[row] = 0
    r.text = NULL


cdef int32_t deepest(Tree *t, int32_t n) noexcept nogil:
    """The first node below n in post-order."""
    while at(t, n).child >= 0:
        n = at(t, n).child
        while at(t, n).left >= 0:
            n = at(t, n).left
    return n


cdef bint any_claimed(State *s, int32_t n) noexcept nogil:
    cdef int32_t i, p
    for i in range(s.num_groups):
        p = at(&s.tree, n).page[i]
        if p >= 0 and claims_of(page_at(s.pools + i, p)):
            return True
    return False


cdef int32_t following(Tree *t, int32_t n) noexcept nogil:
    """The node after n in post-order; n is not a root."""
    cdef int32_t common, parent = at(t, n).parent
    cdef Query q = query_of(t, n)
    n = first_after(t, parent, &q, False, &common)
    return deepest(t, n) if n >= 0 else parent


cdef bint has_claims(State *s, int32_t top) noexcept nogil:
    """Whether some page at or below a node is claimed."""
    cdef int32_t n = deepest(&s.tree, top)
    while n != top:
        if any_claimed(s, n):
            return True
        n = following(&s.tree, n)
    return any_claimed(s, top)


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
    """Detach all pages of a node: idle ones are freed, held ones become private; the number of them."""
    cdef int32_t i, p, count = 0
    cdef Pool *g
    for i in range(s.num_groups):
        g, p = s.pools + i, at(&s.tree, n).page[i]
        if p < 0:
            continue
        at(&s.tree, n).page[i] = -1
        page_at(g, p).node = -1
        s.tree.epoch += 1
        if logged and s.log.batches != NULL:
            log_removed(&s.log, i, s.tree.hashes[n], facts_of(s, page_at(g, p), n, hottest(g, page_at(g, p))))
        if page_at(g, p).holders == 0:
            free_page(g, p, True)
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


cdef int32_t truncate(State *s, Text *text, int32_t root, Py_ssize_t usable, Py_ssize_t keep, bint ask) noexcept nogil:
    """Remove the chain's blocks, full and partial, that begin at or after `keep`, with all below them; the number of
    pages detached. With `ask` only say whether one of those pages is claimed."""
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
        if n >= 0 and ask and has_claims(s, n):
            return 1
        if n >= 0 and not ask:
            count += remove_branch(s, n)
    return count


cdef bint any_page_claimed(State *s) noexcept nogil:
    cdef int32_t i, p
    for i in range(s.num_groups):
        for p in range(s.pools[i].num_pages):
            if page_at(s.pools + i, p).holders >= 0 and claims_of(page_at(s.pools + i, p)):
                return True
    return False


cdef int32_t clear(State *s) noexcept nogil:
    """Remove everything, roots too; the number of pages detached."""
    cdef int32_t row, count = 0
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


cdef inline int32_t leftmost(Tree *t, int32_t n) noexcept nogil:
    while at(t, n).left >= 0:
        n = at(t, n).left
    return n


cdef bint lose(State *s, Pool *g, int32_t p) noexcept nogil:
    """A page's bytes are gone: out of the tree with it, and freed unless somebody holds it."""
    cdef Page *page = page_at(g, p)
    cdef bint idle = page.holders == 0
    if page.node >= 0:
        detach(s, g, p, hottest(g, page))
    if idle:
        free_page(g, p, True)
    else:
        drop_shadows(g, page, hottest(g, page))
    return True
