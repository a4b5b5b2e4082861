# Owns: claim and unclaim (eviction passes over what is claimed), and pending blocks: whole blocks of a prompt that steps
# in flight compute for another row, behind what the tree has: which row has most of them. A hit that ends with them
# names that row, and keeps their pages by number.
# Does not know: which blocks a claim is on (the path does), steps.


cdef inline void forget_needs(Path *path) noexcept nogil:
    """The hit is as it was before its claim."""
    path.stage = FOUND
    free(path.needs)
    path.needs = NULL
    if path.pending == 0:     # else nothing else knows them
        free(path.pages)
        path.pages = NULL


cdef void claim_span(State *s, Pool *g, Path *path, int32_t first, int32_t last) noexcept nogil:
    cdef int32_t b, taken = 0
    cdef Page *page
    for b in range(first, last):
        page = page_at(g, at(&s.tree, path.nodes[b]).page[g.index])
        if page.claimed < ONE_CLAIM and page.holders == 0 and page.slot[0] >= 0:
            taken += 1
        page.claimed += ONE_CLAIM
    g.room.available -= taken


cdef void claim_noted(State *s, Pool *g, Path *path, int32_t first, int32_t last) noexcept nogil:
    """The same where the hit keeps its pages by number: some of its blocks are pending."""
    cdef int32_t b
    for b in range(first, last):
        claim_page(g, node_page(s, g, path, b))


cdef void claim(State *s, Path *path) noexcept nogil:
    """One claim more on every needed page and on the source's pages. If they shall stay, their copies below the device
    stay where they are, too: they are read there."""
    cdef int32_t i, b
    cdef Run run
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            if path.pending:
                claim_noted(s, s.pools + i, path, run.first, run.last)
            else:
                claim_span(s, s.pools + i, path, run.first, run.last)
            for b in range(run.first, run.last if path.stays else run.first):
                keep_page(s.pools + i, node_page(s, s.pools + i, path, b))
        if path.source >= 0:
            claim_page(s.pools + i, at(&s.tree, path.source).page[i])
    path.stage = CLAIMED
    s.open_claims += 1
    s.loose += path.pages == NULL


cdef void unclaim(State *s, Path *path) noexcept nogil:
    cdef int32_t i, b
    cdef Run run
    for i in range(s.num_groups):
        run = runs_of(path, s.pools + i)
        while next_run(s, path, s.pools + i, &run):
            for b in range(run.first, run.last):
                if path.stays:
                    unkeep_page(s.pools + i, node_page(s, s.pools + i, path, b))
                unclaim_page(s.pools + i, node_page(s, s.pools + i, path, b))
    for i in range(s.num_groups if path.source >= 0 else 0):      # last: where groups share a pool it is seen
        unclaim_page(s.pools + i, source_page(s, s.pools + i, path))
    s.open_claims -= 1
    s.loose -= path.pages == NULL
    forget_needs(path)


cdef int set_needs(State *s, Path *path, list needs) except -1:
    """The claim will be on other blocks than the hit's: of each group on [0, sink) and [first, stop)."""
    cdef int32_t sink, first, stop, i
    if path.source >= 0 or len(needs) != s.num_groups:
        raise ValueError("claim: needs are for a hit without a source, one for each group")
    needs = [tuple(need) for need in needs]
    for sink, first, stop in needs:
        pass                  # three numbers each, before anything is noted
    path.needs = <Need *> malloc(s.num_groups * sizeof(Need))
    if path.needs == NULL:
        raise MemoryError("claim: no memory for needs")
    for i in range(s.num_groups):
        sink, first, stop = needs[i]
        set_need(s, path, s.pools + i, sink, first, stop)
    return 0


cdef tuple claim_hit(State *s, Hit hit, needs, bint stays):
    """Claim a fresh hit; per group, pages of it that have no copy on tier 0."""
    cdef int32_t i
    if s.open_claims >= MAX_CLAIMS:
        raise ValueError("claim: too many claims are open")
    if needs is not None:
        set_needs(s, &hit.path, list(needs))
    if not is_fresh(s, &hit.path, &hit.chain.text):
        forget_needs(&hit.path)
        raise ValueError("claim: the tree has changed since this hit was found: walk again")
    hit.path.stays = stays
    claim(s, &hit.path)
    return tuple([hit.num_cold(s.pools + i) for i in range(s.num_groups)])


cdef tuple source_state(State *s, Path *path):
    """(leaf, held, claims, tiers) of the source now, the last three per group."""
    cdef int32_t i, p, node = source_node(s, path)
    cdef list held = [], claims = [], tiers = []
    cdef bint kept = False    # then it is not taken over, as no leaf is
    cdef Pool *g
    for i in range(s.num_groups):
        g = s.pools + i
        p = source_page(s, g, path)
        kept = kept or (p >= 0 and stays_of(g, p))
        held.append(int(p >= 0 and page_at(g, p).holders > 0))
        claims.append(claims_of(page_at(g, p)) if p >= 0 else 0)
        tiers.append(hottest(g, page_at(g, p)) if p >= 0 else -1)
    return int(node >= 0 and at(&s.tree, node).child < 0 and not kept), tuple(held), tuple(claims), tuple(tiers)


cdef bint is_on_path(State *s, Path *path, int32_t row) noexcept nogil:
    """Whether what a row has committed, and will go on from in the tree, is a part of the hit."""
    cdef int32_t done = s.committed[row]
    if not s.rows[row].keep or s.rows[row].tip < 0 or done > path.blocks:
        return False
    return s.rows[row].tip == (path.nodes[done - 1] if done else path.root)


cdef int32_t pending_end(State *s, Text *text, Path *path, int32_t row, Py_ssize_t usable) noexcept nogil:
    """How many blocks there are with those that a row in flight computes, where every group could resume."""
    cdef int32_t b, i, best = path.blocks
    cdef Py_ssize_t end = min(min(<Py_ssize_t> s.launched[row], s.prompt[row]), min(usable, text.length))
    cdef bint good
    if not is_on_path(s, path, row):
        return best
    memset(s.runs, 0, 16 * s.num_groups)
    for b in range(<int32_t> (end // s.block_size)):
        if b >= s.committed[row] and not same_block(text, s.rows[row].text, b):
            break
        good = True
        for i in range(s.num_groups):
            count_block(s.runs + 4 * i, b + 1, b < path.blocks or pages_of(s, s.pools + i, row)[b] >= 0)
            good = good and is_good(s.pools + i, s.runs + 4 * i, b + 1)
        if good and b + 1 > best:
            best = b + 1
    return best


cdef int add_pending(State *s, Path *path, int32_t owner, int32_t blocks) noexcept nogil:
    """The blocks of a hit up to there are those that a row in flight computes; -1 without memory."""
    cdef int32_t num_nodes = max(path.num_nodes, blocks), groups = s.num_groups, i, b
    cdef unsigned char *present
    cdef int32_t *pages
    if reserve(<void **> &path.nodes, &path.room, num_nodes, 4):
        return -1
    present = <unsigned char *> malloc(<Py_ssize_t> num_nodes * groups)
    pages = <int32_t *> malloc(4 * (<Py_ssize_t> groups * (num_nodes + 1) + 1))
    if present == NULL or pages == NULL:
        free(present)
        free(pages)
        return -1
    memset(pages, 0xFF, 4 * <Py_ssize_t> groups * (num_nodes + 1))
    for i in range(groups):
        for b in range(num_nodes):
            present[b * groups + i] = b < min(path.num_nodes, blocks) and was_present(s, path, i, b)
            if path.blocks <= b < blocks:
                pages[i * num_nodes + b] = pages_of(s, s.pools + i, owner)[b]
                present[b * groups + i] = present[b * groups + i] or pages[i * num_nodes + b] >= 0
            elif b < path.blocks:
                pages[i * num_nodes + b] = at(&s.tree, path.nodes[b]).page[i]
    for b in range(path.num_nodes, num_nodes):
        path.nodes[b] = -1
    free(path.present)
    path.present, path.present_room, path.present_from, path.pages = present, num_nodes, 0, pages
    path.known, path.num_nodes, path.pending = path.num_nodes, num_nodes, blocks - path.blocks
    path.owner, path.owner_seat, path.blocks = owner, s.rows[owner].seat, blocks
    path.coming, path.source, path.matched = max(path.coming, blocks), -1, 0
    return 0


cdef int32_t find_pending(State *s, Text *text, Path *path, Py_ssize_t usable) noexcept nogil:
    """Lengthen a fresh hit by the blocks that one row's steps in flight compute; the row, -1: none, -2: no memory. Not
    with states."""
    cdef int32_t row, end, best = path.blocks, owner = -1
    if path.root < 0 or s.num_current:
        return -1
    for row in range(s.most_rows):
        if s.rows[row].chain == NULL or s.launched[row] <= s.computed[row]:
            continue
        end = pending_end(s, text, path, row, usable)
        if end > best:
            best, owner = end, row
    if owner >= 0 and add_pending(s, path, owner, best):
        return -2
    return owner


cdef inline bint has_owner(State *s, Path *path) noexcept nogil:
    """Whether the row that computes a hit's pending blocks is still live; none ends while a step in flight has it."""
    return s.rows[path.owner].chain != NULL and s.rows[path.owner].seat == path.owner_seat


cdef bint is_still_there(State *s, Path *path) noexcept nogil:
    """Whether the row still has the pages of the pending blocks that were found."""
    cdef int32_t i, b
    if path.pending == 0:
        return True
    if not has_owner(s, path):
        return False
    for i in range(s.num_groups):
        for b in range(path.blocks - path.pending, path.blocks):
            if pages_of(s, s.pools + i, path.owner)[b] != path.pages[i * path.num_nodes + b]:
                return False
    return True
