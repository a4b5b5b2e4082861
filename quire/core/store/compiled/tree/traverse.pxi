# Owns: ways through the tree: down a chain's blocks (found, or made), up from a node, through a subtree.
# Does not know: what is done to the nodes.

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
