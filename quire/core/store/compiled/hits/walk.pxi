# Owns: the walk: which leading blocks of a chain are cached, and the partial block after them.
# Does not know: rows; it changes nothing.

cdef enum:
    MAX_STRIDE = 64           # blocks keyed before they are looked up


cdef int note_pages(State *s, Path *path, int32_t node, int32_t limit) noexcept nogil:
    """Remember which pages the newest walked node has; blocks before those remembered have all. -1 without memory."""
    cdef unsigned char *present
    cdef int32_t i
    if path.present == NULL:
        if reserve(<void **> &path.present, &path.present_room, limit, s.num_groups):
            return -1
        path.present_from = path.num_nodes - 1
    present = path.present + <Py_ssize_t> (path.num_nodes - 1 - path.present_from) * s.num_groups
    for i in range(s.num_groups):
        present[i] = is_near(s.pools + i, at(&s.tree, node).page[i])
    return 0


cdef bint same_block(Text *one, Text *other, int32_t block) noexcept nogil:
    """Whether two texts have the same tokens there, and the same extras."""
    cdef Py_ssize_t size = one.block_size, i
    cdef const uint64_t *a = extras_of(one, block)
    cdef const uint64_t *b = extras_of(other, block)
    if not same_tokens(one.tokens + block * size, other.tokens + block * size, size):
        return False
    for i in range(size if a != NULL or b != NULL else 0):
        if compare_extras(a, b, i):
            return False
    return True


cdef inline void count_block(int32_t *run, int32_t n, bint there) noexcept nogil:
    """Pages in a row up to block n - 1, the newest, and leading ones."""
    run[0] = run[0] + 1 if there else 0
    run[1] += there and run[1] == n - 1


cdef inline bint is_good(Pool *g, int32_t *run, int32_t n) noexcept nogil:
    """Whether a group could resume after n blocks."""
    if g.tail < 0:
        return run[0] == n
    return run[0] >= min(n, g.tail) and run[1] >= min(n, g.sink)


cdef inline int step(State *s, Path *path, int32_t node, int32_t limit) noexcept nogil:
    """Count a walked node; 0: nothing beyond it is of use to any group, -1: no memory."""
    cdef Tree *t = &s.tree
    cdef int32_t n = path.num_nodes, i
    cdef int32_t *run
    cdef bint good = True, coming = True, whole = path.present == NULL, useful = s.mixed, near
    cdef Pool *g
    for i in range(s.num_groups):
        g, run = s.pools + i, s.runs + 4 * i
        near = is_near(g, at(t, node).page[i])
        whole = whole and near
        count_block(run, n, near or n <= path.first)
        good = good and is_good(g, run, n)
        if s.slow >= 0:
            count_block(run + 2, n, at(t, node).page[i] >= 0 or n <= path.first)
            coming = coming and is_good(g, run + 2, n)
            run += 2
        useful = useful or (g.tail < 0 and run[0] == n)
    if good:
        path.blocks = n
    if coming and s.slow >= 0:
        path.coming = n
    return -1 if not whole and note_pages(s, path, node, limit) else useful


cdef int32_t look_along(Tree *t, Text *text, Path *path, int32_t node, int32_t n, int32_t limit) noexcept nogil:
    """Follow blocks from n on while each lies right behind its parent, as blocks committed together do; how many. They
    need no lookup and give their keys away. Each is confirmed: parent, tokens, extras."""
    cdef Node *here = at(t, node + 1)
    cdef int32_t size = t.block_size, i, last = min(limit, n + t.used - node - 1)
    cdef const int32_t *own = tokens_at(t, node + 1)
    cdef const int32_t *tokens = text.tokens + <Py_ssize_t> n * size
    cdef Py_ssize_t known = text.num_keys
    cdef bint plain = text.extras == NULL and t.extras == NULL
    cdef uint64_t seed = seed_of(t, path.root)
    for i in range(n, last):
        if here.parent != node or here.size != size or not same_tokens(own, tokens, size):
            break
        node += 1
        if not plain and not same_extras(t, node, extras_of(text, i)):
            break
        if i >= known:
            text.keys[i] = (<uint64_t> here.high << 32 | here.key) ^ seed
        path.nodes[i] = node
        prefetch(own + AHEAD * size)
        here = <Node *> (<char *> here + t.stride)
        own += size
        tokens += size
    else:
        i = last
    text.num_keys = max(known, i)
    return i - n


cdef inline int32_t look_up(Tree *t, Text *text, Path *path, int32_t node, int32_t n, int32_t upto) noexcept nogil:
    """Follow one block by its key; 1, 0 when there is none, -1 without memory. Keys are made up to `upto`, a stride
    ahead of the lookups, so that those overlap."""
    cdef uint32_t seed = at(t, path.root).key
    cdef int32_t i
    if text.num_keys <= n:
        if text_keys(text, upto):
            return -1
        for i in range(n, upto):
            prefetch(t.index + home_of(t, <uint32_t> text.keys[i] ^ seed))
    node = find_block(t, node, <uint32_t> text.keys[n] ^ seed, text.tokens + <Py_ssize_t> n * t.block_size,
                      extras_of(text, n))
    path.nodes[n] = node
    return node >= 0


cdef int walk_full(State *s, Text *text, Path *path, int32_t limit) noexcept nogil:
    """Follow full blocks while they are there; -1 without memory."""
    cdef Tree *t = &s.tree
    cdef int32_t n = 0, i, found, more, node = path.root, stride = 8
    cdef bint simple = s.num_groups == 1 and s.pools.tail < 0 and path.first == 0 and s.slow < 0
    if key_room(text, limit) or reserve(<void **> &path.nodes, &path.room, limit, 4):
        return -1
    while n < limit:
        found = look_along(t, text, path, node, n, limit)
        if found == 0:
            stride = min(2 * stride, MAX_STRIDE) if n else stride
            found = look_up(t, text, path, node, n, min(limit, n + stride))
            if found <= 0:
                return found
        for i in range(found):
            node = path.nodes[n]
            n += 1
            path.num_nodes = n
            if not simple:
                more = step(s, path, node, limit)
                if more <= 0:
                    return more
            elif at(t, node).page[0] < 0:
                return 0
            else:
                path.blocks = n
    return 0


cdef bint reads(State *s, Path *path, int32_t n) noexcept nogil:
    """Whether the groups without a current page could resume after n walked blocks."""
    cdef int32_t i, b, tail
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        if g.current:
            continue
        tail = 0 if g.tail < 0 else max(0, n - g.tail)
        for b in range(n - 1, max(tail, path.present_from) - 1, -1):
            if not was_present(s, path, i, b):
                return False
        for b in range(min(g.sink, tail)):
            if not was_present(s, path, i, b):
                return False
    return True


cdef void find_tail(State *s, Text *text, Path *path, Py_ssize_t usable, int policy) noexcept nogil:
    """The last tail along the path, with a page of every group, that the text goes on behind; the path ends there."""
    cdef Tree *t = &s.tree
    cdef int32_t n, parent
    cdef Py_ssize_t begin
    cdef Query q
    for n in range(path.num_nodes, path.blocks - 1, -1):
        parent, begin = path.nodes[n - 1] if n else path.root, <Py_ssize_t> n * s.block_size
        if at(t, parent).child < 0 or only_child(t, parent) >= 0 or not reads(s, path, n):
            continue
        q.tokens, q.size = text.tokens + begin, <int32_t> min(usable - begin, s.block_size - 1)
        q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
        path.source = longest_tail(s, parent, &q, policy)
        if path.source >= 0:
            path.blocks, path.matched = n, q.size
            return


cdef int walk(State *s, Text *text, Path *path, int32_t root, Py_ssize_t usable, int policy) noexcept nogil:
    """Fill the path; -1 without memory."""
    cdef Query q
    cdef Py_ssize_t begin
    path.source, path.root, path.epoch, path.drops = -1, root, s.tree.epoch, s.tree.drops
    if root < 0:
        return 0
    usable = min(usable, text.length)
    memset(s.runs, 0, 16 * s.num_groups)
    if walk_full(s, text, path, <int32_t> (usable // s.block_size)):
        return -1
    if path.present == NULL:
        path.present_from = path.blocks if s.num_groups == 1 and path.first == 0 else path.num_nodes
    begin = <Py_ssize_t> path.blocks * s.block_size
    if policy > 0 and s.num_current:              # the state inside a block is nowhere else
        find_tail(s, text, path, usable, policy)
    elif policy > 0 and begin < usable:
        q.tokens = text.tokens + begin
        q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
        q.size = <int32_t> min(usable - begin, s.block_size)
        path.source = best_partial(s, path.nodes[path.blocks - 1] if path.blocks else root, &q, policy, &path.matched)
    path.coming = max(path.coming, path.blocks)
    path.parts = path.num_nodes > 0 and at(&s.tree, path.nodes[path.num_nodes - 1]).child >= 0
    return 0
