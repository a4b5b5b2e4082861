# Owns: commit of full blocks: a row's pages become findable, or it learns that others were first; columns that leave a
# row as it goes on, and what stays findable of them.
# Does not know: admission, release, what is behind the numbers: a group keeps the last `keep` blocks, the first `sink`,
# or a current page.


cdef int32_t first_open(State *s, Pool *g, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """The first column of [first, last) whose page has no node; not in there when there is none."""
    cdef int32_t *pages = pages_of(s, g, row)
    while first < last and (pages[first] < 0 or page_at(g, pages[first]).node >= 0):
        first += 1
    return first


cdef void rank_twins(State *s, Pool *g, int32_t row, int32_t first, int32_t last, int32_t depth) noexcept nogil:
    """Idle pages of blocks in whose columns of [first, last) the row has pages of its own are ranked anew, the last
    first; its tip is so deep."""
    cdef int32_t b, p, node = s.rows[row].tip
    first = first_open(s, g, row, first, last)
    for b in range(depth - 1 if first < last else first - 1, first - 1, -1):
        p = pages_of(s, g, row)[b] if b < last else -1
        if p >= 0 and page_at(g, p).node < 0 and at(&s.tree, node).page[g.index] >= 0:
            rank_anew(g, at(&s.tree, node).page[g.index])
        node = at(&s.tree, node).parent


cdef void see_points(State *s, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """A row's tip has come from block `first` to `last`: where the last resume point above it is. What it has seen before
    is so still, unless the tree has turned; then it looks back as far as any window reads."""
    cdef Sight *sight = s.sights + row
    cdef int32_t b, node = at(&s.tree, s.rows[row].tip).parent, stop = max(0, last - 1 - s.most_read)
    if sight.turns == s.tree.turns:
        stop = max(stop, first - 1)
    else:
        sight.turns, sight.point = s.tree.turns, 0
    for b in range(last - 1, stop, -1):
        if is_point(&s.tree, node):
            sight.point = b
            return
        node = at(&s.tree, node).parent


cdef void pass_columns(State *s, Pool *g, int32_t row, int32_t first, int32_t edge, int32_t last) noexcept nogil:
    """Columns [first, edge) of a row become holes, last to first; its tip is at block `last`. On the way up from there
    it shows how far the next resume point is: none of those below the tip is near enough."""
    cdef int32_t b, node = s.rows[row].tip, steps = g.tail
    if edge - first == 1 and s.sights[row].turns == s.tree.turns:     # while decoding: it is known
        clear_column(s, g, row, first, IS_NEEDED if s.sights[row].point >= edge else IS_PASSED)
        return
    for b in range(last - 1, first - 1, -1):
        steps = 0 if is_point(&s.tree, node) else min(steps + 1, g.tail)
        if b < edge:
            clear_column(s, g, row, b, IS_NEEDED if steps < g.tail else IS_PASSED)
        node = at(&s.tree, node).parent


cdef int32_t leave(State *s, Pool *g, int32_t row, int32_t last, int32_t low, bint kept) noexcept nogil:
    """Columns that a group does not keep at `last` blocks go. Those without a node are offered once more before, if
    the row's blocks are `kept`; the scratch path begins at block `low`. The number of pages attached."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t first = max(stake.front, g.sink), edge = last - g.keep, begin, stored = 0
    if first < edge:
        begin = first_open(s, g, row, first, edge) if kept else edge
        if begin < edge:
            stored = attach_row(s, g, row, begin, edge, s.path + begin - low, False)
        if kept and g.ranked:
            rank_twins(s, g, row, first, edge, last)
            pass_columns(s, g, row, first, edge, last)
        else:
            clear_columns(s, g, row, first, edge)
    stake.front = max(stake.front, edge)
    return stored


cdef int32_t pass_on(State *s, Pool *g, int32_t row, int32_t last, int32_t low, bint kept) noexcept nogil:
    """The same for a group with a current page: columns are offered that a step has written itself; of the others only
    the last can be kept, as a copy of what is current."""
    cdef Stake *stake = stake_of(s, g, row)
    cdef int32_t stored = 0, edge = min(written_of(s, g, row)[0], last)
    if kept and stake.front < edge:
        stored = attach_row(s, g, row, stake.front, edge, s.path + stake.front - low, False)
    if kept and s.computed[row] == <int64_t> last * s.block_size:
        stored += keep_snapshot(s, g, row, last - 1, s.path[last - 1 - low])
    clear_columns(s, g, row, stake.front, last)
    stake.front = stake.shown = last
    return stored


cdef int commit_check(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n) noexcept nogil:
    """Check a batch, note the rows that have a block to commit, reserve what that may need; nothing visible changes."""
    cdef Py_ssize_t i = -1, blocks = 0
    cdef int32_t row, c, count = 0
    cdef bint extras = False
    cdef int why = 0
    cdef Row *r
    s.batch += 1
    while True:
        i = join_plain(s, rows, n, i + 1, s.handed, s.due, 1) if computed == NULL else i + 1
        if i == n:
            break
        row = rows[i]
        if not joins(s, row):
            return UNKNOWN_ROW
        c = computed[i] if computed != NULL else min(s.handed[row], s.length[row])
        if computed != NULL and <uint32_t> c > <uint32_t> s.length[row]:      # or is below 0
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
            fetch_entry(&s.tree, r.text, seed_of(&s.tree, r.root), s.committed[row])
    s.num_crossing = count
    if blocks and not why and tree_reserve(&s.tree, blocks, extras):
        return NO_MEMORY
    return NO_MEMORY if s.num_current and moves_reserve(&s.log, count * s.num_current) else why


cdef int32_t lowest_offer(State *s, int32_t row, int32_t last) noexcept nogil:
    """The first column that a commit up to `last` blocks offers in some group. The nodes from there to the row's tip
    are needed; a window's far end is climbed to only if a page there has no node yet."""
    cdef int32_t i, edge, opened, low = s.committed[row]
    cdef Stake *stake
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        stake = stake_of(s, g, row)
        if g.current:
            continue
        low = min(low, stake.shown)
        if g.keep >= 0 and last > s.committed[row]:
            edge = min(low, last - g.keep)
            opened = first_open(s, g, row, max(stake.front, g.sink), edge) if stake.front < edge else edge
            if opened < edge:
                low = opened
    return low


cdef int32_t next_depth(State *s, Sight *sight, int32_t depth, int32_t nth) noexcept nogil:
    """The next depth behind one at which a prompt may have a point of some kind; `nth`: named ones were passed."""
    cdef Kinds *k = &s.tree.kinds
    cdef int32_t found = NO_DEPTH
    if k.spacing and depth < sight.edge:
        found = min(sight.edge, depth + k.spacing - depth % k.spacing)
        if not k.apart:
            found = min(found, max(depth + 1, sight.edge - FARTHEST))
    return min(found, sight.named[nth]) if nth < sight.num_named else found


cdef void set_kinds_along(State *s, Sight *sight, int32_t first, int32_t last, int32_t made, int32_t *path) noexcept nogil:
    """Nodes of blocks [first, last) of a text are points of their kinds; those from `made` on are new."""
    cdef int32_t depth = first, nth = 0
    cdef bint named
    while nth < sight.num_named and sight.named[nth] <= first:
        nth += 1
    while True:
        depth = next_depth(s, sight, depth, nth)
        if depth > last:
            return
        named = nth < sight.num_named and sight.named[nth] == depth
        nth += named
        set_kind(&s.tree, path[depth - 1 - first], NAMED if named else kind_at(&s.tree.kinds, depth, sight.edge),
                 depth <= made)


cdef int32_t reach_tip(State *s, int32_t row, int32_t first, int32_t last, int32_t *path) noexcept nogil:
    """Nodes of the row's blocks [first, last), found or made, go into `path`; the last of them. Where the row parts from
    a text that is known something is learned; where its prompt ends it is seen whether the text was known to go on."""
    cdef Row *r = s.rows + row
    cdef Tree *t = &s.tree
    cdef uint64_t seed = seed_of(t, r.root)
    cdef int32_t node = r.tip, edge = s.sights[row].edge, begin = first, before = t.num_nodes
    t.parted = -1
    if s.asks and first < edge <= last:
        node = extend_path(t, r.text, node, seed, first, edge, path)
        see_parting(t)
        ask_again(t, node)
        begin = edge
    if begin < last:
        node = extend_path(t, r.text, node, seed, begin, last, path + begin - first)
    if s.has_kinds:
        see_parting(t)
        if first < edge or s.sights[row].num_named:
            set_kinds_along(s, s.sights + row, first, last, last - (t.num_nodes - before), path)
    return node


cdef void name_points(State *s, int32_t row, const int32_t *depths, int32_t number) noexcept nogil:
    """Others may be expected to resume at these depths of a row's prompt, ascending."""
    cdef int32_t i, depth = s.committed[row], node = s.rows[row].tip
    if not s.has_kinds or not s.rows[row].keep or node < 0:
        return
    s.sights[row].num_named = number
    memcpy(s.sights[row].named, depths, 4 * number)
    climb(&s.tree, node, 0, depth, s.path)
    for i in range(number):
        if depths[i] <= depth:
            set_kind(&s.tree, s.path[depths[i] - 1], NAMED, True)


cdef int64_t commit_row(State *s, int32_t row, int32_t last) noexcept nogil:
    """Commit of a row that has columns to leave, or a reserve, or something it has not offered yet."""
    cdef Row *r = s.rows + row
    cdef int32_t i, first = s.committed[row], low = first
    cdef bint kept = r.keep and r.tip >= 0
    cdef int64_t stored = 0
    cdef Stake *stake
    cdef Pool *g
    last = max(first, last)
    r.as_seated = r.ahead = False
    if kept:
        low = lowest_offer(s, row, last)
        climb(&s.tree, r.tip, low, first, s.path)
        if first < last:
            set_tip(s, row, reach_tip(s, row, first, last, s.path + first - low))
            if s.most_read:
                see_points(s, row, first, last)
    for i in range(s.num_groups):
        g = s.pools + i
        stake = stake_of(s, g, row)
        if not g.current:
            if kept and stake.shown < last:
                stored += attach_row(s, g, row, stake.shown, last, s.path + stake.shown - low, True)
            stake.shown = last
        if g.current and first < last:
            stored += pass_on(s, g, row, last, low, kept)
        elif g.keep >= 0 and first < last:
            stored += leave(s, g, row, last, low, kept)
    s.committed[row] = last
    set_due(s, row)
    return stored


cdef int64_t commit(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n) noexcept nogil:
    """Make the computed full blocks of checked rows findable; the number of pages newly attached."""
    cdef int32_t *handed = s.handed
    cdef int32_t *length = s.length
    cdef int32_t *done = s.computed
    cdef Py_ssize_t i
    cdef int32_t k, g, row, first, last
    cdef int64_t stored = 0
    cdef Row *r
    for i in range(n if computed == NULL else 0):
        done[rows[i]] = min(handed[rows[i]], length[rows[i]])
    for i in range(n if computed != NULL else 0):
        s.computed[rows[i]] = max(s.computed[rows[i]], computed[i])
        if computed[i] > s.handed[rows[i]]:
            s.handed[rows[i]] = computed[i]       # `computed` may be more than was handed out
            set_edge(s, rows[i])
    for k in range(s.num_crossing):
        row = rows[s.crossing[k]]
        r = s.rows + row
        first, last = s.committed[row], s.computed[row] // s.block_size
        if s.bounded or s.due[row] == NO_LENGTH:
            stored += commit_row(s, row, last)
            continue
        if r.keep and r.tip >= 0:
            set_tip(s, row, extend_path(&s.tree, r.text, r.tip, seed_of(&s.tree, r.root), first, last, s.path))
            for g in range(s.num_groups):
                stored += attach_row(s, s.pools + g, row, first, last, s.path, True)
        for g in range(s.num_groups):
            stake_of(s, s.pools + g, row).shown = last
        s.committed[row], s.due[row] = last, due_after(s, last)
    return stored


cdef object commit_batch(State *s, const int32_t *rows, const int32_t *computed, Py_ssize_t n, now):
    cdef int64_t time = 0 if now is None else now
    refused(s, commit_check(s, rows, computed, n), "commit")
    if now is not None:
        refresh(s, time)
    return commit(s, rows, computed, n)


cdef object commit_arrays(State *s, rows, computed, now):
    """Commit of rows up to what is computed of each, or was handed out (None)."""
    cdef Py_buffer names, lengths
    cdef Py_ssize_t n = borrow(&names, rows, 4, b"il", "rows")
    try:
        if computed is None:
            return commit_batch(s, <const int32_t *> names.buf, NULL, n, now)
        if borrow(&lengths, computed, 4, b"il", "computed") != n:
            PyBuffer_Release(&lengths)
            raise ValueError("commit: as many lengths as rows")
        try:
            return commit_batch(s, <const int32_t *> names.buf, <const int32_t *> lengths.buf, n, now)
        finally:
            PyBuffer_Release(&lengths)
    finally:
        PyBuffer_Release(&names)


cdef int read_named(State *s, Sight *sight, Text *text, depths) except -1:
    """Depths that a caller names, checked."""
    cdef int32_t i, last = 0, number = <int32_t> len(depths)
    if number > MOST_NAMED:
        raise ValueError(f"{number} depths are named, at most {MOST_NAMED}")
    for i in range(number):
        sight.named[i] = depths[i]
        if not last < sight.named[i] <= text.length // s.block_size:
            raise ValueError(f"{list(depths)} are not block edges of {text.length} tokens, ascending")
        last = sight.named[i]
    sight.num_named = number
    return 0


cdef int name_depths(State *s, int32_t row, depths) except -1:
    """The same of a row's prompt: from now on others may be expected there."""
    cdef Sight sight
    read_named(s, &sight, s.rows[row].text, depths)
    name_points(s, row, sight.named, sight.num_named)
    return 0


cdef int commit_again(State *s, int32_t row, int32_t root) except -1:
    """A row whose blocks were forgotten with everything commits again, under a new root: the next commit offers all."""
    cdef Row *r = s.rows + row
    cdef Stake *stake
    cdef int32_t i
    if not r.keep or r.tip >= 0:
        raise ValueError(f"row {row} commits, or never did")
    if text_keys(r.text, s.committed[row]) or tree_reserve(&s.tree, s.committed[row], r.text.extras != NULL):
        raise MemoryError("no memory for the nodes of a row")
    r.root, s.sights[row].turns = root, -1
    set_tip(s, row, extend_path(&s.tree, r.text, root, seed_of(&s.tree, root), 0, s.committed[row], s.path))
    for i in range(s.num_groups):
        stake = stake_of(s, s.pools + i, row)
        stake.shown = stake.shown if s.pools[i].current else 0
    set_due(s, row)
    return 0
