# Owns: what comes and goes without a row: pages written from outside, texts, the tiers below the device, what is learned.
# Each method checks its arguments and calls the part that does the work; `interface/page_calls.py` says what it does.
# Does not know: how anything is done.


cdef Pool *slow_pool(State *s, Py_ssize_t group) except NULL:
    if s.slow < 0:
        raise ValueError("this store has no slow tier")
    return check_group(s, group)


cdef class PageCalls(RowCalls):
    """The tree, the tiers and the order of eviction, beside the rows."""

    # texts, and pages from outside

    def use(self, int32_t root, Chain chain not None, int32_t blocks):
        """A request was served from outside: its first blocks are used, and the ghosts behind them met."""
        check_chain(&self.state, chain, root)
        check_root(&self.state, root)
        use_text(&self.state, &chain.text, root, blocks)

    def write(self, int32_t root, Chain chain not None, int32_t tier, blocks, priorities, durations, *,
              int64_t now):
        """Pages in a tier for blocks that have none, held by the caller; per group those blocks, their pages and their
        slots. No room: (group, wanted, there)."""
        check_chain(&self.state, chain, root)
        check_tier(&self.state, 0, tier)
        return write_retained(&self.state, &chain.text, root, tier, blocks, priorities, durations, now)

    def publish(self, int32_t root, Chain chain not None, blocks, pages, int64_t now, int32_t edge=0, named=()):
        """Such pages are written: they become findable, unless others have come before; the number that did."""
        cdef Sight sight
        check_chain(&self.state, chain, root)
        check_root(&self.state, root)
        read_named(&self.state, &sight, &chain.text, named)
        sight.edge = edge
        return publish(&self.state, &chain.text, root, blocks, pages, now, &sight)

    # what goes

    def hint(self, int32_t root, Chain chain not None, Py_ssize_t keep, int32_t back):
        """Hint when the text of a chain comes back, from the first block that starts at `keep` on; its page count."""
        check_chain(&self.state, chain, root)
        check_root(&self.state, root)
        check_hint(back)
        return hint_text(&self.state, &chain.text, root, keep, back)

    def truncate(self, int32_t root, Chain chain not None, Py_ssize_t usable, Py_ssize_t keep):
        """Remove the chain's blocks that begin at or after `keep`; the number of pages detached."""
        check_chain(&self.state, chain, root)
        check_frozen(&self.state, "truncate")
        return truncate_chain(&self.state, &chain.text, root, usable, keep) if root >= 0 else 0

    def clear(self):
        """Remove all blocks and roots; the number of pages detached."""
        check_frozen(&self.state, "clear")
        self.hashes.clear()
        return clear(&self.state)

    def forget(self, int32_t root):
        """Remove all blocks below a root; the number of pages detached."""
        check_root(&self.state, root)
        check_frozen(&self.state, "forget")
        return forget_below(&self.state, root)

    def lose(self, Py_ssize_t group, int32_t page, int32_t stamp):
        """A page's bytes are gone; False: that page is gone already."""
        cdef Pool *g = check_group(&self.state, group)
        if not 0 <= page < g.num_pages or page_at(g, page).holders < 0 or page_at(g, page).stamp != stamp:
            return False
        return lose(&self.state, keeper(&self.state, g, page), page)

    def drop_copy(self, Py_ssize_t group, int32_t page, int32_t tier):
        """Give up a page's copy in a tier if it is a shadow; whether it was."""
        cdef Pool *g = check_page(&self.state, group, page)
        return 0 <= tier < g.num_tiers and drop_copy(g, page, tier)

    def offload(self, Py_ssize_t group, int32_t limit):
        """Copy up to `limit` idle pages down ahead of their eviction, the next to go or in the adaptive order the
        last; the number of them."""
        cdef Pool *g = check_group(&self.state, group)
        limit = min(limit, g.tiers.num_idle)
        if moves_reserve(&self.state.log, limit):
            raise MemoryError("offload: no memory for moves")
        return offload(&self.state, g, limit)

    # the slow tier

    def copy_down(self, Py_ssize_t group, int64_t limit):
        """Begin to copy up to `limit` pages into the slow tier; the moves, int32 [n, 11]."""
        return copy_down(&self.state, slow_pool(&self.state, group), limit)

    def bring_up(self, Py_ssize_t group, pages):
        """Begin to bring pages up from the slow tier; the moves."""
        return bring_up(&self.state, slow_pool(&self.state, group), pages)

    def land(self, moves, failed):
        """Such moves have been made, or have failed."""
        land(&self.state, moves, failed)

    def room_in(self, Py_ssize_t group, int32_t tier):
        """Slots of a tier that can be taken; on the device, less the reserve."""
        check_tier(&self.state, group, tier)
        return room_in(self.state.pools + group, tier, 0x7FFFFFFF)

    def keep(self, Py_ssize_t group, pages):
        """Copies of these pages below tier 0 stay where they are; their stamps, int32."""
        cdef Pool *g = check_group(&self.state, group)
        names = [int(page) for page in pages]
        for page in names:
            check_page(&self.state, group, page)
        for page in names:
            keep_page(g, page)
        return np.array([page_at(g, page).stamp for page in names], np.int32)

    def unkeep(self, Py_ssize_t group, pages, stamps):
        """Give that up; pages that are gone are left out."""
        cdef int32_t p
        for page, stamp in zip(pages, stamps, strict=True):
            p = page
            if page_at(check_page(&self.state, group, p), p).stamp == stamp and stays_of(self.state.pools + group, p):
                unkeep_page(self.state.pools + group, p)

    def note_tenure(self):
        """From now on note pages that get or lose copies; there is none yet."""
        make_tenure(&self.state)

    def take_tenure(self, Py_ssize_t group):
        """Rows of (page, stamp, row it was made for, tiers | 256) of a pool's pages that have changed, by page."""
        cdef Pool *g = check_group(&self.state, group)
        if g.tenure == NULL:
            raise ValueError("take_tenure: it is not noted")
        return take_tenure(g)

    def take_changes(self):
        """What changed in the slow tier since the last call."""
        return take_changes(&self.state)

    def restore(self, roots, blocks, tokens, words, word_at, pages, int64_t now):
        """Blocks and pages of the slow tier into an empty store."""
        slow_pool(&self.state, 0)
        for root in roots:
            check_root(&self.state, root)
        restore_arrays(&self.state, np.array(roots, np.int32), blocks, tokens, words, word_at, pages, now)

    @property
    def numbered(self):
        """The last number that a block got."""
        return self.state.tree.numbered

    # the adaptive order

    def take_counts(self, Py_ssize_t group):
        """By class and age: hits and lost ghosts since the last call, and a census of pages and ghosts now; then gained and
        missed since the last call, and pages watched."""
        cdef Pool *g = check_group(&self.state, group)
        cdef int64_t[NUM_CELLS] census
        if g.cells == NULL:
            raise ValueError(f"group {group} learns no order")
        memset(census, 0, sizeof(census))
        count_pages(g, census)
        count_ghosts(g.cells, census)
        rival = np.array([g.cells.rival.gained, g.cells.rival.missed, g.cells.rival.watched], np.int64)
        taken = cell_counts(g.cells.hits), cell_counts(g.cells.lost), cell_counts(census), rival
        memset(g.cells.hits, 0, sizeof(census))
        memset(g.cells.lost, 0, sizeof(census))
        g.cells.inserted = g.cells.rival.gained = g.cells.rival.missed = 0
        return taken

    def set_rank(self, Py_ssize_t group, cells, recency):
        """Evict in this order of cells from now on; all are named. `recency`: pages are ranked by age alone."""
        cdef Pool *g = check_group(&self.state, group)
        cdef int32_t[NUM_CELLS] rank
        cdef char[NUM_CELLS] seen
        cdef int32_t i
        names = np.ascontiguousarray(cells, np.int32)
        cdef bint good = g.cells != NULL and names.shape == (NUM_CELLS,)
        memset(seen, 0, sizeof(seen))
        if good:
            memcpy(rank, memory_of(names), sizeof(rank))
        for i in range(NUM_CELLS if good else 0):
            good = good and 0 <= rank[i] < NUM_CELLS and not seen[rank[i]]
            if good:
                seen[rank[i]] = 1
        if not good:
            raise ValueError(f"group {group}: an order names each of {NUM_CELLS} cells once, if it is adaptive")
        set_rank(g, rank, bool(recency))

    def weigh(self, Py_ssize_t group, depths):
        """A page of a group counts as one age younger for each of these depths, in blocks, that it reaches."""
        cdef Pool *g = check_group(&self.state, group)
        cdef Tree *t = &self.state.tree
        cdef int32_t i
        if g.cells == NULL or t.num_nodes or not 0 < len(depths) <= MOST_YOUNGER:
            raise ValueError(f"group {group}: only an empty adaptive order takes depths, 1 to {MOST_YOUNGER} of them")
        if t.depths == NULL:
            t.depths = <int32_t *> calloc(max(<Py_ssize_t> 1, t.room), 4)
        if t.depths == NULL:
            raise MemoryError("weigh: no memory for depths")
        for i in range(<int32_t> len(depths)):
            g.dear_from[i] = depths[i]
        g.dear = <int32_t> len(depths)

    def fallback(self, Py_ssize_t group):
        """Whether pages go by age alone, and how often it has come to that since an order was learned."""
        cdef Pool *g = check_group(&self.state, group)
        return (False, 0) if g.cells == NULL else (bool(g.cells.recency), g.cells.falls)

    def ghost_room(self, Py_ssize_t group):
        """The number of ghosts, and the bytes they take: room for the most there have been at once."""
        cdef Pool *g = check_group(&self.state, group)
        if g.ghosts == NULL:
            return 0, 0
        return g.ghosts.count, ghosts_bytes(g.ghosts)
