# Owns: everything of one store in one struct, and its rows: their numbers, their columns, their tips.
# Does not know: how pages come and go. Of Python objects, it keeps a row's chain alive.

cdef enum:
    NO_LENGTH = -2
    MOST_NAMED = 64           # depths of a row at which others may be expected to resume
    NO_DEPTH = 0x7FFFFFFF

cdef enum:
    UNKNOWN_ROW = -2          # why a batch is refused
    TOO_LONG = -3
    NO_MEMORY = -4
    UNDER_WAY = -5

cdef struct Spares:           # open pages of a row and group, kept aside for its forks
    int32_t *pages
    int32_t count

cdef struct Row:              # what every decode step touches comes first
    PyObject *chain           # owned reference; NULL: the row is not live
    Text *text                # inside it
    int64_t batch             # the last batch it was in
    int32_t tip               # node of its last committed block, -1: it commits nothing any more
    char keep                 # 0: it never commits
    char ahead                # it was given more than it has computed: a current page is not that of `computed`
    char as_seated            # nothing has changed it since
    int32_t root
    int32_t reached           # as far as tokens were handed out and taken back since
    int32_t twins             # private pages whose block has another page
    int32_t priority          # of pages the row grows by
    int64_t duration
    int64_t seat              # by which it was made live, or the fork: no other row ever has the same

cdef struct Sight:            # what a row knows of resume points; apart, since a Row fills a line
    int64_t turns             # of the tree, when it was last seen where the last one above its tip is
    int32_t point             # blocks before that; 0: it is too far away to matter
    int32_t edge              # blocks after which the same prompt could begin again
    int32_t begun             # blocks of its hit
    int32_t num_named         # depths at which its caller expects others to resume
    int32_t[MOST_NAMED] named

cdef struct State:
    int32_t block_size
    int32_t num_groups
    int32_t num_tiers
    int32_t num_rows
    int32_t num_columns
    int32_t offload_min
    int32_t shadows
    int32_t tails             # the end of a released row becomes a partial block
    int32_t mixed             # some group does not need all blocks to resume
    int32_t bounded           # columns leave the rows of some group
    int32_t num_current       # groups with a current page
    int32_t most_read         # blocks that a window reads before a point, at most; 0: nobody ranks
    int32_t has_kinds         # of resume points that are guessed or named: some group's pages are ranked by them
    int32_t asks              # it matters where prompts end that are asked for again: windows resume there
    int32_t inherit           # a replaced page's copies may be trusted: no plan is under way
    int32_t open_claims       # hits that claim something
    int32_t loose             # of them those that find their pages through the tree
    int32_t culprit           # the row a batch is refused for
    int32_t makes             # the row that pages are being made for, -1: for none
    int64_t batch             # batches so far
    int64_t seats             # seats and forks so far
    int64_t now               # the last tick a caller gave
    uint32_t admissions       # rows settled so far
    int32_t most_rows         # one after the last row that was ever live
    int32_t min_uses          # of a page that is copied down early, in the adaptive order
    Pool *pools               # by group
    Room *rooms               # one for the first group of each pool
    int64_t *before           # scratch: counters of all groups
    Row *rows
    Sight *sights             # per row
    Spares *spares            # [rows, groups]
    Stake *stakes             # [rows, groups]
    int32_t *written          # [rows, groups]: what columns before it hold a step of the prompt writes itself; apart, as
                              # only current pages have such
    int32_t *edge             # per row: the longest it can be without another column; NO_LENGTH: a prompt is under way
    int32_t *prompt           # per row: tokens before it are handed out by admission, in parts
    int32_t *due              # per row: computed tokens that make another block; NO_LENGTH: a commit has more to do
    uint32_t *opening         # per row: what its first block can be told from others' by, 0: nobody has looked yet
    int32_t *length           # NumPy memory, per row
    int32_t *handed           # tokens that were handed out to be computed, places of tokens that come too
    int32_t *launched         # of those: steps in flight compute up to here; 0: none does
    int32_t num_launched      # rows of which some does
    int32_t *computed
    int32_t *committed
    int32_t *path             # scratch: nodes, one per column
    int32_t *runs             # scratch: two per group
    int64_t *needs            # scratch: one per group
    Want *wants               # scratch: one per group
    int32_t *crossing         # scratch: places in a batch whose rows cross a block edge
    int32_t num_crossing
    const int32_t *more       # by place in the batch that grows: tokens that come; NULL: as many for every row
    Tree tree
    Log log
    int32_t slow              # the tier that no step waits for, the coldest; -1: there is none


cdef void tell_time(State *s, int64_t now) noexcept nogil:
    """It is `now`."""
    cdef int32_t i
    s.now = now
    for i in range(s.num_groups):
        if s.pools[i].cells != NULL:
            s.pools[i].cells.now = max(s.pools[i].cells.now, now)


cdef void count_admission(State *s) noexcept nogil:
    """One more row is settled."""
    cdef int32_t i
    s.admissions += 1
    for i in range(s.num_groups):
        if s.pools[i].cells != NULL and s.pools[i].first == i:
            next_admission(s.pools[i].cells)


cdef inline Pool *keeper(State *s, Pool *g, int32_t p) noexcept nogil:
    """The group that a page of the pool belongs to."""
    return g if g.owners == NULL else s.pools + g.owners[p]


cdef void keep_counters(State *s) noexcept nogil:
    """What every group has counted so far."""
    cdef int32_t i
    for i in range(s.num_groups):
        memcpy(s.before + i * NUM_COUNTERS, s.pools[i].counters, 8 * NUM_COUNTERS)


cdef void add_counters(State *s, int32_t row, bint anew) noexcept nogil:
    """What has happened since is a row's doing, and (`anew`) all it has done; in a shared pool also to pages of groups
    that it asked nothing of."""
    cdef int64_t *total
    cdef int32_t i, k
    for i in range(s.num_groups):
        total = s.pools[i].row_counters + <Py_ssize_t> row * NUM_COUNTERS
        for k in range(NUM_COUNTERS):
            total[k] = (0 if anew else total[k]) + s.pools[i].counters[k] - s.before[i * NUM_COUNTERS + k]


cdef inline bint is_live(State *s, int32_t row) noexcept nogil:
    return <uint32_t> row < <uint32_t> s.num_rows and s.rows[row].chain != NULL


cdef inline bint joins(State *s, int32_t row) noexcept nogil:
    """Whether a row may be in the present batch: live, and not in it already."""
    if not is_live(s, row) or s.rows[row].batch == s.batch:
        s.culprit = row
        return False
    s.rows[row].batch = s.batch
    return True


cdef Py_ssize_t join_plain(State *s, const int32_t *rows, Py_ssize_t n, Py_ssize_t i, const int32_t *numbers,
                           const int32_t *limits, int32_t least) noexcept nogil:
    """Rows from place i on join the batch, up to the first that may not, or whose number is nearer to its limit than
    this: its place."""
    cdef uint32_t num_rows = <uint32_t> s.num_rows
    cdef int64_t batch = s.batch
    cdef Row *table = s.rows
    cdef Row *r
    cdef int32_t row
    while i < n:
        row = rows[i]
        r = table + row
        if <uint32_t> row >= num_rows or r.chain == NULL or r.batch == batch or limits[row] - numbers[row] < least:
            break
        r.batch = batch
        i += 1
    return i


cdef inline int32_t *pages_of(State *s, Pool *g, int32_t row) noexcept nogil:
    return g.row_pages + <Py_ssize_t> row * s.num_columns


cdef inline int32_t *slots_of(State *s, Pool *g, int32_t row) noexcept nogil:
    return g.row_slots + <Py_ssize_t> row * s.num_columns


cdef inline Stake *stake_of(State *s, Pool *g, int32_t row) noexcept nogil:
    return s.stakes + <Py_ssize_t> row * s.num_groups + g.index


cdef bint lacks_room(State *s, int32_t row, bint snapshots) noexcept nogil:
    """Whether a pool has fewer slots than `needs` says of its groups together. What is reserved for the row (-1: none)
    is its group's own: what one leaves of it is not another's. While claims rest on reserved slots it may not be there.
    Without `snapshots` no room is asked for them."""
    cdef int32_t i
    cdef int64_t own
    for i in range(s.num_groups):
        s.pools[i].room.owed = s.pools[i].room.net = 0
    for i in range(s.num_groups):
        if s.needs[i] and (snapshots or not s.pools[i].current):
            own = stake_of(s, s.pools + i, row).reserve if row >= 0 else 0
            s.pools[i].room.owed += max(<int64_t> 0, s.needs[i] - own)
            s.pools[i].room.net += s.needs[i] - own
    for i in range(s.num_groups):
        if not s.needs[i] or not (snapshots or not s.pools[i].current):
            continue
        if (s.pools[i].room.owed if s.pools[i].room.owed else s.pools[i].room.net) > s.pools[i].room.available:
            return True
    return False


cdef inline int32_t *written_of(State *s, Pool *g, int32_t row) noexcept nogil:
    return s.written + <Py_ssize_t> row * s.num_groups + g.index


cdef inline void set_edge(State *s, int32_t row) noexcept nogil:
    """After a change of the row's capacity or reserve, or of what is handed out."""
    cdef int64_t edge = 0x7FFFFFFF
    cdef int32_t i
    cdef bint under_way = s.handed[row] < s.prompt[row]
    for i in range(s.num_groups):
        edge = min(edge, edge_of(s.pools + i, s.pools[i].capacity[row], s.block_size))
        under_way = under_way or stake_of(s, s.pools + i, row).peak > 0
    s.edge[row] = NO_LENGTH if under_way else <int32_t> max(edge, -1)


cdef inline int32_t due_after(State *s, int32_t blocks) noexcept nogil:
    """Computed tokens that make one block more than that."""
    return <int32_t> min((blocks + 1) * <int64_t> s.block_size, 0x7FFFFFFF)


cdef inline void set_due(State *s, int32_t row) noexcept nogil:
    """After a change of what the row has offered, computed (a source may match a whole block) or committed."""
    cdef int32_t i, due = due_after(s, s.committed[row])
    cdef Stake *stake
    if s.rows[row].ahead or s.computed[row] >= due:
        due = NO_LENGTH
    for i in range(s.num_groups):
        stake = stake_of(s, s.pools + i, row)
        if stake.shown < s.committed[row] and not s.pools[i].current:
            due = NO_LENGTH
    s.due[row] = due


cdef inline void hand_out(State *s, int32_t row, int32_t end) noexcept nogil:
    """The row's tokens before `end` are being computed, or will come; the others are parts of a prompt, as far as they
    have pages: growing brings those of the tokens that have come since."""
    cdef int64_t most = s.length[row]
    cdef int32_t i
    for i in range(s.num_groups):
        most = min(most, edge_of(s.pools + i, s.pools[i].capacity[row], s.block_size))
    s.handed[row], s.prompt[row] = end, max(s.prompt[row], <int32_t> most)
    set_edge(s, row)


cdef inline void set_launched(State *s, int32_t row, int32_t end) noexcept nogil:
    """Steps in flight compute a row up to there; 0: none does."""
    s.num_launched += (end != 0) - (s.launched[row] != 0)
    s.launched[row] = end


cdef inline bint is_past(State *s, int32_t row) noexcept nogil:
    """Whether a step may have gone on behind what was reported: what is current is then not that of `computed`."""
    return s.rows[row].ahead or max(s.handed[row], s.rows[row].reached) > s.computed[row]


cdef inline void set_tip(State *s, int32_t row, int32_t node) noexcept nogil:
    """Move a row's tip to a node (-1: nowhere); what it leaves behind may go."""
    cdef int32_t old = s.rows[row].tip
    if node >= 0:
        at(&s.tree, node).tips += 1
    s.rows[row].tip = node
    if old >= 0:
        at(&s.tree, old).tips -= 1
        if at(&s.tree, old).flags & ROOT or (at(&s.tree, old).tips == 0 and at(&s.tree, old).child < 0):
            prune(&s.tree, old)


cdef inline void mark_cell(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Columns [first, last) of a row, at least one, have got other slots."""
    cdef int32_t *touched = g.touched + 2 * <Py_ssize_t> row
    if g.touched != NULL:
        touched[0] = min(touched[0], first) if touched[1] else first
        touched[1] = max(touched[1], last)


cdef inline void set_column(State *s, Pool *g, int32_t row, int32_t column, int32_t p) noexcept nogil:
    """The row has page p (-1: none) in that column."""
    mark_cell(s, g, row, column, column + 1)
    pages_of(s, g, row)[column] = p
    slots_of(s, g, row)[column] = -1 if p < 0 else page_at(g, p).slot[0]


cdef void set_current(Pool *g, int32_t row, int32_t p) noexcept nogil:
    """The row's current page is p (-1: none)."""
    g.currents[row] = p
    g.current_slots[row] = -1 if p < 0 else page_at(g, p).slot[0]


cdef inline void add_spare(State *s, int32_t row, int32_t group, int32_t p) noexcept nogil:
    cdef Spares *spares = s.spares + row * s.num_groups + group
    spares.pages[spares.count] = p
    spares.count += 1


cdef int64_t count_holes(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Columns of [first, last) without a page."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int64_t holes = 0
    cdef int32_t b
    for b in range(first, last):
        holes += pages[b] < 0
    return holes
