# Owns: the result of a walk, Hit, and which of its blocks a claim is on: per group, runs of blocks, ascending.
# Does not know: how blocks are found, what a claim does.

cdef enum:
    FOUND, CLAIMED, SEATED    # what became of a hit; SEATED: the source's claim is still there

cdef struct Need:             # what a claim asks of a group: [0, sink) and [first, stop), as far as the walk found it
    int32_t sink
    int32_t first
    int32_t stop
    int32_t front             # the first column of the row's window, once it is seated

cdef struct Path:
    int32_t *nodes
    Py_ssize_t room
    int32_t num_nodes         # walked, with pages or without
    int32_t blocks            # of them the hit
    int32_t matched           # tokens of the source after them
    int32_t source            # node, or -1
    int32_t stage
    int64_t seat              # SEATED: which
    int32_t root
    int64_t epoch             # of the tree, at the walk
    int64_t drops
    unsigned char *present    # [blocks, groups]: had a page at the walk; NULL: there was no hole to remember
    Py_ssize_t present_room
    int32_t present_from      # the first block it speaks of; those before have all pages
    Need *needs               # of the claim, per group; NULL: what `blocks` needs
    int32_t first             # blocks before it are held elsewhere: they are not asked for
    int32_t *pages            # of a frozen claim: [groups, nodes], then those of the source; NULL: the nodes tell
    int32_t coming            # blocks of the hit if what is in the slow tier only had been brought up
    int32_t stays             # the claim keeps pages where they are
    int32_t parts             # texts went on behind the last walked block, at the walk
    int32_t computing         # the row that computes what is under way, -1: none; and
    int64_t *told             # why there is no more: tokens by group and tier, then runs; NULL: not asked for
    Py_ssize_t num_told
    int32_t pending           # the last of its blocks, which a row in flight computes: the pages say which they are
    int32_t known             # with pending blocks: nodes that were walked
    int32_t owner             # that row,
    int64_t owner_seat        # and what it was then

cdef struct Run:
    int32_t first             # the present run: [first, last)
    int32_t last
    int32_t sink              # all of them lie in [0, sink) and [tail, stop)
    int32_t tail
    int32_t stop


cdef inline bint was_present(State *s, Path *path, int32_t group, int32_t block) noexcept nogil:
    """Whether the node of a walked block had a page of the group at the time of the walk."""
    if block < path.present_from:
        return True
    return path.present != NULL and path.present[(block - path.present_from) * s.num_groups + group]


cdef inline Run runs_of(Path *path, Pool *g) noexcept nogil:
    """Where the runs of a group are; next_run gives the first."""
    cdef Run run
    run.first = run.last = path.first
    if path.needs != NULL:
        run.sink, run.tail, run.stop = path.needs[g.index].sink, path.needs[g.index].first, path.needs[g.index].stop
    else:
        run.sink = min(g.sink, path.blocks) if g.tail >= 0 else 0
        run.tail = max(run.sink, path.blocks - g.tail) if g.tail >= 0 else 0
        run.stop = path.blocks
        if g.current and path.source >= 0:        # the source has what is current
            run.tail = run.stop
    return run


cdef inline bint next_run(State *s, Path *path, Pool *g, Run *run) noexcept nogil:
    """Go on to the next run; False: there is none. Only a claim with needs can have holes in it."""
    cdef int32_t b = run.last, end
    while True:
        if run.sink <= b < run.tail:
            b = run.tail
        if b >= run.sink and b >= run.stop:
            return False
        end = run.sink if b < run.sink else run.stop
        run.first = b
        if path.needs == NULL:
            run.last = end
            return True
        while b < end and was_present(s, path, g.index, b):
            b += 1
        run.last = b
        if run.first < b:
            return True
        while b < end and not was_present(s, path, g.index, b):
            b += 1


cdef int32_t end_of(State *s, Path *path, Pool *g) noexcept nogil:
    """The block after the last one held of a group; 0 when none is."""
    cdef Run run = runs_of(path, g)
    cdef int32_t end = 0
    while next_run(s, path, g, &run):
        end = run.last if run.first < run.last else end
    return end


cdef inline int32_t node_page(State *s, Pool *g, Path *path, int32_t block) noexcept nogil:
    if path.pages != NULL:
        return path.pages[g.index * path.num_nodes + block]
    return at(&s.tree, path.nodes[block]).page[g.index]


cdef inline int32_t source_page(State *s, Pool *g, Path *path) noexcept nogil:
    if path.pages != NULL:
        return path.pages[s.num_groups * path.num_nodes + g.index]
    return at(&s.tree, path.source).page[g.index]


cdef int32_t source_node(State *s, Path *path) noexcept nogil:
    """The node of the source; -1 when it has left the tree."""
    if path.pages != NULL and path.source >= 0:
        return page_at(s.pools, source_page(s, s.pools, path)).node
    return path.source


cdef int freeze(State *s, Path *path) noexcept nogil:
    """Note the pages of a claim: its nodes may go. -1 without memory."""
    cdef int32_t i, b, n = path.num_nodes
    cdef int32_t *pages
    cdef Run run
    if path.pages != NULL:
        return 0
    pages = <int32_t *> malloc(4 * (<Py_ssize_t> s.num_groups * (n + 1) + 1))
    if pages == NULL:
        return -1
    memset(pages, 0xFF, 4 * <Py_ssize_t> s.num_groups * (n + 1))
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            for b in range(run.first, run.last):
                pages[i * n + b] = node_page(s, s.pools + i, path, b)
        if path.source >= 0:
            pages[s.num_groups * n + i] = source_page(s, s.pools + i, path)
    path.pages = pages
    s.loose -= 1
    return 0


cdef void set_need(State *s, Path *path, Pool *g, int32_t sink, int32_t first, int32_t stop) noexcept nogil:
    """Cut what a claim asks of a group to what the walk found: a group that needs all blocks holds a prefix."""
    cdef Need *need = path.needs + g.index
    cdef int32_t found = path.num_nodes
    if g.tail < 0:
        found = 0
        while found < path.num_nodes and was_present(s, path, g.index, found):
            found += 1
    need.front = max(0, max(sink, first))
    need.sink = min(max(0, sink), found)
    need.first = max(need.sink, max(0, first))
    need.stop = min(max(0, stop), found)


cdef bint has_nodes(State *s, Path *path, Text *text, int32_t blocks) noexcept nogil:
    """Whether the first nodes of a path are still those of the text's blocks: nodes' numbers are given out again."""
    cdef Tree *t = &s.tree
    cdef int32_t b, parent = path.root
    if path.drops == t.drops:
        return True
    if text.length < <Py_ssize_t> blocks * t.block_size or not at(t, parent).flags & ROOT:
        return False
    for b in range(blocks):
        if not follows(t, path.nodes[b], parent, text.tokens + <Py_ssize_t> b * t.block_size, extras_of(text, b)):
            return False
        parent = path.nodes[b]
    return True


cdef bint keeps_tip(State *s, Path *path) noexcept nogil:
    """Whether the claim keeps the node of the hit's last block in place: it is on a page there, or below."""
    cdef int32_t i
    for i in range(s.num_groups):
        if end_of(s, path, s.pools + i) >= path.blocks:
            return True
    return False


cdef bint has_source(State *s, Path *path, Text *text) noexcept nogil:
    """Whether the source is still a child of the hit's last node that begins with the matched tokens."""
    cdef int32_t parent = path.nodes[path.blocks - 1] if path.blocks else path.root, i
    cdef Py_ssize_t begin = <Py_ssize_t> path.blocks * s.block_size
    cdef Query q
    if at(&s.tree, path.source).size == 0 or at(&s.tree, path.source).parent != parent:
        return False
    if text.length < begin + path.matched or (s.num_current and at(&s.tree, path.source).size != path.matched):
        return False
    q.tokens, q.size = text.tokens + begin, path.matched
    q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
    for i in range(s.num_groups):
        if not is_near(s.pools + i, at(&s.tree, path.source).page[i]):
            return False
    return common_with(&s.tree, path.source, &q) == path.matched


cdef bint is_fresh(State *s, Path *path, Text *text) noexcept nogil:
    """Whether all that the claim shall be on is (still) there."""
    cdef int32_t i, b, blocks = path.blocks
    cdef Run run
    if path.epoch == s.tree.epoch and path.drops == s.tree.drops:
        return True
    for i in range(s.num_groups):
        blocks = max(blocks, end_of(s, path, s.pools + i))
    if path.pending or not has_nodes(s, path, text, blocks):
        return False
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            for b in range(run.first, run.last):
                if not is_near(s.pools + i, node_page(s, s.pools + i, path, b)):
                    return False
    return path.source < 0 or has_source(s, path, text)


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
        free(self.path.pages)
        free(self.path.told)

    def explained(self):
        """(runs, tokens by group and tier), as `explain` found them."""
        cdef Py_ssize_t tiers = self.state.num_groups * self.state.num_tiers if self.path.told != NULL else 0
        cdef char *told = <char *> self.path.told
        return told[8 * tiers:8 * self.path.num_told], told[:8 * tiers]

    @property
    def blocks(self):
        return self.path.blocks

    @property
    def coming(self):
        return self.path.coming

    def reach(self, Py_ssize_t group):
        """(pages, tiers), int32: page and hottest tier now of each block that resuming at `coming` reads."""
        cdef Pool *g = self.pool(group)
        cdef Path *path = &self.path
        cdef int32_t tail = max(0, path.coming - g.tail) if g.tail >= 0 else 0, b, p
        cdef list pages = [], tiers = []
        for b in range(path.first, path.coming):
            p = (path.pages[g.index * path.num_nodes + b] if path.blocks - path.pending <= b < path.blocks
                 else at(&self.state.tree, path.nodes[b]).page[g.index])
            if p >= 0 and (b < g.sink or b >= tail):
                pages.append(p)
                tiers.append(hottest(g, page_at(g, p)))
        return np.array(pages, np.int32), np.array(tiers, np.int32)

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
    def parts(self):
        """Whether texts went on behind the last walked block at the time of the walk."""
        return self.path.parts != 0

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

    cdef int32_t num_held(self, Pool *g) noexcept:
        cdef Run run = runs_of(&self.path, g)
        cdef int32_t count = 0
        while next_run(self.state, &self.path, g, &run):
            count += run.last - run.first
        return count

    cdef int32_t tier_of(self, Pool *g, int32_t block) noexcept:
        """Hottest tier of the page of a block now; -1 when it has none."""
        cdef int32_t p = node_page(self.state, g, &self.path, block)
        return hottest(g, page_at(g, p)) if p >= 0 else -1

    def present(self, Py_ssize_t group):
        """bool [num_nodes]: which walked blocks had a page of the group at the time of the walk."""
        cdef Pool *g = self.pool(group)
        cdef int32_t b
        cdef unsigned char *found
        present = np.ones(self.path.num_nodes, np.bool_)
        if self.path.present_from < self.path.num_nodes:
            found = <unsigned char *> memory_of(present)
            for b in range(self.path.present_from, self.path.num_nodes):
                found[b] = was_present(self.state, &self.path, g.index, b)
        return present

    def held(self, Py_ssize_t group):
        """int32: the blocks of the group that the claim is on; without a claim, those it would be on."""
        cdef Pool *g = self.pool(group)
        cdef int32_t b, i = 0
        cdef int32_t *found
        cdef Run run = runs_of(&self.path, g)
        held = np.empty(self.num_held(g), np.int32)
        if len(held):
            found = <int32_t *> memory_of(held)
            while next_run(self.state, &self.path, g, &run):
                for b in range(run.first, run.last):
                    found[i] = b
                    i += 1
        return held

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
        cdef int32_t *found
        cdef Run run = runs_of(&self.path, g)
        tiers = np.full(self.path.blocks if self.path.needs == NULL else self.path.num_nodes, -1, np.int32)
        if len(tiers):
            found = <int32_t *> memory_of(tiers)
            while next_run(self.state, &self.path, g, &run):
                for b in range(run.first, run.last):
                    found[b] = self.tier_of(g, b)
        return tiers

    def pages(self, Py_ssize_t group):
        """int32: the page of each held block, in the order of `held`."""
        return self.place_arrays(self.pool(group))[0]

    def places(self, Py_ssize_t group):
        """(tiers, slots), int32: where the hottest copy of each of those is now."""
        return self.place_arrays(self.pool(group))[1:]

    def sources(self):
        """The page of the source per group that the claim is on; () without."""
        cdef int32_t i
        if self.state == NULL or self.path.source < 0 or self.path.stage != CLAIMED:
            return ()
        return tuple([source_page(self.state, self.state.pools + i, &self.path) for i in range(self.state.num_groups)])

    cdef tuple place_arrays(self, Pool *g):
        """Page, tier and slot of each held block."""
        cdef int32_t b, p, i = 0
        cdef Run run = runs_of(&self.path, g)
        cdef int32_t *found[3]
        arrays = [np.empty(self.num_held(g), np.int32) for b in range(3)]
        if len(arrays[0]) == 0:
            return tuple(arrays)
        for b in range(3):
            found[b] = <int32_t *> memory_of(arrays[b])
        while next_run(self.state, &self.path, g, &run):
            for b in range(run.first, run.last):
                p = node_page(self.state, g, &self.path, b)
                found[0][i] = found[1][i] = found[2][i] = -1
                if p >= 0:
                    found[0][i], found[1][i] = p, hottest(g, page_at(g, p))
                    found[2][i] = page_at(g, p).slot[found[1][i]]
                i += 1
        return tuple(arrays)


cdef int check_hit(Hit hit, object store, int stage, str act) except -1:
    if hit.store is not store or hit.path.stage != stage:
        raise ValueError(f"{act}: the hit is not at that stage, or not of this store")
    return 0
