# Owns: commit of full blocks: a row's pages become findable, or it learns that others were first.
# Does not know: columns that leave a row, admission, release.

cdef enum:
    UNKNOWN_ROW = -2          # why a batch is refused
    TOO_LONG = -3
    NO_MEMORY = -4
    UNDER_WAY = -5


cdef int commit_check(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n) noexcept nogil:
    """Check a batch, note the rows that have a block to commit, reserve what that may need; nothing visible changes."""
    cdef Py_ssize_t i, blocks = 0
    cdef int32_t row, c, count = 0
    cdef bint extras = False
    cdef int why = 0
    cdef Row *r
    s.batch += 1
    for i in range(n):
        row = rows[i]
        if not joins(s, row):
            return UNKNOWN_ROW
        c = computed[i] if computed != NULL else s.handed[row]
        if computed != NULL and c > s.length[row]:
            why, s.culprit = TOO_LONG, row
        if c < s.due[row]:
            continue
        r, c = s.rows + row, max(c, s.computed[row])
        s.crossing[count] = <int32_t> i
        count += 1
        prefetch(pages_of(s, s.pools, row) + s.committed[row])
        prefetch(s.stakes + <Py_ssize_t> row * s.num_groups)
        if c > r.text.length or c // s.block_size > s.num_columns:
            why, s.culprit = TOO_LONG, row
        elif r.keep and r.tip >= 0 and c // s.block_size > s.committed[row]:
            blocks += c // s.block_size - s.committed[row]
            extras = extras or r.text.extras != NULL
            if text_keys(r.text, c // s.block_size):
                return NO_MEMORY
            fetch_entry(&s.tree, r.text, at(&s.tree, r.root).key, s.committed[row])
    s.num_crossing = count
    if blocks and not why and tree_reserve(&s.tree, blocks, extras):
        return NO_MEMORY
    return NO_MEMORY if s.num_current and moves_reserve(&s.log, count * s.num_current) else why


cdef inline void fetch_entry(Tree *t, Text *text, uint32_t seed, Py_ssize_t block) noexcept nogil:
    prefetch(t.index + ((<uint32_t> text.keys[block] ^ seed) & t.mask))


cdef int32_t extend_path(State *s, Text *text, int32_t node, uint32_t seed, int32_t first, int32_t last,
                         int32_t *path) noexcept nogil:
    """Nodes of the blocks [first, last) below a node, found or made, go into `path`; the last of them."""
    cdef Tree *t = &s.tree
    cdef int32_t b, child
    for b in range(first, min(last, first + AHEAD)):
        fetch_entry(t, text, seed, b)
    for b in range(first, last):
        child = find_block(t, node, <uint32_t> text.keys[b] ^ seed, text.tokens + <Py_ssize_t> b * t.block_size,
                           extras_of(text, b))
        if child < 0:
            return make_path(&s.tree, text, node, seed, b, last, path + b - first)
        path[b - first] = node = child
        if b + AHEAD < last:
            fetch_entry(t, text, seed, b + AHEAD)
    return node


cdef int32_t make_path(Tree *t, Text *text, int32_t node, uint32_t seed, int32_t begin, int32_t last,
                       int32_t *path) noexcept nogil:
    """New nodes for the blocks [begin, last): below a new node there is nothing to find."""
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
        path[b - begin] = node = child
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


cdef int32_t attach_row(State *s, Pool *g, int32_t row, int32_t first, int32_t last, int32_t *path,
                        bint counted) noexcept nogil:
    """Attach the row's pages of [first, last) to the nodes of a path; the number attached. Those that find their place
    taken are twins, to be `counted` or not."""
    cdef int32_t *pages = pages_of(s, g, row) + first
    cdef int32_t i, p, q, run = 0, stored = 0     # run: blocks attached without a gap up to here
    for i in range(last - first):
        p, q = pages[i], at(&s.tree, path[i]).page[g.index]
        if q < 0 and p >= 0 and page_at(g, p).node < 0:
            attach(s, g, p, path[i])
            run += 1
            stored += 1
            continue
        log_stored(s, g, path + i - run, run)
        run = 0
        if p < 0 or p == q or q < 0:
            continue
        if displaces(g, p, q):
            replace_page(s, g, q, p)
        else:
            s.rows[row].twins += counted
    log_stored(s, g, path + last - first - run, run)
    return stored


cdef int64_t commit(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n) noexcept nogil:
    """Make the computed full blocks of checked rows findable; the number of pages newly attached."""
    cdef Py_ssize_t i
    cdef int32_t k, g, row, first, last
    cdef int64_t stored = 0
    cdef Row *r
    for i in range(n if computed == NULL else 0):
        s.computed[rows[i]] = s.handed[rows[i]]
    for i in range(n if computed != NULL else 0):
        s.computed[rows[i]] = max(s.computed[rows[i]], computed[i])
        if computed[i] > s.handed[rows[i]]:
            hand_out(s, rows[i], computed[i])     # who computes more than it was told says so
    for k in range(s.num_crossing):
        row = rows[s.crossing[k]]
        r = s.rows + row
        first, last = s.committed[row], s.computed[row] // s.block_size
        if s.bounded or s.due[row] == NO_LENGTH:
            stored += commit_row(s, row, last)
            continue
        if r.keep and r.tip >= 0:
            set_tip(s, row, extend_path(s, r.text, r.tip, at(&s.tree, r.root).key, first, last, s.path))
            for g in range(s.num_groups):
                stored += attach_row(s, s.pools + g, row, first, last, s.path, True)
        for g in range(s.num_groups):
            stake_of(s, s.pools + g, row).shown = last
        s.committed[row], s.due[row] = last, due_after(s, last)
    return stored
