# Owns: seat: a claimed hit becomes holds of a row.
# Does not know: what the row gets besides.


cdef int32_t num_landed(State *s, Path *path) noexcept nogil:
    """Blocks of a hit that are computed by now."""
    if path.pending == 0 or not has_owner(s, path):
        return path.blocks
    return max(path.blocks - path.pending, min(path.blocks, s.computed[path.owner] // s.block_size))


cdef Stake *promiser_of(State *s, Pool *g, int32_t b, int32_t p) noexcept nogil:
    """The part of the row that alone holds a page of a window in column b and has promised its room; or NULL."""
    cdef int32_t row
    cdef Stake *stake
    if g.num_peaks == 0 or g.keep < 0 or g.current or page_at(g, p).holders != 1:
        return NULL
    for row in range(s.num_rows):
        stake = stake_of(s, g, row)
        if s.rows[row].chain != NULL and stake.peak and b >= stake.base and pages_of(s, g, row)[b] == p:
            return stake
    return NULL


cdef object promised(State *s, Path *path, Pool *g):
    """Pages of a claimed hit that one row alone holds and has promised to give up."""
    cdef int32_t *frozen = NULL if path.pages == NULL else path.pages + g.index * path.num_nodes
    cdef int32_t b, p
    cdef Run run = runs_of(path, g)
    cdef list found = []
    while g.num_peaks and next_run(s, path, g, &run):
        for b in range(run.first, run.last):
            p = at(&s.tree, path.nodes[b]).page[g.index] if frozen == NULL else frozen[b]
            if promiser_of(s, g, b, p) != NULL:
                found.append(p)
    return np.array(found, np.int32)


cdef void seat_span(State *s, Pool *g, Path *path, int32_t row, int32_t first, int32_t last) noexcept nogil:
    """Claims become holds, written in the row. A claimed page is not available, so holding it does not change that."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef int32_t *slots = slots_of(s, g, row)
    cdef int32_t *frozen = NULL if path.pages == NULL else path.pages + g.index * path.num_nodes
    cdef int64_t *expiry = g.room.times.expiry
    cdef int32_t b, p, t, unlisted = 0
    cdef bint promises = g.num_peaks > 0
    cdef Page *page
    cdef Stake *promiser
    if first < last:
        mark_cell(s, g, row, first, last)
    for b in range(first, last):
        p = at(&s.tree, path.nodes[b]).page[g.index] if frozen == NULL else frozen[b]
        page = page_at(g, p)
        if promises:
            promiser = promiser_of(s, g, b, p)
            if promiser != NULL:
                keep_more(g, promiser, 1)
        page.claimed -= ONE_CLAIM
        page.holders += 1
        if page.holders == 1 and page.node >= 0:
            if page.slot[0] >= 0:
                leave_idle(g, 0, page)
                unlisted += 1
            else:
                t = hottest(g, page)
                leave_idle(g, t, page)
                g.tiers[t].num_idle -= 1
            if expiry != NULL:
                expiry[p] = -1
        pages[b], slots[b] = p, page.slot[0]
    g.tiers.num_idle -= unlisted


cdef inline void seat_stake(State *s, Pool *g, Path *path, int32_t row) noexcept nogil:
    """Where the row's part in a group begins."""
    cdef Stake *stake = stake_of(s, g, row)
    stake.front = 0
    stake.shown = stake.base = path.blocks
    stake.own = stake.peak = stake.kept = stake.reserve = 0
    stake.fresh, stake.followed = ONCE, False
    written_of(s, g, row)[0] = 0
    if g.current:
        stake.front = path.blocks
    elif g.keep >= 0:
        stake.front = max(g.sink, path.blocks - g.tail) if path.needs == NULL else path.needs[g.index].front


cdef void own_alone(State *s, Pool *g, int32_t row) noexcept nogil:
    """The last pages of a window's hit that the row alone has are its own: they make room when they leave it."""
    cdef int32_t *pages = pages_of(s, g, row)
    cdef Stake *stake = stake_of(s, g, row)
    cdef Page *page
    while stake.base > g.sink and pages[stake.base - 1] >= 0:
        page = page_at(g, pages[stake.base - 1])
        if page.holders != 1 or claims_of(page):
            break
        stake.base -= 1
        stake.own += 1


cdef int32_t count_twins(State *s, Path *path, int32_t row, int32_t landed) noexcept nogil:
    """Pages of blocks that were pending and are computed by now, but not in the tree: other pages came before them."""
    cdef int32_t i, b, p, twins = 0
    for i in range(s.num_groups):
        for b in range(path.blocks - path.pending, landed):
            p = pages_of(s, s.pools + i, row)[b]
            twins += p >= 0 and page_at(s.pools + i, p).node < 0
    return twins


cdef void seat(State *s, Path *path, int32_t row, Text *text, int32_t root, bint keep) noexcept nogil:
    """Make the row live with the hit's full blocks; the source keeps its claim until settle."""
    cdef Row *r = s.rows + row
    cdef int32_t i, landed = path.blocks if path.pending == 0 else num_landed(s, path)
    cdef Run run
    for i in range(s.num_groups):
        s.pools[i].capacity[row] = path.blocks
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            seat_span(s, s.pools + i, path, row, run.first, run.last)
            s.pools[i].capacity[row] = max(path.blocks, run.last)
        seat_stake(s, s.pools + i, path, row)
        if s.pools[i].keep >= 0 and not s.pools[i].current and path.needs == NULL:
            own_alone(s, s.pools + i, row)
    r.text, r.root, r.keep, r.tip, r.reached = text, root, keep, -1, 0
    r.twins = count_twins(s, path, row, landed)
    r.ahead, r.priority, r.duration = path.needs != NULL, DEFAULT_PRIORITY, -1
    s.most_rows, s.opening[row] = max(s.most_rows, row + 1), 0
    s.length[row] = s.prompt[row] = <int32_t> text.length
    s.handed[row] = path.blocks * s.block_size + path.matched
    s.computed[row] = s.handed[row] - (path.blocks - landed) * s.block_size
    s.committed[row] = landed
    if landed < path.blocks:  # the rest is computed with the row that it shares them with
        s.launched[row] = s.handed[row]
        for i in range(s.num_groups):
            stake_of(s, s.pools + i, row).shown = landed
    s.sights[row].num_named = 0
    s.sights[row].turns, s.sights[row].edge = -1, <int32_t> ((text.length - 1) // s.block_size)
    s.sights[row].begun = path.blocks
    if root >= 0:
        set_tip(s, row, path.nodes[landed - 1] if landed else root)
        if s.asks and keep and landed == s.sights[row].edge > 0:
            ask_again(&s.tree, r.tip)
    set_edge(s, row)
    set_due(s, row)
    s.seats += 1
    path.stage, path.seat, r.seat, r.as_seated = SEATED, s.seats, s.seats, True
    s.loose -= path.pages == NULL
    if path.source < 0:
        s.open_claims -= 1


cdef int seat_check(State *s, Hit hit, Chain chain, int32_t root, bint keep) except -1:
    """Whether the hit fits a row, its chain and its root."""
    cdef int32_t i
    if root < 0 and (keep or (hit.path.blocks and hit.path.pages == NULL)):
        raise ValueError("seat: a row that keeps its blocks needs a root")
    if hit.path.blocks > s.num_columns or hit.start > chain.text.length:
        raise ValueError(f"seat: a hit of {hit.start} tokens does not fit the row or its chain")
    for i in range(s.num_groups if hit.path.needs != NULL else 0):
        if end_of(s, &hit.path, s.pools + i) > s.num_columns:
            raise ValueError("seat: what is held does not fit the row")
    return 0


cdef int find_tip(State *s, Path *path, Text *text, int32_t root) except -1:
    """The node of the hit's last block, the row's tip to be, is made again if it went: the claim may be on other blocks
    than that. Where nothing kept it, its number and its root's may be those of others by now."""
    cdef bint kept = path.pages == NULL and keeps_tip(s, path)
    cdef int32_t blocks
    if (kept and path.root != root) or text.length < <Py_ssize_t> path.blocks * s.block_size:
        raise ValueError(f"seat: the hit does not lie under root {root}")
    if kept or (path.pages == NULL and path.root == root and has_nodes(s, path, text, path.blocks)):
        return 0
    blocks = num_landed(s, path)
    if blocks == 0:
        return 0
    if text_keys(text, blocks) or tree_reserve(&s.tree, blocks, text.extras != NULL):
        raise MemoryError("seat: no memory for nodes")
    path.nodes[blocks - 1] = extend_path(&s.tree, text, root, seed_of(&s.tree, root), 0, blocks, s.path)
    return 0
