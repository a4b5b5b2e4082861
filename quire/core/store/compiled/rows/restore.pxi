# Owns: blocks and their pages in the slow tier, as an earlier process had them, into an empty store; all or nothing.
# Does not know: files. The layer above has checked slots, sizes and the order of parents; a block that stands twice
# under its parent is detected here.

cdef struct Restored:         # blocks that come back
    int64_t count
    const int64_t *blocks     # (number, place of the parent or -1 - root)
    const int32_t *tokens
    const uint64_t *words     # of the tokens at `word_at`
    const int64_t *word_at
    int64_t num_words
    int32_t *nodes            # of the blocks
    uint64_t *seeds           # of their roots
    const int32_t *roots


cdef const uint64_t *spread_words(State *s, Restored *r, int64_t place, int64_t *word, uint64_t *words) noexcept nogil:
    """The words of a block, three a token; NULL: all are plain. `word`: the first that was not used yet."""
    cdef int64_t first = place * s.block_size, stop = first + s.block_size
    cdef bint plain = True
    while word[0] < r.num_words and r.word_at[word[0]] < stop:
        if plain:
            memset(words, 0, 24 * <size_t> s.block_size)
            plain = False
        memcpy(words + 3 * (r.word_at[word[0]] - first), r.words + 3 * word[0], 24)
        word[0] += 1
    return NULL if plain else words


cdef int64_t restore_blocks(State *s, Restored *r, uint64_t *words) noexcept nogil:
    """Nodes of the blocks, parents first; how many there are, fewer when the next one is there already."""
    cdef Tree *t = &s.tree
    cdef int64_t i, parent, word = 0
    cdef int32_t above, n
    cdef uint64_t key
    cdef const int32_t *tokens
    cdef const uint64_t *extras
    for i in range(r.count):
        parent = r.blocks[2 * i + 1]
        above = r.roots[-1 - parent] if parent < 0 else r.nodes[parent]
        r.seeds[i] = seed_of(t, above) if parent < 0 else r.seeds[parent]
        tokens, extras = r.tokens + i * s.block_size, spread_words(s, r, i, &word, words)
        key = key_of(SECRET, 0 if parent < 0 else key_at(t, above) ^ r.seeds[i], tokens, s.block_size)
        key = (key if extras == NULL else extras_key(key, extras, s.block_size)) ^ r.seeds[i]
        if find_block(t, above, <uint32_t> key, tokens, extras) >= 0:
            return i
        n = new_block(t, above, tokens, extras, s.block_size)
        at(t, n).key, at(t, n).high = <uint32_t> key, <uint32_t> (key >> 32)
        index_insert(t, <uint32_t> key, n)
        link_child(t, above, n)
        r.nodes[i] = n
        t.numbered = max(t.numbered, r.blocks[2 * i])
        if t.lasting != NULL:
            t.lasting[n] = r.blocks[2 * i]
    return r.count


cdef void drop_bare(State *s, Restored *r, int64_t count) noexcept nogil:
    """Blocks that lead to no page go, the last first."""
    cdef int64_t i
    for i in range(count - 1, -1, -1):
        if is_bare(&s.tree, at(&s.tree, r.nodes[i])):
            drop_node(&s.tree, r.nodes[i])


cdef void restore_pages(State *s, Restored *r, const int32_t *pages, int64_t count) noexcept nogil:
    """Pages, (group, slot, place of the block), become idle in the slow tier, in this order."""
    cdef int64_t i
    cdef int32_t p, slot
    cdef Pool *g
    s.makes = -1
    for i in range(count):
        g, slot = s.pools + pages[3 * i], pages[3 * i + 1]
        unlist_empty(g, g.slow, slot)
        p = pop_page(g, DEFAULT_PRIORITY, -1)
        put_copy(g, p, g.slow, slot)
        attach(s, g, p, r.nodes[pages[3 * i + 2]])
        if g.notes != NULL:
            tell_page(g.notes, slot, g.index)
    for i in range(count):
        g = s.pools + pages[3 * i]
        let_go(g, g.tiers[g.slow].slots[pages[3 * i + 1]].page, s.now, UNKNOWN)


cdef int restore(State *s, Restored *r, pages, int64_t now) except -1:
    """All of it, or a ValueError and nothing."""
    cdef Py_buffer view
    cdef Py_ssize_t n = borrow(&view, pages, 4, b"il", "pages") // 3
    cdef uint64_t *words = <uint64_t *> malloc(24 * <size_t> s.block_size)
    cdef int64_t made
    cdef int32_t i
    try:
        r.nodes = <int32_t *> malloc(4 * <size_t> r.count + 1)
        r.seeds = <uint64_t *> malloc(8 * <size_t> r.count + 1)
        if not (words and r.nodes and r.seeds) or tree_reserve(&s.tree, r.count, r.num_words > 0):
            raise MemoryError("restore: no memory for blocks")
        with nogil:
            made = restore_blocks(s, r, words)
        if made < r.count:
            drop_bare(s, r, made)
            raise ValueError(f"block {r.blocks[2 * made]} stands twice under its parent")
        tell_time(s, now)
        with nogil:
            restore_pages(s, r, <const int32_t *> view.buf, n)
        for i in range(s.num_groups):
            if s.pools[i].notes != NULL:
                take_changed(s.pools[i].notes)    # who restores knows
        drop_bare(s, r, r.count)
        with nogil:
            log_restored(s, n)
    finally:
        PyBuffer_Release(&view)
        free(words)
        free(r.nodes)
        free(r.seeds)
    return 0


cdef int restore_arrays(State *s, roots, blocks, tokens, words, word_at, pages, int64_t now) except -1:
    """Borrow what comes back, then act; the arrays are those that the layer above has made."""
    cdef Restored r
    cdef Py_buffer[5] views
    cdef int taken = 0
    memset(&r, 0, sizeof(r))
    try:
        r.count = borrow(&views[0], blocks, 8, b"lq", "blocks") // 2
        taken = 1
        if borrow(&views[1], tokens, 4, b"il", "tokens") != r.count * s.block_size:
            taken = 2
            raise ValueError("restore: blocks are full")
        taken = 2
        r.num_words = borrow(&views[2], words, 8, b"LQ", "words") // 3
        taken = 3
        borrow(&views[3], word_at, 8, b"lq", "word_at")
        taken = 4
        borrow(&views[4], roots, 4, b"il", "roots")
        taken = 5
        r.blocks, r.tokens = <const int64_t *> views[0].buf, <const int32_t *> views[1].buf
        r.words, r.word_at = <const uint64_t *> views[2].buf, <const int64_t *> views[3].buf
        r.roots = <const int32_t *> views[4].buf
        return restore(s, &r, pages, now)
    finally:
        while taken:
            taken -= 1
            PyBuffer_Release(&views[taken])
