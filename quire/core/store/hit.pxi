# Owns: the walk (which leading blocks of a chain are cached, the best partial block after them) and its result, Hit.
# Does not know: rows; it changes nothing.

cdef enum:
    MAX_STRIDE = 64           # blocks keyed before they are looked up
    MAX_EXAMINED = 64         # children looked at for a partial hit
    AHEAD = 16                # nodes fetched before they are compared


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
        present[i] = at(&s.tree, node).page[i] >= 0
    return 0


cdef inline int step(State *s, Path *path, int32_t node, int32_t limit) noexcept nogil:
    """Count a walked node; 0: nothing beyond it is of use to any group, -1: no memory."""
    cdef Tree *t = &s.tree
    cdef int32_t n = path.num_nodes, i
    cdef int32_t *run
    cdef bint good = True, whole = path.present == NULL, useful = s.mixed
    cdef Pool *g
    for i in range(s.num_groups):
        g, run = s.pools + i, s.runs + 2 * i
        if at(t, node).page[i] >= 0:
            run[0] += 1
            run[1] += run[1] == n - 1     # leading pages
        else:
            run[0] = 0
            whole = False
        if g.tail < 0:
            good = good and run[0] == n
            useful = useful or run[0] == n
        else:
            good = good and run[0] >= min(n, g.tail) and run[1] >= min(n, g.sink)
    if good:
        path.blocks = n
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
    cdef uint32_t seed = at(t, path.root).key
    for i in range(n, last):
        if here.parent != node or here.size != size or not same_tokens(own, tokens, size):
            break
        node += 1
        if not plain and not same_extras(t, node, extras_of(text, i)):
            break
        if i >= known:
            text.keys[i] = <uint64_t> here.high << 32 | (here.key ^ seed)
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
            prefetch(t.index + ((<uint32_t> text.keys[i] ^ seed) & t.mask))
    node = find_block(t, node, <uint32_t> text.keys[n] ^ seed, text.tokens + <Py_ssize_t> n * t.block_size,
                      extras_of(text, n))
    path.nodes[n] = node
    return node >= 0


cdef int walk_full(State *s, Text *text, Path *path, int32_t limit) noexcept nogil:
    """Follow full blocks while they are there; -1 without memory."""
    cdef Tree *t = &s.tree
    cdef int32_t n = 0, i, found, more, node = path.root, stride = 8
    cdef bint simple = s.num_groups == 1 and s.pools.tail < 0
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


cdef bint qualifies(State *s, Node *node, int policy, bint *spotless) noexcept nogil:
    """Whether a child may be a partial source; `spotless`: an idle leaf."""
    cdef int32_t i
    spotless[0] = node.child < 0
    for i in range(s.num_groups):
        if node.page[i] < 0:
            return False
        if page_at(s.pools + i, node.page[i]).holders:
            spotless[0] = False
    return policy == 2 or spotless[0]


cdef uint64_t merit(State *s, Node *node, bint spotless) noexcept nogil:
    """Less is better: idle leaves on tier 0, then the hottest, then the lowest page."""
    cdef uint64_t tier = <uint64_t> hottest(s.pools, page_at(s.pools, node.page[0]))
    return <uint64_t> (not (spotless and tier == 0)) << 40 | tier << 32 | <uint32_t> node.page[0]


cdef int32_t best_partial(State *s, int32_t parent, Query *q, int policy, int32_t *matched) noexcept nogil:
    """Go outward from q's place among the children, the side with the longer common prefix first."""
    cdef Tree *t = &s.tree
    cdef int32_t low_common, high_common, common, node, best = -1, examined
    cdef int32_t low = last_before(t, parent, q, True, &low_common)
    cdef int32_t high = first_after(t, parent, q, False, &high_common)
    cdef uint64_t score, best_score = 0
    cdef bint spotless = False
    cdef Query own
    for examined in range(MAX_EXAMINED):
        common = max(low_common, high_common)
        if common == 0 or (best >= 0 and common < matched[0]):
            break
        node = low if low_common >= high_common else high
        if qualifies(s, at(t, node), policy, &spotless):
            score = merit(s, at(t, node), spotless)
            if best < 0 or score < best_score:
                best, best_score, matched[0] = node, score, common
        own = query_of(t, node)
        if low_common >= high_common:
            low = last_before(t, parent, &own, False, &common)
            low_common = common_with(t, low, q)
        else:
            high = first_after(t, parent, &own, False, &common)
            high_common = common_with(t, high, q)
    return best


cdef inline int32_t common_with(Tree *t, int32_t n, Query *q) noexcept nogil:
    """Length of the common prefix of a node (-1: none) and a query."""
    cdef int32_t common = 0
    cdef Query own
    if n >= 0:
        own = query_of(t, n)
        compare(&own, q, &common)
    return common


cdef int walk(State *s, Text *text, Path *path, int32_t root, Py_ssize_t usable, int policy) noexcept nogil:
    """Fill the path; -1 without memory."""
    cdef Query q
    cdef Py_ssize_t begin
    path.source, path.root, path.epoch, path.drops = -1, root, s.tree.epoch, s.tree.drops
    if root < 0:
        return 0
    usable = min(usable, text.length)
    memset(s.runs, 0, 8 * s.num_groups)
    if walk_full(s, text, path, <int32_t> (usable // s.block_size)):
        return -1
    if path.present == NULL:
        path.present_from = path.blocks if s.num_groups == 1 else path.num_nodes
    begin = <Py_ssize_t> path.blocks * s.block_size
    if policy > 0 and begin < usable and not s.num_current:   # the state inside a block is nowhere
        q.tokens = text.tokens + begin
        q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
        q.size = <int32_t> min(usable - begin, s.block_size)
        path.source = best_partial(s, path.nodes[path.blocks - 1] if path.blocks else root, &q, policy, &path.matched)
    return 0


@cython.final
cdef class Hit:
    """What a walk found: full blocks, then perhaps a part of the block of a source node."""

    cdef Path path
    cdef Chain chain          # as it was walked
    cdef object store         # keeps `state` alive
    cdef State *state

    def __dealloc__(self):
        free(self.path.nodes)
        free(self.path.present)
        free(self.path.needs)

    @property
    def blocks(self):
        return self.path.blocks

    @property
    def matched(self):
        return self.path.matched

    @property
    def start(self):
        return self.path.blocks * (self.state.block_size if self.state != NULL else 0) + self.path.matched

    @property
    def source(self):
        return self.path.source if self.state != NULL else -1

    @property
    def num_nodes(self):
        return self.path.num_nodes

    @property
    def claimed(self):
        return self.path.stage == CLAIMED

    def node(self, Py_ssize_t block):
        """The node of a walked block, -1 out of range."""
        return self.path.nodes[block] if 0 <= block < self.path.num_nodes else -1

    cdef Pool *pool(self, Py_ssize_t group) except NULL:
        if self.state == NULL or not 0 <= group < self.state.num_groups:
            raise IndexError(f"no group {group}")
        return self.state.pools + group

    cdef list blocks_of(self, Pool *g):
        """The blocks the claim is on, or would be."""
        cdef Run run = runs_of(&self.path, g)
        cdef list held = []
        while next_run(self.state, &self.path, g, &run):
            held.extend(range(run.first, run.last))
        return held

    cdef int32_t tier_of(self, Pool *g, int32_t block) noexcept:
        """Hottest tier of the page of a block now; -1 when it has none."""
        cdef int32_t p = node_page(self.state, g, &self.path, block)
        return hottest(g, page_at(g, p)) if p >= 0 else -1

    def present(self, Py_ssize_t group):
        """bool [num_nodes]: which walked blocks had a page of the group at the time of the walk."""
        cdef Pool *g = self.pool(group)
        cdef int32_t b
        return np.array([was_present(self.state, &self.path, g.index, b) for b in range(self.path.num_nodes)], np.bool_)

    def held(self, Py_ssize_t group):
        """int32: the blocks of the group that the claim is on; without a claim: that one would be on."""
        return np.array(self.blocks_of(self.pool(group)), np.int32)

    cdef int32_t num_cold(self, Pool *g) noexcept:
        """Pages of the held blocks that have no copy on tier 0 now; those that are only copied need none."""
        cdef Run run = runs_of(&self.path, g)
        cdef int32_t b, count = 0
        if g.num_tiers == 1 or g.current:
            return 0
        while next_run(self.state, &self.path, g, &run):
            for b in range(run.first, run.last):
                count += self.tier_of(g, b) > 0
        return count

    def tiers(self, Py_ssize_t group):
        """int32 per block: the hottest tier of each held block's page now, -1: not held."""
        cdef Pool *g = self.pool(group)
        cdef int32_t b
        tiers = np.full(self.path.blocks if self.path.needs == NULL else self.path.num_nodes, -1, np.int32)
        for b in self.blocks_of(g):
            tiers[b] = self.tier_of(g, b)
        return tiers
