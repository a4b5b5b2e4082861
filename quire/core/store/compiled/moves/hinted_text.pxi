# Owns: which blocks a caller's hint applies to. For a row these are its own text: from its end up to where another
# text parts, or has parted.
# Does not know: what an order makes of it.

cdef enum:
    APART = 4                 # uses of a block more than of the next: turns may have ended between them; more were other texts

cdef struct End:              # where a row ended, for the next of its session; it may be gone by then
    int32_t tip               # -1: it has left nothing
    int32_t begun             # blocks that were there before it
    int64_t ended             # the latest time by then

cdef struct OwnText:          # of a group
    int32_t node              # looked at next
    int32_t below             # the one before it, -1: none
    int32_t depth
    int32_t floor             # blocks that are not looked at
    int32_t tips              # rows that may end at the next
    int32_t uses              # of the last page, 0: there was none
    int64_t latest            # time of a page's last use


cdef int check_hint(int32_t back) except -1:
    if not 0 <= back <= NEVER - HINT_SHIFT:
        raise ValueError(f"hint {back} is unknown")
    return 0


cdef int32_t nodes_along(State *s, Text *text, int32_t root, int32_t blocks) noexcept nogil:
    """The nodes of the leading blocks of a text go into `path`, at most so many; how many there are. Keys are made."""
    cdef Tree *t = &s.tree
    cdef int32_t b, node = root
    for b in range(blocks):
        node = find_block(t, node, <uint32_t> text.keys[b] ^ at(t, root).key,
                          text.tokens + <Py_ssize_t> b * t.block_size, extras_of(text, b))
        if node < 0:
            return b
        s.path[b] = node
    return blocks


cdef int32_t partial_along(State *s, Text *text, int32_t parent, int32_t blocks) noexcept nogil:
    """The longest partial block below a node that is the text's behind so many blocks, or -1."""
    cdef Py_ssize_t begin = <Py_ssize_t> blocks * s.block_size
    cdef int32_t size = <int32_t> min(text.length - begin, <Py_ssize_t> s.block_size - 1), node
    cdef Query q
    q.tokens = text.tokens + begin
    q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
    while size > 0:
        q.size = size
        node = find_child(&s.tree, parent, &q)
        if node >= 0:
            return node
        size -= 1
    return -1


cdef inline bint goes_on_alone(Tree *t, int32_t node, int32_t below) noexcept nogil:
    """Whether no text goes on from a block but the one below; the partial end of an earlier turn is none."""
    cdef int32_t top = at(t, node).child, left, right, other
    if top < 0:
        return True
    left, right = at(t, top).left, at(t, top).right
    if left < 0 and right < 0:
        return top == below or at(t, top).size < t.block_size
    if below < 0 or (left >= 0 and right >= 0):
        return False
    other = left if left >= 0 else right
    if at(t, other).left >= 0 or at(t, other).right >= 0 or (top != below and other != below):
        return False
    return at(t, other if top == below else top).size < t.block_size


cdef inline void hint_page(Pool *g, int32_t p, int32_t back) noexcept nogil:
    """A page comes back then."""
    g.hinted = True
    if back:
        g.counters[TOLD + back] += 1
    hear_page(g, p, back)


cdef int32_t hint_node(State *s, int32_t node, int32_t back, bint alone) noexcept nogil:
    """The pages of a block come back then; how many there are. Where nothing is learned, *never* ranks no block that
    another text goes on from: no use of it would come to light."""
    cdef int32_t i, count = 0
    for i in range(s.num_groups):
        if not alone and back == NEVER - HINT_SHIFT and s.pools[i].cells == NULL:
            continue
        if at(&s.tree, node).page[i] >= 0:
            hint_page(s.pools + i, at(&s.tree, node).page[i], back)
            count += 1
    return count


cdef int32_t hint_along(State *s, Text *text, int32_t root, Py_ssize_t keep, int32_t back) noexcept nogil:
    """Hint when the text returns, from the first block that starts at `keep` or later; its page count; keys exist."""
    cdef int32_t last = <int32_t> min(text.length // s.block_size, <Py_ssize_t> s.num_columns)
    cdef int32_t b, found = nodes_along(s, text, root, last), count = 0
    cdef int32_t node = partial_along(s, text, s.path[found - 1] if found else root, found)
    cdef Py_ssize_t first = (keep + s.block_size - 1) // s.block_size
    cdef bint alone = True
    if node >= 0 and found >= first:
        count += hint_node(s, node, back, True)
    for b in range(found - 1, -1, -1):
        if b >= first:
            alone = alone and goes_on_alone(&s.tree, s.path[b], node)
            node = s.path[b]
            count += hint_node(s, node, back, alone)
    return count


cdef int32_t hint_text(State *s, Text *text, int32_t root, Py_ssize_t keep, int32_t back) except -1:
    """The same, with the keys that it takes."""
    if text_keys(text, min(text.length // s.block_size, <Py_ssize_t> s.num_columns)):
        raise MemoryError("hint: no memory for keys")
    return hint_along(s, text, root, keep, back)


cdef int32_t next_own(Pool *g, OwnText *own) noexcept nogil:
    """The next page of a text from its end up, as far as no other goes on from there or was asked for apart from it; -1:
    that was all."""
    cdef Tree *t = g.tree
    cdef int32_t n, p
    cdef Memory *memory
    while own.depth > own.floor and at(t, own.node).tips <= own.tips and goes_on_alone(t, own.node, own.below):
        n = own.node
        p = at(t, n).page[g.index]
        if p >= 0 and g.cells != NULL:
            memory = memory_at(g.cells, p)
            if 0 < own.uses < memory.uses - APART or memory.used > own.latest:
                break
            own.uses = memory.uses
        own.below, own.node, own.tips, own.depth = n, at(t, n).parent, 0, own.depth - 1
        if p >= 0:
            return p
    own.depth = own.floor
    return -1


cdef OwnText own_text(Pool *g, int32_t tip, int32_t tail, int32_t floor, int32_t tips, int64_t latest) noexcept nogil:
    """The text that ends with a block, and a partial one behind it (-1: none), whose page is the caller's affair."""
    cdef OwnText own
    own.node, own.below, own.floor, own.tips, own.latest = tip, tail, floor, tips, latest
    own.depth, own.uses = depth_of(g.tree, tip), 0
    return own


cdef void hint_row(State *s, int32_t row, int32_t tail, int32_t back) noexcept nogil:
    """A row ends, and its own text comes back then; `tail`: the partial block that it leaves. A hint that a person is
    thinking counts only where a tool has run before."""
    cdef int32_t i, p
    cdef bint believed
    cdef Pool *g
    cdef OwnText own
    if back == 0 or s.rows[row].tip < 0 or not s.rows[row].keep:
        return
    for i in range(s.num_groups):
        g = s.pools + i
        believed = back + HINT_SHIFT != LATER or g.cells == NULL or stake_of(s, g, row).followed
        own = own_text(g, s.rows[row].tip, tail, s.sights[row].begun if g.cells == NULL else 0, 1, 2**63 - 1)
        p = at(&s.tree, tail).page[i] if tail >= 0 else -1
        if p < 0:
            p = next_own(g, &own)
        while p >= 0:
            if believed:
                hint_page(g, p, back)
            else:
                g.counters[TOLD + back] += 1
            p = next_own(g, &own)


cdef void end_of_row(State *s, int32_t row, End *end) noexcept nogil:
    """Where a row ends."""
    cdef int32_t i, tip = s.rows[row].tip
    end.tip, end.begun, end.ended = -1, s.sights[row].begun, 0
    if tip >= 0 and s.rows[row].keep and not at(&s.tree, tip).flags & ROOT:
        end.tip = tip
    for i in range(s.num_groups):
        if s.pools[i].cells != NULL:
            end.ended = max(end.ended, s.pools[i].cells.now)


cdef int births_open(Tree *t) noexcept nogil:
    """From now on it is known whether a node is the one that it was; -1 without memory."""
    if t.births == NULL:
        t.births = <int32_t *> calloc(max(<Py_ssize_t> 1, t.room), 4)
    return -1 if t.births == NULL else 0


cdef int32_t shared_with(State *s, int32_t tip, int32_t depth, int32_t found) noexcept nogil:
    """Blocks up to a tip, which is so deep, that are among the first so many of `path`."""
    while depth and (depth > found or s.path[depth - 1] != tip):
        tip, depth = at(&s.tree, tip).parent, depth - 1
    return depth


cdef int32_t end_below(Tree *t, int32_t tip) noexcept nogil:
    """The partial block that a row has left below its last one, if nothing else is there, or -1."""
    cdef int32_t child = at(t, tip).child
    if child < 0 or at(t, child).left >= 0 or at(t, child).right >= 0 or at(t, child).size == t.block_size:
        return -1
    return child


cdef int32_t supersede(State *s, int32_t row, End *end, int32_t found) noexcept nogil:
    """A seated row continues where the last row of its session ended, or leaves text behind; that text's page count. So
    many of its blocks are in `path`."""
    cdef int32_t depth = depth_of(&s.tree, end.tip), tail = end_below(&s.tree, end.tip), i, p, floor, count = 0
    cdef int32_t shared = shared_with(s, end.tip, depth, found)
    cdef Pool *g
    cdef OwnText own
    for i in range(s.num_groups if shared < depth else 0):
        g = s.pools + i
        g.hinted = True
        floor = shared if g.cells != NULL else max(shared, end.begun)
        own = own_text(g, end.tip, tail, floor, 0, end.ended)
        p = at(&s.tree, tail).page[i] if tail >= 0 else -1
        if p < 0:
            p = next_own(g, &own)
        while p >= 0:
            g.counters[SUPERSEDED] += 1
            hear_page(g, p, NEVER - HINT_SHIFT)
            count += 1
            p = next_own(g, &own)
    return count


cdef int32_t supersede_row(State *s, int32_t row, mark) except -1:
    """The same, if the block is still there, under the row's root."""
    cdef End end
    cdef int32_t birth, root
    cdef Tree *t = &s.tree
    cdef Text *text = s.rows[row].text
    end.tip, birth, end.begun, end.ended = mark
    if s.rows[row].tip < 0 or not s.rows[row].keep or t.births == NULL or not 0 <= end.tip < t.used:
        return 0
    if at(t, end.tip).size != t.block_size or t.births[end.tip] != birth:
        return 0
    root = end.tip
    while not at(t, root).flags & ROOT:
        root = at(t, root).parent
    if root != s.rows[row].root:
        return 0
    if text_keys(text, min(text.length // s.block_size, <Py_ssize_t> s.num_columns)):
        raise MemoryError("supersede: no memory for keys")
    return supersede(s, row, &end, nodes_along(
        s, text, root, <int32_t> min(text.length // s.block_size, <Py_ssize_t> s.num_columns)))
