# Owns: the result of a walk, and which of its blocks a claim is on: per group, runs of blocks, ascending.
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
    run.first = run.last = 0
    if path.needs != NULL:
        run.sink, run.tail, run.stop = path.needs[g.index].sink, path.needs[g.index].first, path.needs[g.index].stop
    else:
        run.sink = min(g.sink, path.blocks) if g.tail >= 0 else 0
        run.tail = max(run.sink, path.blocks - g.tail) if g.tail >= 0 else 0
        run.stop = path.blocks
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
    return at(&s.tree, path.nodes[block]).page[g.index]


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
    if text.length < begin + path.matched:
        return False
    q.tokens, q.size = text.tokens + begin, path.matched
    q.extras = NULL if text.extras == NULL else text.extras + 3 * begin
    for i in range(s.num_groups):
        if at(&s.tree, path.source).page[i] < 0:
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
    if not has_nodes(s, path, text, blocks):
        return False
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            for b in range(run.first, run.last):
                if node_page(s, s.pools + i, path, b) < 0:
                    return False
    return path.source < 0 or has_source(s, path, text)
