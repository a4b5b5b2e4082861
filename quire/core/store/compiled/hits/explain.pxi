# Owns: why the blocks behind a hit are missing: one cause for each, and the group that lacks it; their order.
# Does not know: tokens outside whole blocks. It changes nothing.

cdef extern from *:
    """
    /* The first row from `at` on that begins alike, or of which nobody knows how it begins; or n. */
    static inline int32_t quire_next_alike(const uint32_t *openings, int32_t at, int32_t n, uint32_t opening) {
        while (at < n && openings[at] != opening && openings[at]) at++;
        return at;
    }
    """
    int32_t next_alike "quire_next_alike"(const uint32_t *openings, int32_t at, int32_t n,
                                          uint32_t opening) noexcept nogil

cdef enum:                    # causes, as `causes.py` numbers them
    LACK_UNDER_WAY, LACK_EVICTED, LACK_FAILED, LACK_FORGOTTEN, LACK_WINDOW, LACK_SNAPSHOT, LACK_SHORT, LACK_NEW
    LACK_SLOW
    RUN_FIELDS = 7
    SMALL_ROOM = 16           # runs that a claim may keep room for, whatever it has
    MOST_UNKNOWN = 2          # blocks in a row without a ghost: behind them only snapshots are looked for

cdef struct Cause:            # of one block
    int64_t gone              # the tick at which its page went
    uint32_t admission
    int32_t code
    int32_t group             # -1: of none
    int32_t hint              # by which its page was ranked, 0: none

cdef struct Look:             # a prompt along the tree, and what is remembered behind it
    State *s
    Text *text
    int32_t *nodes
    int32_t root
    int32_t blocks            # of the hit
    int32_t landed            # of them, those that are computed
    int32_t whole             # blocks that are looked at
    int32_t walked            # of them in the tree, with pages or without
    int32_t known             # and what is remembered behind those
    int32_t row               # that has most of the prompt behind the hit and will make it findable, -1: none
    int32_t shared            # blocks it has in common
    uint64_t seed             # of the scope
    Cause *causes             # of the blocks from the hit's end to `told`; those behind are new
    int32_t told


cdef inline bint is_there(Look *look, Pool *g, int32_t block) noexcept nogil:
    """Whether a group has a page of a block, outside the slow tier."""
    return block < look.walked and is_near(g, at(&look.s.tree, look.nodes[block]).page[g.index])


cdef inline bint is_slow(Look *look, Pool *g, int32_t block) noexcept nogil:
    """Whether there is a page, in the slow tier only."""
    return (block < look.walked and at(&look.s.tree, look.nodes[block]).page[g.index] >= 0
            and not is_there(look, g, block))


cdef int walk_on(Look *look, Path *path) noexcept nogil:
    """All blocks of the prompt that are in the tree, beyond where the walk for the hit ended; -1 without memory."""
    cdef Tree *t = &look.s.tree
    cdef int32_t n = path.known if path.pending else path.num_nodes, node
    look.walked = n
    if look.root < 0 or n >= look.whole:
        return 0
    if reserve(<void **> &path.nodes, &path.room, look.whole, 4):
        return -1
    look.nodes = path.nodes
    node = look.nodes[n - 1] if n else look.root
    while n < look.whole:
        if text_keys(look.text, n + 1):
            return -1
        node = find_block(t, node, <uint32_t> (look.text.keys[n] ^ look.seed),
                          look.text.tokens + <Py_ssize_t> n * t.block_size, extras_of(look.text, n))
        if node < 0:
            break
        look.nodes[n] = node
        n += 1
    look.walked = n
    return 0


cdef inline int32_t ghost_at(Look *look, Pool *g, int32_t block) noexcept nogil:
    """The place of a block's ghost, or -1; keys have been made."""
    return -1 if g.ghosts == NULL else find_ghost(g.ghosts, look.text.keys, block, look.seed ^ g.salt)


cdef bint is_remembered(Look *look, int32_t block) noexcept nogil:
    cdef int32_t i
    for i in range(look.s.num_groups):
        if ghost_at(look, look.s.pools + i, block) >= 0:
            return True
    return False


cdef void fetch_remembered(Look *look, int32_t first, int32_t stop) noexcept nogil:
    cdef int32_t i
    for i in range(look.s.num_groups):
        if look.s.pools[i].ghosts != NULL:
            fetch_ghosts(look.s.pools[i].ghosts, look.text.keys + first, stop - first,
                         look.seed ^ look.s.pools[i].salt)


cdef int recall(Look *look) noexcept nogil:
    """How much of the prompt was there once, as far as is remembered; -1 without memory."""
    cdef int32_t i, block, unknown = 0, most = look.whole if look.s.num_current else MOST_UNKNOWN
    cdef int32_t fetched = look.walked + MOST_UNKNOWN
    cdef int64_t count = 0
    look.known = look.walked
    for i in range(look.s.num_groups):
        count += look.s.pools[i].ghosts.count if look.s.pools[i].ghosts != NULL else 0
    if count == 0:
        return 0
    if text_keys(look.text, look.whole if look.s.num_current else min(look.whole, look.walked + most)):
        return -1
    for block in range(look.walked, look.whole):
        if text_keys(look.text, min(look.whole, block + 1 if block < fetched else block + MAX_RUN)):
            return -1
        if block >= fetched:  # the first was one: so are others, mostly
            fetched = min(look.whole, block + MAX_RUN)
            fetch_remembered(look, block, fetched)
        if is_remembered(look, block):
            look.known, unknown = block + 1, 0
        else:
            unknown += 1
            if unknown == most:
                return 0
    return 0


cdef inline int32_t offered(State *s, Pool *g, int32_t row) noexcept nogil:
    """Blocks of a row that the tree has been offered."""
    return s.committed[row] if g.current else stake_of(s, g, row).shown


cdef int32_t common_blocks(Text *one, Text *other, int32_t most) noexcept nogil:
    """Leading whole blocks that two texts share."""
    cdef int32_t count = <int32_t> min(<Py_ssize_t> most, one.length // one.block_size), block = 0
    while block < count and same_block(one, other, block):
        block += 1
    return block


cdef inline uint32_t opening_of(Text *text) noexcept nogil:
    """What the first block of a text can be told from others by; 0: it has none yet."""
    return 0 if text.length < text.block_size or text_keys(text, 1) else <uint32_t> text.keys[0] | 1


cdef void find_row(Look *look) noexcept nogil:
    """The running row that has most of the prompt behind the hit and will make it findable; the first of equals. Most
    rows begin differently, which is seen without reading their texts: those lie far from each other."""
    cdef State *s = look.s
    cdef int32_t row = -1, i, shared, least
    cdef uint32_t opening = opening_of(look.text)
    while look.root >= 0 and look.shared < look.whole:
        row = next_alike(s.opening, row + 1, s.most_rows, opening)
        if row >= s.most_rows:
            return
        if s.length[row] < (look.shared + 1) * s.block_size:
            continue
        if s.opening[row] == 0:
            s.opening[row] = opening_of(s.rows[row].text)
        if s.opening[row] != opening:
            continue
        if s.rows[row].root != look.root or not s.rows[row].keep or s.rows[row].tip < 0:
            continue
        if not same_block(s.rows[row].text, look.text, look.shared):
            continue          # it has no more of it than another
        shared, least = common_blocks(s.rows[row].text, look.text, look.whole), look.whole
        for i in range(s.num_groups):
            least = min(least, offered(s, s.pools + i, row))
        if shared > look.shared and least < shared:
            look.row, look.shared = row, shared


cdef int32_t last_hole(Look *look, Pool *g, int32_t edge) noexcept nogil:
    """The last missing block of those that a group with a tail needs at an edge, or -1."""
    cdef int32_t first = max(0, edge - g.tail), b
    for b in range(edge - 1, first - 1, -1):
        if not is_there(look, g, b):
            return b
    for b in range(min(g.sink, first) - 1, -1, -1):
        if not is_there(look, g, b):
            return b
    return -1


cdef int32_t resume_point(Look *look, Pool *g, int32_t bound) noexcept nogil:
    """The last block edge up to `bound` at which a group could resume by itself."""
    cdef int32_t edge = min(bound, look.walked), b = look.landed, hole
    if g.tail < 0:
        while b < edge and is_there(look, g, b):
            b += 1
        return b
    while edge:
        hole = last_hole(look, g, edge)
        if hole < 0:
            return edge
        edge = hole           # those between need it too
    return 0


cdef inline Cause cause_of(int32_t code, int32_t group) noexcept nogil:
    cdef Cause cause
    cause.code, cause.group, cause.gone, cause.admission, cause.hint = code, group, 0, 0, 0
    return cause


cdef Cause ghost_cause(Pool *g, int32_t place) noexcept nogil:
    cdef Ghost *ghost = g.ghosts.ring + place
    cdef Cause cause = cause_of(LACK_FAILED if why_of(ghost) == SPOILT else LACK_EVICTED, g.index)
    cause.gone, cause.admission, cause.hint = gone_at(ghost), ghost.admission, hint_in(reuse_of(ghost))
    return cause


cdef Cause page_missed(Look *look, Pool *g, int32_t block) noexcept nogil:
    """Why a group has no page of a block."""
    cdef int32_t place
    if look.row >= 0 and offered(look.s, g, look.row) <= block < look.shared:
        return cause_of(LACK_UNDER_WAY, g.index)
    if is_slow(look, g, block):
        return cause_of(LACK_SLOW, g.index)
    if block >= look.known:
        return cause_of(LACK_NEW, -1)
    place = ghost_at(look, g, block)
    if place >= 0:
        return ghost_cause(g, place)
    return cause_of(LACK_FORGOTTEN if g.tail < 0 else LACK_WINDOW, g.index)


cdef void pages_missed(Look *look, Pool *g, int32_t first, int32_t stop) noexcept nogil:
    """Of a group that reads pages: the last missing block of those that resuming right behind a block would need; the
    first block is missing itself, unless the hit ends with pending blocks."""
    cdef int32_t block, hole, last = first, told = -1
    cdef Cause cause
    while last and is_there(look, g, last):
        last -= 1             # what is pending is not there either
    for block in range(first, stop):
        if not is_there(look, g, block):
            last = block
        hole = last           # in the tail, or else among the sinks
        if g.tail >= 0 and block < look.walked and last <= block - g.tail:
            hole = last_hole(look, g, block + 1)
        if hole != told:
            cause, told = page_missed(look, g, hole), hole
        look.causes[block - look.blocks] = cause


cdef void snapshots_missed(Look *look, Pool *g, int32_t first, int32_t stop) noexcept nogil:
    """For a state group: the next snapshot that was there, or will be; one snapshot saves all blocks before it."""
    cdef Cause ahead = cause_of(LACK_NEW, -1)
    cdef int32_t block, place
    for block in range(stop - 1, first - 1, -1):
        place = ghost_at(look, g, block) if block < look.known else -1
        if (look.row >= 0 and offered(look.s, g, look.row) <= block < look.shared
                and pages_of(look.s, g, look.row)[block] >= 0):
            ahead = cause_of(LACK_UNDER_WAY, g.index)
        elif is_slow(look, g, block):
            ahead = cause_of(LACK_SLOW, g.index)
        elif place >= 0:
            ahead = ghost_cause(g, place)
        elif ahead.code == LACK_NEW and block < look.known:
            ahead = cause_of(LACK_SNAPSHOT, g.index)
        look.causes[block - look.blocks] = ahead


cdef void explain_blocks(Look *look) noexcept nogil:
    """Blame groups for missing blocks: first the group whose own resume point is lowest, then others for the rest."""
    cdef int32_t bound = look.whole, i, point, lowest, culprit
    while bound > look.blocks:
        lowest, culprit = bound, 0
        for i in range(look.s.num_groups):
            point = look.blocks
            if look.s.num_groups > 1:
                point = max(point, resume_point(look, look.s.pools + i, bound))
            if point < lowest:
                lowest, culprit = point, i
        if look.s.pools[culprit].current:
            snapshots_missed(look, look.s.pools + culprit, lowest, min(bound, look.told))
        else:
            pages_missed(look, look.s.pools + culprit, lowest, min(bound, look.told))
        bound = lowest


cdef inline int64_t *put_run(int64_t *run, Cause *cause, int64_t start, int64_t stop) noexcept nogil:
    run[0], run[1], run[2], run[3], run[4], run[5] = cause.code, start, stop, cause.group, cause.gone, cause.admission
    run[6] = cause.hint
    return run + RUN_FIELDS


cdef int64_t parting(Look *look, int32_t block) noexcept nogil:
    """Where the first new block parts from what is in the tree."""
    cdef int64_t first = block * <int64_t> look.s.block_size
    cdef Query q
    if block > look.walked or look.root < 0:
        return first
    q.tokens, q.size = look.text.tokens + first, look.s.block_size
    q.extras = NULL if look.text.extras == NULL else look.text.extras + 3 * first
    return first + nearest_common(&look.s.tree, look.nodes[block - 1] if block else look.root, &q)


cdef inline bint same_cause(Cause *a, Cause *b) noexcept nogil:
    return a.code == b.code and a.group == b.group and a.gone == b.gone and a.admission == b.admission and a.hint == b.hint


cdef int64_t *put_new(Look *look, int64_t *run, int32_t block, int64_t start) noexcept nogil:
    """All blocks from one on are new; tokens that the first shares with others are not, but make no whole block."""
    cdef Cause cause = cause_of(LACK_SHORT, -1)
    cdef int64_t parted = max(start, parting(look, block))
    if parted > start:
        run = put_run(run, &cause, start, parted)
    cause.code = LACK_NEW
    return put_run(run, &cause, parted, look.whole * <int64_t> look.s.block_size)


cdef int64_t *put_runs(Look *look, int64_t *run, int64_t start) noexcept nogil:
    """Blocks of one cause in a row as one run of tokens, the first from `start` on; what follows the last run."""
    cdef int32_t n = look.told - look.blocks, i
    cdef int64_t stop
    cdef Cause *causes = look.causes
    for i in range(n):
        if causes[i].code == LACK_NEW:
            return put_new(look, run, look.blocks + i, start)
        if i + 1 == n or not same_cause(causes + i, causes + i + 1):
            stop = (look.blocks + i + 1) * <int64_t> look.s.block_size
            run = put_run(run, causes + i, start, stop)
            start = stop
    return put_new(look, run, look.told, start) if look.told < look.whole else run


cdef void count_tokens(State *s, Path *path, int64_t *found) noexcept nogil:
    """By group and tier: tokens of the pages that resuming at the hit's end reads; a snapshot stands for all."""
    cdef int32_t i, b, first, size = s.block_size
    cdef Pool *g
    cdef int64_t *tiers
    memset(found, 0, 8 * <size_t> s.num_groups * s.num_tiers)
    for i in range(s.num_groups):
        g, tiers = s.pools + i, found + i * s.num_tiers
        first = max(0, path.blocks - g.tail) if g.tail >= 0 else 0
        if g.current and path.source >= 0:
            tiers[hottest(g, page_at(g, at(&s.tree, path.source).page[i]))] = path.blocks * <int64_t> size + path.matched
            continue
        if s.num_tiers == 1:
            tiers[0] = (path.blocks - first + min(g.sink, first)) * <int64_t> size
        else:
            for b in range(path.blocks):
                if b < g.sink or b >= first:
                    tiers[hottest(g, page_at(g, node_page(s, g, path, b)))] += size
        if g.current and path.blocks:
            for b in range(s.num_tiers):
                tiers[b] *= path.blocks
        if path.source >= 0:
            tiers[hottest(g, page_at(g, at(&s.tree, path.source).page[i]))] += path.matched


cdef int explain_hit(State *s, Text *text, Path *path, int32_t root, uint64_t scope,
                     Py_ssize_t usable) noexcept nogil:
    """Into the path: tokens by group and tier, then runs, and the row. -1 without memory."""
    cdef Look look
    cdef int64_t *told
    cdef int64_t *end
    cdef Py_ssize_t room, tiers = s.num_groups * s.num_tiers
    look.s, look.text, look.root, look.nodes = s, text, root, path.nodes
    look.blocks, look.landed = path.blocks, path.blocks - path.pending
    look.whole = <int32_t> (max(<Py_ssize_t> 0, min(usable, text.length)) // s.block_size)
    look.seed = seed_of(&s.tree, root) if root >= 0 else seed_of_scope(scope)
    if walk_on(&look, path) or recall(&look):
        return -1
    look.row, look.shared = -1, look.blocks
    if look.blocks < look.whole:
        find_row(&look)
    look.told = min(look.whole, max(look.known, look.shared))
    room = max(0, look.told - look.blocks) + 3
    told = <int64_t *> realloc(path.told, 8 * tiers + room * (8 * RUN_FIELDS + sizeof(Cause)))
    if told == NULL:
        return -1
    look.causes = <Cause *> (told + tiers + room * RUN_FIELDS)
    count_tokens(s, path, told)
    end = told + tiers
    if look.blocks < look.whole:
        explain_blocks(&look)
        end = put_runs(&look, end, path.blocks * <int64_t> s.block_size + path.matched)
    path.told, path.num_told, path.computing = told, end - told, look.row
    if room > SMALL_ROOM:
        told = <int64_t *> realloc(told, 8 * path.num_told)
        path.told = told if told != NULL else path.told
    return 0
