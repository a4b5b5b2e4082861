# Owns: what happens to a live row step by step: commit of full blocks, growth, trimming.
# Does not know: admission, release.

cdef enum:
    UNKNOWN_ROW = -2          # why a batch is refused
    TOO_LONG = -3
    NO_MEMORY = -4


cdef int commit_check(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n) noexcept nogil:
    """Check a batch, note the rows that have a block to commit, reserve what that may need; nothing visible changes."""
    cdef Py_ssize_t i, blocks = 0
    cdef int64_t size = s.block_size
    cdef int32_t row, c, count = 0
    cdef bint extras = False
    cdef int why = 0
    cdef Row *r
    s.batch += 1
    for i in range(n):
        row = rows[i]
        if not joins(s, row):
            return UNKNOWN_ROW
        c = computed[i] if computed != NULL else s.length[row]
        if c > s.length[row]:
            why, s.culprit = TOO_LONG, row
        if c < (s.committed[row] + 1) * size:
            continue
        r = s.rows + row
        if c > r.text.length or c // s.block_size > s.num_columns:
            why, s.culprit = TOO_LONG, row
        elif r.keep and r.tip >= 0:
            blocks += c // s.block_size - s.committed[row]
            extras = extras or r.text.extras != NULL
            s.crossing[count] = <int32_t> i
            count += 1
            prefetch(pages_of(s, s.pools, row) + s.committed[row])
            if text_keys(r.text, c // s.block_size):
                return NO_MEMORY
            fetch_entry(&s.tree, r.text, at(&s.tree, r.root).key, s.committed[row])
    s.num_crossing = count
    return NO_MEMORY if blocks and not why and tree_reserve(&s.tree, blocks, extras) else why


cdef inline void fetch_entry(Tree *t, Text *text, uint32_t seed, Py_ssize_t block) noexcept nogil:
    prefetch(t.index + ((<uint32_t> text.keys[block] ^ seed) & t.mask))


cdef int32_t extend_path(State *s, Text *text, int32_t node, uint32_t seed, int32_t first, int32_t last) noexcept nogil:
    """Nodes of the blocks [first, last) below a node, found or made, in the scratch path; the last of them."""
    cdef Tree *t = &s.tree
    cdef int32_t b, child
    for b in range(first, min(last, first + AHEAD)):
        fetch_entry(t, text, seed, b)
    for b in range(first, last):
        child = find_block(t, node, <uint32_t> text.keys[b] ^ seed, text.tokens + <Py_ssize_t> b * t.block_size,
                           extras_of(text, b))
        if child < 0:
            return make_path(s, text, node, seed, first, b, last)
        s.path[b - first] = node = child
        if b + AHEAD < last:
            fetch_entry(t, text, seed, b + AHEAD)
    return node


cdef int32_t make_path(State *s, Text *text, int32_t node, uint32_t seed, int32_t first, int32_t begin,
                       int32_t last) noexcept nogil:
    """New nodes for the blocks [begin, last): below a new node there is nothing to find."""
    cdef Tree *t = &s.tree
    cdef int32_t b, child, size = t.block_size
    cdef uint32_t key
    for b in range(begin, last):
        if b + AHEAD < last:
            fetch_entry(t, text, seed, b + AHEAD)
        child = new_block(t, node, text.tokens + <Py_ssize_t> b * size, extras_of(text, b), size)
        prefetch(tokens_at(t, child) + 8 * size)
        prefetch(at(t, child + 8))
        key = <uint32_t> text.keys[b] ^ seed
        at(t, child).key, at(t, child).high = key, <uint32_t> (text.keys[b] >> 32)
        index_insert(t, key, child)
        if b > begin:
            at(t, node).child = child
        else:
            link_child(t, node, child)
        s.path[b - first] = node = child
    return node


cdef void replace_page(State *s, Pool *g, int32_t q, int32_t p) noexcept nogil:
    """Idle page q of a block is in colder tiers only, p of the same block on tier 0: p takes its place and copies."""
    cdef Page *old = page_at(g, q)
    cdef Page *new = page_at(g, p)
    cdef int32_t t = hottest(g, old), u, slot
    for u in range(t, g.num_tiers):
        slot = old.slot[u]
        if slot < 0:
            continue
        if u == t:
            unlist_idle(g, u, old)
        else:
            unlist_shadow(g, u, old)
        if s.shadows and s.inherit and new.slot[u] < 0:
            put_copy(g, p, u, slot)
            list_shadow(g, u, new)
        else:
            list_empty(g, u, slot)
    attach(s, g, p, old.node)
    log_page(s, g, new, MOVED, t, 0)
    if priority_of(old) != priority_of(new):
        log_page(s, g, new, RETAINED, priority_of(old), priority_of(new))
    push_page(g, q)


cdef bint displaces(Pool *g, int32_t p, int32_t q) noexcept nogil:
    """Whether open page p shall replace q as the page of a block."""
    cdef Page *old = page_at(g, q)
    return (old.holders == 0 and claims_of(old) == 0 and old.slot[0] < 0
            and page_at(g, p).slot[0] >= 0 and page_at(g, p).node < 0)


cdef int32_t attach_row(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Attach the row's pages of [first, last) to the nodes of the scratch path; the number attached."""
    cdef int32_t *pages = pages_of(s, g, row) + first
    cdef int32_t i, p, q, run = 0, stored = 0     # run: blocks attached without a gap up to here
    for i in range(last - first):
        p, q = pages[i], at(&s.tree, s.path[i]).page[g.index]
        if q < 0 and p >= 0 and page_at(g, p).node < 0:
            attach(s, g, p, s.path[i])
            run += 1
            stored += 1
            continue
        log_stored(s, g, s.path + i - run, run, s.rows[row].root)
        run = 0
        if p < 0 or p == q or q < 0:
            continue
        if displaces(g, p, q):
            replace_page(s, g, q, p)
        else:
            s.rows[row].twins += 1
    log_stored(s, g, s.path + last - first - run, run, s.rows[row].root)
    return stored


cdef int64_t commit(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n) noexcept nogil:
    """Make the computed full blocks of checked rows findable; the number of pages newly attached."""
    cdef Py_ssize_t i
    cdef int32_t k, g, row, first, last
    cdef int64_t stored = 0
    cdef Row *r
    for i in range(n):
        s.computed[rows[i]] = max(s.computed[rows[i]], computed[i] if computed != NULL else s.length[rows[i]])
    for k in range(s.num_crossing):
        row = rows[s.crossing[k]]
        r = s.rows + row
        first = s.committed[row]
        last = (computed[s.crossing[k]] if computed != NULL else s.length[row]) // s.block_size
        set_tip(s, row, extend_path(s, r.text, r.tip, at(&s.tree, r.root).key, first, last))
        for g in range(s.num_groups):
            stored += attach_row(s, s.pools + g, row, first, last)
        s.committed[row] = last
    return stored


cdef int grow_check(State *s, const int32_t *rows, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    """Check a batch, note the rows that need more columns (as many in every group) and count those; nothing changes."""
    cdef Py_ssize_t i
    cdef int64_t wanted, size = s.block_size, limit = s.num_columns * size, columns = 0
    cdef int32_t *capacity = s.pools.capacity
    cdef int32_t *length = s.length
    cdef int32_t row, g, count = 0
    cdef int why = 0
    s.batch += 1
    for i in range(n):
        row = rows[i]
        if not joins(s, row):
            return UNKNOWN_ROW
        wanted = length[row] + k
        if wanted > capacity[row] * size:
            if wanted > limit:
                why, s.culprit = TOO_LONG, row
                continue
            columns += columns_for(s, wanted) - capacity[row]
            s.crossing[count] = <int32_t> i
            count += 1
            prefetch(pages_of(s, s.pools, row) + capacity[row])       # written soon, each in a memory page of its own
            prefetch(slots_of(s, s.pools, row) + capacity[row])
    s.num_crossing = count
    for g in range(s.num_groups):
        s.needs[g] = columns
    return why


cdef int append(State *s, const int32_t *rows, Py_ssize_t n, const int32_t *tokens, Py_ssize_t k) noexcept nogil:
    """k tokens more for every checked row; -1 without memory, and then nothing has changed."""
    cdef Py_ssize_t i
    cdef Text *text
    for i in range(n):
        text = s.rows[rows[min(i + 8, n - 1)]].text
        prefetch(text.tokens + text.length)
        text = s.rows[rows[i]].text
        if k == 1 and text.length < text.token_room and text.extras == NULL:
            text.tokens[text.length] = tokens[i]
            text.length += 1
        elif text_append(text, tokens + i * k, k):
            while i > 0:
                i -= 1
                s.length[rows[i]] -= <int32_t> k
                text_truncate(s.rows[rows[i]].text, s.length[rows[i]])
            return -1
        s.length[rows[i]] += <int32_t> k
    return 0


cdef int64_t grow(State *s, const int32_t *rows, Py_ssize_t ahead) noexcept nogil:
    """New pages for the noted rows of a checked batch, to hold `ahead` tokens beyond their length; how many, or -1."""
    cdef int32_t i, k, row, first, columns
    cdef int64_t grown = 0
    cdef Pool *g
    for i in range(s.num_groups):
        s.pools[i].to_cut = s.needs[i]
    for k in range(s.num_crossing):
        row = rows[s.crossing[k]]
        columns = columns_for(s, s.length[row] + ahead)
        for i in range(s.num_groups):
            g = s.pools + i
            first = g.capacity[row]
            if fill_columns(s, g, row, first, columns, NULL):
                return -1
            g.capacity[row] = columns
            g.counters[GROWN] += columns - first
            grown += columns - first
    return grown


cdef int32_t drop_columns(State *s, Pool *g, int32_t row, int32_t keep) noexcept nogil:
    """Let go of the row's pages from the last column down to `keep`; the number of them."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t b, dropped = 0, columns = g.capacity[row]
    if columns <= keep:
        return 0
    for b in range(columns - 1, keep - 1, -1):
        if pages[b] >= 0:
            let_go(g, pages[b], s.now)
            dropped += 1
    memset(pages + keep, 0xFF, 4 * (columns - keep))
    memset(slots_of(s, g, row) + keep, 0xFF, 4 * (columns - keep))
    g.capacity[row] = keep
    return dropped


cdef int32_t trim(State *s, int32_t row, int32_t k) noexcept nogil:
    """Take back the last k tokens and every column beyond what is left; the number of pages given back."""
    cdef int32_t i, given = 0, length = s.length[row] - k
    text_truncate(s.rows[row].text, length)
    s.length[row] = length
    s.computed[row] = min(s.computed[row], length)
    for i in range(s.num_groups):
        given += drop_columns(s, s.pools + i, row, columns_for(s, length))
    return given
