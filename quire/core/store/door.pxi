# Owns: the first third of the door: the checks that memory safety needs, roots, walks and claims.
# Does not know: how anything is done: every method is one act of a part above.


cdef int refused(State *s, int why, str act) except -1:
    """Raise what a batch was refused for, before anything has changed."""
    if why == UNKNOWN_ROW:
        raise LookupError(f"{act}: row {s.culprit} is not live, or twice in the batch")
    if why == TOO_LONG:
        raise ValueError(f"{act}: row {s.culprit} would be longer than its tokens or columns")
    if why == UNDER_WAY:
        raise RuntimeError(f"row {s.culprit} has a prompt under way")
    if why == NO_MEMORY:
        raise MemoryError(f"{act}: no memory")
    return 0


cdef int expect(bint happened, str act) except -1:
    """What was counted before must have happened."""
    if not happened:
        raise BrokenInvariant(f"{act}: nothing available, although it was counted before")
    return 0


cdef class Door(Tables):
    """What comes in."""

    cdef Pool *pool(self, Py_ssize_t group) except NULL:
        if not 0 <= group < self.state.num_groups:
            raise LookupError(f"no group {group}")
        return self.state.pools + group

    cdef int check_row(self, int32_t row, bint live) except -1:
        if not 0 <= row < self.state.num_rows or (live and not is_live(&self.state, row)):
            raise LookupError(f"row {row} is not live" if live else f"no row {row}")
        if not live and is_live(&self.state, row):
            raise ValueError(f"row {row} is live already")
        return 0

    cdef int check_chain(self, Chain chain, int32_t root) except -1:
        if chain.text.block_size != self.state.block_size:
            raise ValueError(f"the chain has blocks of {chain.text.block_size} tokens, not {self.state.block_size}")
        return 0 if root == -1 else self.check_root(root)

    cdef int check_root(self, int32_t root) except -1:
        if not 0 <= root < self.state.tree.used or not at(&self.state.tree, root).flags & ROOT:
            raise LookupError(f"no root {root}")
        return 0

    cdef int check_moves(self, int64_t slots) except -1:
        """Room in the log for the moves that taking so many slots may cause."""
        if moves_reserve(&self.state.log, slots * self.state.num_tiers + self.state.num_groups):
            raise MemoryError("no memory for moves")
        return 0

    cdef int check_needs(self) except -1:
        """Room for the moves of what has been counted in `needs`."""
        cdef int64_t total = 0
        cdef int32_t i
        for i in range(self.state.num_groups):
            total += self.state.needs[i]
        return self.check_moves(total)

    # roots

    def new_root(self, uint64_t event_hash):
        """A new root; its number is the parent of first blocks in events."""
        cdef int32_t n = new_root(&self.state.tree, event_hash)
        if n < 0:
            raise MemoryError("no memory for a root")
        if self.state.tree.hashes != NULL:
            self.state.tree.hashes[n], self.state.tree.roots[n] = event_hash, n
        self.numbers[n] = event_hash
        return n

    def dead_roots(self):
        """Roots that have lost their last child or tip since the last call and have neither now."""
        cdef Tree *t = &self.state.tree
        cdef Py_ssize_t i
        cdef list dead = []
        for i in range(t.num_noted):
            at(t, t.noted[i]).flags &= ~NOTED
            if at(t, t.noted[i]).child < 0 and at(t, t.noted[i]).tips == 0:
                dead.append(t.noted[i])
        t.num_noted = 0
        return dead

    def free_root(self, int32_t node):
        """Forget a root without child and tip."""
        self.check_root(node)
        if at(&self.state.tree, node).child >= 0 or at(&self.state.tree, node).tips:
            raise ValueError(f"root {node} is in use")
        free_root(&self.state.tree, node)
        del self.numbers[node]

    # walks and claims

    def walk(self, Chain chain not None, int32_t root, Py_ssize_t usable, int policy):
        """What of the chain is cached under a root (-1: none); policy 0: full blocks, 1: and idle leaves, 2: any."""
        cdef Hit hit = Hit.__new__(Hit)
        self.check_chain(chain, root)
        hit.store, hit.state, hit.chain = self, &self.state, chain
        if walk(&self.state, &chain.text, &hit.path, root, max(0, usable), policy):
            raise MemoryError("no memory for a walk")
        return hit

    cdef int check_hit(self, Hit hit, int stage, str act) except -1:
        if hit.store is not self or hit.path.stage != stage:
            raise ValueError(f"{act}: the hit is not at that stage, or not of this store")
        return 0

    def claim(self, Hit hit not None, needs=None):
        """Claim what the hit needs, or of each group the blocks [0, sink) and [first, stop) as far as they were there:
        eviction passes over them. Per group, pages of them that have no copy on tier 0."""
        cdef int32_t i
        self.check_hit(hit, FOUND, "claim")
        if self.state.open_claims >= MAX_CLAIMS:
            raise ValueError("claim: too many claims are open")
        if needs is not None:
            self.set_needs(&hit.path, list(needs))
        if not is_fresh(&self.state, &hit.path, &hit.chain.text):
            forget_needs(&hit.path)
            raise ValueError("claim: the tree has changed since this hit was found: walk again")
        claim(&self.state, &hit.path)
        return tuple([hit.num_cold(self.state.pools + i) for i in range(self.state.num_groups)])

    cdef int set_needs(self, Path *path, list needs) except -1:
        cdef int32_t sink, first, stop, i
        if path.source >= 0 or len(needs) != self.state.num_groups:
            raise ValueError("claim: needs are for a hit without a source, one for each group")
        needs = [tuple(need) for need in needs]
        for sink, first, stop in needs:
            pass              # three numbers each, before anything is noted
        path.needs = <Need *> malloc(self.state.num_groups * sizeof(Need))
        if path.needs == NULL:
            raise MemoryError("claim: no memory for needs")
        for i in range(self.state.num_groups):
            sink, first, stop = needs[i]
            set_need(&self.state, path, self.state.pools + i, sink, first, stop)
        return 0

    def unclaim(self, Hit hit not None):
        """Give a claim up."""
        self.check_hit(hit, CLAIMED, "unclaim")
        unclaim(&self.state, &hit.path)

    def source_state(self, Hit hit not None):
        """(leaf, held, claims, tiers) of the source node now, the last three per group; (0, (), (), ()) without one."""
        cdef int32_t i, p, n = hit.path.source
        cdef list held = [], claims = [], tiers = []
        cdef Pool *g
        if hit.store is not self or n < 0:
            return 0, (), (), ()
        for i in range(self.state.num_groups):
            g, p = self.state.pools + i, at(&self.state.tree, n).page[i]
            held.append(int(p >= 0 and page_at(g, p).holders > 0))
            claims.append(claims_of(page_at(g, p)) if p >= 0 else 0)
            tiers.append(hottest(g, page_at(g, p)) if p >= 0 else -1)
        return int(at(&self.state.tree, n).child < 0), tuple(held), tuple(claims), tuple(tiers)
