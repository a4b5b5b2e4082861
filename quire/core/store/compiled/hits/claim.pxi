# Owns: claim and unclaim: eviction passes over what is claimed.
# Does not know: which blocks a claim is on: the path does.


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
