# Owns: the children of a node in the order of their token identities (a treap: links in the nodes, heap order by a hash
# of the node id), roots, pruning, the neighbours of a query among them, from which partial candidates are found; and the
# ways through the tree: down a chain's blocks (found, or made), up from a node, through a subtree.
# Does not know: which child qualifies, or what is done to nodes: the caller says.


cdef struct Query:            # 1 to block_size token identities
    const int32_t *tokens
    const uint64_t *extras    # NULL: all plain
    int32_t size


cdef inline uint64_t seed_of(Tree *t, int32_t root) noexcept nogil:
    return key_at(t, root)


cdef inline Query query_of(Tree *t, int32_t n) noexcept nogil:
    cdef Query q
    q.tokens, q.extras, q.size = tokens_at(t, n), extras_at(t, n), at(t, n).size
    return q


cdef inline int compare_extras(const uint64_t *a, const uint64_t *b, Py_ssize_t i) noexcept nogil:
    """Order of the extra words of token i; NULL: plain."""
    cdef uint64_t x, y
    cdef int k
    for k in range(3):
        x = 0 if a == NULL else a[3 * i + k]
        y = 0 if b == NULL else b[3 * i + k]
        if x != y:
            return -1 if x < y else 1
    return 0


cdef inline int compare(Query *a, Query *b, int32_t *common) noexcept nogil:
    """Sign of a - b, element by element, a proper prefix first; `common` gets the length of the common prefix."""
    cdef int32_t n = min(a.size, b.size), i = 0
    cdef bint plain = a.extras == NULL and b.extras == NULL
    cdef int sign = 0
    while i < n and a.tokens[i] == b.tokens[i]:
        if not plain:
            sign = compare_extras(a.extras, b.extras, i)
            if sign:
                break
        i += 1
    common[0] = i
    if sign:
        return sign
    if i < n:
        return -1 if a.tokens[i] < b.tokens[i] else 1
    return (a.size > b.size) - (a.size < b.size)


cdef inline int32_t common_with(Tree *t, int32_t n, Query *q) noexcept nogil:
    """Length of the common prefix of a node (-1: none) and a query."""
    cdef int32_t common = 0
    cdef Query own
    if n >= 0:
        own = query_of(t, n)
        compare(&own, q, &common)
    return common


cdef inline uint32_t rank(int32_t n) noexcept nogil:
    """Heap priority of a node: a hash of its id."""
    cdef uint32_t x = <uint32_t> n ^ <uint32_t> SECRET[6]
    x = (x ^ x >> 16) * <uint32_t> 0x85EBCA6B
    x = (x ^ x >> 13) * <uint32_t> 0xC2B2AE35
    return x ^ x >> 16


cdef void treap_insert(Tree *t, int32_t parent, int32_t n) noexcept nogil:
    """Put n among the children of its parent: down to its heap place, then part the rest to its two sides."""
    cdef Query own = query_of(t, n), q
    cdef int32_t *link = &at(t, parent).child
    cdef int32_t *low
    cdef int32_t *high
    cdef int32_t now, common
    cdef uint32_t heap = rank(n)
    while link[0] >= 0 and rank(link[0]) >= heap:
        q = query_of(t, link[0])
        link = &at(t, link[0]).left if compare(&own, &q, &common) < 0 else &at(t, link[0]).right
    now, link[0] = link[0], n
    low, high = &at(t, n).left, &at(t, n).right
    while now >= 0:
        q = query_of(t, now)
        if compare(&own, &q, &common) < 0:
            high[0] = now
            high = &at(t, now).left
            now = high[0]
        else:
            low[0] = now
            low = &at(t, now).right
            now = low[0]
    low[0] = high[0] = -1


cdef void treap_remove(Tree *t, int32_t parent, int32_t n) noexcept nogil:
    cdef Query own = query_of(t, n), q
    cdef int32_t *link = &at(t, parent).child
    cdef int32_t a = at(t, n).left, b = at(t, n).right, common
    while link[0] != n:
        q = query_of(t, link[0])
        link = &at(t, link[0]).left if compare(&own, &q, &common) < 0 else &at(t, link[0]).right
    while a >= 0 and b >= 0:
        if rank(a) > rank(b):
            link[0] = a
            link = &at(t, a).right
            a = link[0]
        else:
            link[0] = b
            link = &at(t, b).left
            b = link[0]
    link[0] = a if a >= 0 else b


cdef inline void link_child(Tree *t, int32_t parent, int32_t n) noexcept nogil:
    cdef Node *first
    if at(t, parent).child < 0:
        at(t, parent).child = n
    else:
        first = at(t, at(t, parent).child)
        if first.left < 0 and first.right < 0 and first.size == t.block_size:
            t.parted = parent
        treap_insert(t, parent, n)
        t.turns += not at(t, parent).flags & ROOT


cdef inline void drop_node(Tree *t, int32_t n) noexcept nogil:
    """Take a node without children out of tree and index, and free it."""
    cdef Node *node = at(t, n)
    cdef int32_t parent = node.parent
    if at(t, parent).child == n and node.left < 0 and node.right < 0:
        at(t, parent).child = -1
    else:
        treap_remove(t, parent, n)
        t.turns += not at(t, parent).flags & ROOT
    if node.size == t.block_size:
        index_erase(t, node.key, n)
    t.num_nodes -= 1
    t.drops += 1
    free_node(t, n)


cdef inline bint is_bare(Tree *t, Node *node) noexcept nogil:
    """Without page, child and tip."""
    cdef int32_t g
    if node.child >= 0 or node.tips:
        return False
    for g in range(t.num_groups):
        if node.page[g] >= 0:
            return False
    return True


cdef inline void prune(Tree *t, int32_t n) noexcept nogil:
    """Remove n if it is of no use any more, then its parent likewise; note a root that has lost something."""
    cdef int32_t parent
    while not at(t, n).flags & ROOT:
        if not is_bare(t, at(t, n)):
            return
        parent = at(t, n).parent
        drop_node(t, n)
        n = parent
    if not at(t, n).flags & NOTED:
        at(t, n).flags |= NOTED
        t.noted[t.num_noted] = n
        t.num_noted += 1


cdef int32_t last_before(Tree *t, int32_t parent, Query *q, bint equal, int32_t *common) noexcept nogil:
    """The last child before q (or `equal` to it), or -1, and its common prefix with q."""
    cdef int32_t now = at(t, parent).child, found = -1, shared
    cdef Query own
    cdef int sign
    common[0] = 0
    while now >= 0:
        own = query_of(t, now)
        sign = compare(&own, q, &shared)
        if sign < 0 or (sign == 0 and equal):
            found, common[0] = now, shared
            now = at(t, now).right
        else:
            now = at(t, now).left
    return found


cdef int32_t first_after(Tree *t, int32_t parent, Query *q, bint equal, int32_t *common) noexcept nogil:
    """The first child after q (or `equal` to it), or -1, and its common prefix with q."""
    cdef int32_t now = at(t, parent).child, found = -1, shared
    cdef Query own
    cdef int sign
    common[0] = 0
    while now >= 0:
        own = query_of(t, now)
        sign = compare(&own, q, &shared)
        if sign > 0 or (sign == 0 and equal):
            found, common[0] = now, shared
            now = at(t, now).left
        else:
            now = at(t, now).right
    return found


cdef int32_t find_child(Tree *t, int32_t parent, Query *q) noexcept nogil:
    """The child of exactly these tokens, full or partial, or -1."""
    cdef int32_t common, found = last_before(t, parent, q, True, &common)
    return found if found >= 0 and common == q.size and at(t, found).size == q.size else -1


cdef inline int32_t leftmost(Tree *t, int32_t n) noexcept nogil:
    while at(t, n).left >= 0:
        n = at(t, n).left
    return n


cdef int32_t num_children(Tree *t, int32_t n) noexcept nogil:
    """Children of n, counted one by one (for introspection)."""
    cdef int32_t count = 0, common, now = at(t, n).child
    cdef Query q
    if now < 0:
        return 0
    while at(t, now).left >= 0:
        now = at(t, now).left
    while now >= 0:
        count += 1
        q = query_of(t, now)
        now = first_after(t, n, &q, False, &common)
    return count


cdef inline uint64_t seed_of_scope(uint64_t hash) noexcept nogil:
    """What the keys of a scope of that event hash are mixed with: of the scope, and not of its root's number, which may
    be another's later."""
    return fold(SECRET[7] ^ hash, SECRET[0])


cdef int32_t new_root(Tree *t, uint64_t hash) noexcept nogil:
    """A root of that event hash at the end of the list of roots; -1 without memory."""
    cdef uint64_t seed
    cdef int32_t n
    if tree_reserve(t, 1, False) or reserve(<void **> &t.noted, &t.noted_room, t.num_roots + 1, 4):
        return -1
    n = new_node(t, -1)
    at(t, n).flags = ROOT
    at(t, n).size = 0
    seed = seed_of_scope(hash)
    at(t, n).key, at(t, n).high = <uint32_t> seed, <uint32_t> (seed >> 32)
    at(t, n).left = t.last_root
    if t.last_root >= 0:
        at(t, t.last_root).right = n
    else:
        t.first_root = n
    t.last_root = n
    t.num_roots += 1
    if t.hashes != NULL:
        t.hashes[n], t.roots[n] = hash, n
    return n


cdef void free_root(Tree *t, int32_t n) noexcept nogil:
    """Forget a root that has no child and no tip."""
    cdef Node *root = at(t, n)
    cdef Py_ssize_t i, kept = 0
    if root.flags & NOTED:
        for i in range(t.num_noted):
            if t.noted[i] != n:
                t.noted[kept] = t.noted[i]
                kept += 1
        t.num_noted = kept
    if root.left >= 0:
        at(t, root.left).right = root.right
    else:
        t.first_root = root.right
    if root.right >= 0:
        at(t, root.right).left = root.left
    else:
        t.last_root = root.left
    t.num_roots -= 1
    free_node(t, n)


cdef list dead_roots(Tree *t):
    """Roots that have lost their last child or tip since the last call and have neither now."""
    cdef Py_ssize_t i
    cdef list dead = []
    for i in range(t.num_noted):
        at(t, t.noted[i]).flags &= ~NOTED
        if at(t, t.noted[i]).child < 0 and at(t, t.noted[i]).tips == 0:
            dead.append(t.noted[i])
    t.num_noted = 0
    return dead


cdef enum:
    AHEAD = 16                # nodes fetched before they are needed


cdef inline void fetch_entry(Tree *t, Text *text, uint64_t seed, Py_ssize_t block) noexcept nogil:
    touch(t.index + home_of(t, <uint32_t> (text.keys[block] ^ seed)))


cdef int32_t make_path(Tree *t, Text *text, int32_t node, uint64_t seed, int32_t begin, int32_t last,
                       int32_t *path) noexcept nogil:
    """New nodes for the blocks [begin, last): below a new node there is nothing to find."""
    cdef int32_t b, child, size = t.block_size
    cdef uint64_t key
    for b in range(begin, last):
        child = new_block(t, node, text.tokens + <Py_ssize_t> b * size, extras_of(text, b), size)
        prefetch(tokens_at(t, child) + 8 * size)
        prefetch(at(t, child + 8))
        key = text.keys[b] ^ seed
        at(t, child).key, at(t, child).high = <uint32_t> key, <uint32_t> (key >> 32)
        index_insert(t, <uint32_t> key, child)
        if b > begin:
            at(t, node).child = child
        else:
            link_child(t, node, child)
        path[b - begin] = node = child
    return node


cdef int32_t extend_path(Tree *t, Text *text, int32_t node, uint64_t seed, int32_t first, int32_t last,
                         int32_t *path) noexcept nogil:
    """Nodes of the blocks [first, last) below a node, found or made, go into `path`; the last of them."""
    cdef int32_t b, child
    for b in range(first, last):
        child = find_block(t, node, <uint32_t> (text.keys[b] ^ seed), text.tokens + <Py_ssize_t> b * t.block_size,
                           extras_of(text, b))
        if child < 0:
            return make_path(t, text, node, seed, b, last, path + b - first)
        path[b - first] = node = child
    return node


cdef void climb(Tree *t, int32_t node, int32_t low, int32_t depth, int32_t *path) noexcept nogil:
    """The nodes of the blocks [low, depth) go into `path`; `node` is the last of them."""
    cdef int32_t b
    for b in range(depth - 1, low - 1, -1):
        path[b - low] = node
        node = at(t, node).parent


cdef int32_t keys_above(Tree *t, int32_t node, uint64_t *keys, int32_t most) noexcept nogil:
    """The keys of a block and those above it, at most so many, to the end of as much room; how many."""
    cdef int32_t count = 0
    while count < most and not at(t, node).flags & ROOT:
        count += 1
        keys[most - count] = key_at(t, node)
        node = at(t, node).parent
    return count


cdef int32_t depth_of(Tree *t, int32_t n) noexcept nogil:
    """Blocks from the root to a node. The tip of a row that keeps nothing is not as deep as what it has committed."""
    cdef int32_t depth = 0
    while not at(t, n).flags & ROOT:
        n = at(t, n).parent
        depth += 1
    return depth


cdef int32_t next_block(Tree *t, int32_t n) noexcept nogil:
    """The node after n, parents first and siblings in order; -1 after the last below its root."""
    cdef int32_t common, next = at(t, n).child
    cdef Query q
    if next >= 0:
        return leftmost(t, next)
    while not at(t, n).flags & ROOT:
        q = query_of(t, n)
        next = first_after(t, at(t, n).parent, &q, False, &common)
        if next >= 0:
            return next
        n = at(t, n).parent
    return -1


cdef int32_t deepest(Tree *t, int32_t n) noexcept nogil:
    """The first node below n in post-order."""
    while at(t, n).child >= 0:
        n = at(t, n).child
        while at(t, n).left >= 0:
            n = at(t, n).left
    return n


cdef int32_t following(Tree *t, int32_t n) noexcept nogil:
    """The node after n in post-order; n is not a root."""
    cdef int32_t common, parent = at(t, n).parent
    cdef Query q = query_of(t, n)
    n = first_after(t, parent, &q, False, &common)
    return deepest(t, n) if n >= 0 else parent
