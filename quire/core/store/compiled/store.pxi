# Owns: the interface: one method per act, each of them checks its arguments and calls the part that does the work.
# Does not know: how anything is done. `interface.py` says what each method does.


@cython.final
cdef class Store:
    """Tree, pools and rows of one cache; its arrays are live, and only it writes them."""

    cdef State state
    cdef dict hashes                      # root -> its event hash
    cdef readonly list pages              # per group: int32 [rows, columns], -1: none
    cdef readonly list slots              # the same: slots of tier 0
    cdef list told                        # slots as an engine was told last, of the groups that it asked for
    cdef readonly list capacity           # per group: int32 [rows]
    cdef readonly list row_counters       # per group: int64 [rows, NUM_COUNTERS]
    cdef readonly list counters           # per group: int64 [NUM_COUNTERS]
    cdef readonly list currents           # per group: int32 [rows]: page outside the columns, -1: none
    cdef readonly list current_slots      # the same: slots of tier 0
    cdef readonly object length           # int32 [rows]
    cdef readonly object handed
    cdef readonly object launched
    cdef readonly object computed
    cdef readonly object committed

    def __cinit__(self, int32_t block_size, groups, int32_t rows, int32_t columns, int order, bint shadows,
                  int offload_min, bint events, Py_ssize_t max_events, bint tails=True, seed=bytes(16),
                  int32_t ghosts=0, int32_t min_uses=1, bint slow=False, bint lasting=False, pools=None,
                  int32_t spacing=0):
        cdef State *s = &self.state
        if (not 1 <= block_size <= 65535 or rows < 1 or columns < 1 or not groups or ghosts < 0
                or order not in (LRU, RELEASE_ORDER, ADAPTIVE)):
            raise ValueError(f"block_size {block_size} (to 65535) rows {rows}, columns {columns}, order {order} (to 2) "
                             f"ghosts {ghosts} or {len(groups)} groups: out of range")
        s.block_size, s.num_groups, s.num_rows, s.num_columns = block_size, len(groups), rows, columns
        s.num_tiers, s.offload_min, s.shadows, s.inherit = len(groups[0][6]), offload_min, shadows, True
        s.tails, s.min_uses, s.slow, s.makes = tails, min_uses, s.num_tiers - 1 if slow else -1, -1
        if (slow and s.num_tiers < 3) or (lasting and not slow):
            raise ValueError(f"{s.num_tiers} tiers: a slow one, whose changes may be noted, is behind two others")
        s.tree.lasting = <int64_t *> malloc(8) if lasting else NULL
        s.tree.num_tiers = s.num_tiers if order == ADAPTIVE else 0
        read_seed(s.tree.seed, seed)
        self.hashes = {}
        state_open(s, events, max_events)
        self.length, self.handed, self.computed, self.committed, self.launched = row_arrays(s)
        self.pages, self.slots, self.capacity, self.currents, self.current_slots = column_arrays(s)
        self.counters, self.row_counters = counter_arrays(s)
        homes = check_homes(groups, pools)
        for i, (*numbers, sizes) in enumerate(groups):
            set_group(s, i, numbers)
            s.pools[i].hears = order != RELEASE_ORDER
            if homes.index(homes[i]) < i:
                share_pool(s, i, homes.index(homes[i]), list(sizes))
                continue
            make_pool(s, i, list(sizes), class_of_empty(order), order == ADAPTIVE, homes.count(homes[i]) > 1)
            if order == ADAPTIVE:
                make_cells(s, i, ghosts)
            elif ghosts:
                make_ghosts(s, i, ghosts)
            if lasting:
                make_notes(s, i)
        if order != RELEASE_ORDER:
            set_ranked(s, spacing)
        if tree_expect(&s.tree, max([1] + [sizes[0] for *_, sizes in groups])):
            raise MemoryError("no memory for the tree")

    def __dealloc__(self):
        state_close(&self.state)

    # roots

    def new_root(self, uint64_t event_hash):
        """A new root; its number is the parent of first blocks in events."""
        cdef int32_t n = new_root(&self.state.tree, event_hash)
        if n < 0:
            raise MemoryError("no memory for a root")
        self.hashes[n] = event_hash
        return n

    def dead_roots(self):
        """Roots that have lost their last child or tip since the last call and have neither now."""
        return dead_roots(&self.state.tree)

    def free_root(self, int32_t node):
        """Forget a root without child and tip."""
        check_root(&self.state, node)
        if at(&self.state.tree, node).child >= 0 or at(&self.state.tree, node).tips:
            raise ValueError(f"root {node} is in use")
        free_root(&self.state.tree, node)
        del self.hashes[node]

    # walks and claims

    def walk(self, Chain chain not None, int32_t root, Py_ssize_t usable, int policy, int32_t first=0):
        """The cached part of the chain under a root (-1: none); policy 0: full blocks, 1: and idle leaves, 2: any."""
        cdef Hit hit = Hit.__new__(Hit)
        check_chain(&self.state, chain, root)
        hit.store, hit.state, hit.chain, hit.path.first = self, &self.state, chain, max(0, first)
        if walk(&self.state, &chain.text, &hit.path, root, max(0, usable), policy):
            raise MemoryError("no memory for a walk")
        return hit

    def find_pending(self, Hit hit not None, Chain chain not None, int32_t root, Py_ssize_t usable):
        """Lengthen a fresh hit by whole blocks that one row's steps in flight compute; the row, -1: none."""
        cdef int32_t owner
        check_hit(hit, self, FOUND, "find_pending")
        check_chain(&self.state, chain, root)
        if hit.chain is not chain or hit.path.root != root or hit.path.pending:
            raise ValueError("find_pending: once, behind a fresh hit of this chain and root")
        owner = find_pending(&self.state, &chain.text, &hit.path, max(0, usable))
        if owner == -2:
            raise MemoryError("find_pending: no memory")
        return owner

    def owner(self, Hit hit not None):
        """The row whose steps in flight compute the last blocks of a hit now, -1: none does."""
        if hit.store is not self or num_landed(&self.state, &hit.path) == hit.path.blocks:
            return -1
        return hit.path.owner

    def claim(self, Hit hit not None, needs=None, bint stays=False):
        """Claim what the hit needs, or of each group the blocks [0, sink) and [first, stop) as far as they were there:
        eviction passes over them. Per group, pages of them that have no copy on tier 0. With `stays` their copies below
        it stay where they are."""
        check_hit(hit, self, FOUND, "claim")
        if not is_still_there(&self.state, &hit.path):
            raise ValueError("claim: what was being computed is another's since this hit was found: walk again")
        return claim_hit(&self.state, hit, needs, stays)

    def unclaim(self, Hit hit not None):
        """Give a claim up."""
        check_hit(hit, self, CLAIMED, "unclaim")
        unclaim(&self.state, &hit.path)

    def freeze(self, Hit hit not None):
        """The claim keeps its pages by number from now on: they may be taken out of the tree."""
        check_hit(hit, self, CLAIMED, "freeze")
        if freeze(&self.state, &hit.path):
            raise MemoryError("freeze: no memory")

    def source_state(self, Hit hit not None):
        """(leaf, held, claims, tiers) of the source node now, the last three per group; (0, (), (), ()) without one."""
        if hit.store is not self or hit.path.source < 0:
            return 0, (), (), ()
        return source_state(&self.state, &hit.path)

    def explain(self, Hit hit not None, Chain chain not None, int32_t root, uint64_t scope, Py_ssize_t usable):
        """Note in a fresh hit why the whole blocks behind it, up to `usable`, are missing; returns the row that
        computes them, -1: none. `interface.py` says more."""
        check_chain(&self.state, chain, root)
        if hit.store is not self or hit.chain is not chain:
            raise ValueError("explain: the hit is not of this chain, or not of this store")
        if explain_hit(&self.state, &chain.text, &hit.path, root, scope, usable):
            raise MemoryError("no memory for an explanation")
        return hit.path.computing

    # rows and what they get

    def seat(self, Hit hit not None, int32_t row, Chain chain not None, int32_t root, bint keep):
        """Make a row live with a claimed hit; settle must follow."""
        check_hit(hit, self, CLAIMED, "seat")
        check_vacant(&self.state, row)
        check_chain(&self.state, chain, root)
        seat_check(&self.state, hit, chain, root, keep)
        if hit.path.blocks and root >= 0:
            find_tip(&self.state, &hit.path, &chain.text, root)
        seat(&self.state, &hit.path, row, &chain.text, root, keep)
        Py_INCREF(chain)
        self.state.rows[row].chain = <PyObject *> chain

    def settle(self, int32_t row, Hit hit not None, asks, priorities, durations, int32_t decode_priority,
               int64_t decode_duration, int32_t handed=-1):
        """Give a seated row what it asks of each group, (first, stop, peak, spare), all on tier 0; its tokens before
        `handed` (-1: all) are to be computed now."""
        cdef Ask ask
        check_hit(hit, self, SEATED, "settle")
        check_live(&self.state, row)
        ask.handed = handed if handed >= 0 else self.state.length[row]
        check_end(&self.state, row, ask.handed)
        ask.row, ask.blocks, ask.priority, ask.duration = row, 0, decode_priority, decode_duration
        ask.wants, ask.inside = self.state.wants, NULL
        wants_check(&ask, asks if type(asks) is list else list(asks), self.state.num_groups, self.state.num_columns)
        hit_check(&self.state, &hit.path, &ask)
        give_retained(&self.state, hit, &ask, priorities, durations)

    def open_snapshots(self, int32_t row, Py_ssize_t group, columns, int32_t peak, priorities, durations,
                       int32_t beside=-1):
        """Pages for what the row's next step writes itself behind these columns, as far as there is room; how many."""
        cdef Ask ask
        cdef Pool *g = check_group(&self.state, group)
        check_live(&self.state, row)
        ask.row, ask.blocks, ask.priority, ask.duration = row, 0, DEFAULT_PRIORITY, -1
        ask.inside, ask.num_inside, ask.peak, ask.beside = g, 0, peak, beside
        snapshots_check(&self.state, &ask, columns if type(columns) is list else list(columns))
        return give_retained(&self.state, None, &ask, priorities, durations)

    def name_points(self, int32_t row, depths):
        """Others may be expected to resume at these depths of a live row's prompt: ascending, at most 64."""
        check_live(&self.state, row)
        name_depths(&self.state, row, depths)

    def hand_out(self, int32_t row, int32_t end):
        """The row's tokens before `end` are being computed, or will come; by default a commit counts so many."""
        check_live(&self.state, row)
        check_end(&self.state, row, end)
        hand_out_part(&self.state, row, end)

    def launch(self, rows, ends):
        """Steps in flight compute these rows up to `ends`; 0: none does any more."""
        launch_rows(&self.state, rows, ends)

    def take_back(self, int32_t row, int32_t end, bint ran):
        """What the row was handed out from `end` on is not computed; `ran`: a step may have begun it."""
        check_back(&self.state, row, end)
        take_back(&self.state, row, end, ran)

    def owned(self, int32_t row):
        """Pages that are the row's own, per group; right after `seat`: pages of its hit that it alone has."""
        cdef int32_t i
        check_live(&self.state, row)
        return tuple([stake_of(&self.state, self.state.pools + i, row).own for i in range(self.state.num_groups)])

    def promised(self, Hit hit not None, Py_ssize_t group):
        """Pages of a claimed hit that one row alone holds and is to give up before its prompt is finished."""
        return promised(&self.state, &hit.path, check_group(&self.state, group))

    def extend(self, int32_t row, asks, priorities, durations):
        """Give a row the columns of a later part of its prompt; the number of new pages, -1: no room."""
        cdef Ask ask
        check_live(&self.state, row)
        ask.row, ask.blocks, ask.priority, ask.duration = row, 0, DEFAULT_PRIORITY, -1
        ask.wants, ask.inside = self.state.wants, NULL
        wants_check(&ask, asks if type(asks) is list else list(asks), self.state.num_groups, self.state.num_columns)
        return give_retained(&self.state, None, &ask, priorities, durations)

    # life

    def commit(self, rows, computed=None, now=None):
        """Make the computed full blocks of the rows findable; the number of pages newly attached. `now`: if it counts."""
        return commit_arrays(&self.state, rows, computed, now)

    def commit_row(self, int32_t row, int32_t computed, now=None):
        """The same for one row."""
        return commit_batch(&self.state, &row, &computed, 1, now)

    def commits(self, int32_t row):
        """Whether what the row computes becomes findable."""
        check_live(&self.state, row)
        return self.state.rows[row].keep != 0 and self.state.rows[row].tip >= 0

    def commit_again(self, int32_t row, int32_t root):
        """A row whose blocks were forgotten with everything commits again, under a new root."""
        check_live(&self.state, row)
        check_root(&self.state, root)
        commit_again(&self.state, row, root)

    @property
    def inherit(self):
        """Whether a page that replaces a cold duplicate takes its copies over; off while a plan may still fail."""
        return bool(self.state.inherit)

    @inherit.setter
    def inherit(self, bint trusted):
        self.state.inherit = trusted

    def grow(self, rows, tokens, k):
        """k more tokens of every row are handed out, or of each as many as an array says, or places of such (tokens
        None); the number of new pages, -1: no room."""
        return grow_arrays(&self.state, rows, tokens, k)

    def append(self, rows, tokens, Py_ssize_t k):
        """Up to k tokens a row that steps have made; a negative one ends those of its row."""
        append_arrays(&self.state, rows, tokens, k)

    def trim(self, int32_t row, int32_t k):
        """Take back the row's last k tokens and the columns beyond the rest; the number of pages given back."""
        check_live(&self.state, row)
        if not 0 <= k <= self.state.length[row] - <int64_t> self.state.committed[row] * self.state.block_size:
            raise ValueError(f"trim: {k} of {self.state.length[row]} tokens, {self.state.committed[row]} blocks final")
        return trim(&self.state, row, k)

    def fork(self, int32_t src, int32_t dst):
        """A second row with the source's tokens, sharing its full pages; the number of slots taken, -1: no room."""
        check_live(&self.state, src)
        check_vacant(&self.state, dst)
        return fork_row(&self.state, src, dst)

    def fork_needs(self, int32_t row):
        """Per group: pages of its own that a fork of the row takes; spare ones count."""
        cdef int32_t i
        check_live(&self.state, row)
        return tuple([fork_pages(&self.state, self.state.pools + i, row) for i in range(self.state.num_groups)])

    def hold(self, Py_ssize_t group, int32_t row, int32_t first, int32_t last):
        """Hold the row's pages in columns [first, last), or the current one; their ids, int32. None: no room for it."""
        cdef Pool *g = check_group(&self.state, group)
        check_live(&self.state, row)
        if not 0 <= first <= last <= self.state.num_columns:
            raise ValueError(f"hold: columns {first} to {last}")
        return hold(&self.state, g, row, first, last)

    def unhold(self, Py_ssize_t group, pages, int64_t now):
        """Let go of held pages, last to first."""
        unhold_array(&self.state, check_group(&self.state, group), pages, now)

    def recut(self, int32_t row, int32_t cut):
        """Replace the row's pages of [cut, committed) by new ones; the number of slots taken, -1: no room."""
        check_live(&self.state, row)
        return recut_row(&self.state, row, cut)

    def tokens(self, int32_t row):
        """A copy of the row's tokens, int32."""
        check_live(&self.state, row)
        return as_array(self.state.rows[row].text.tokens, self.state.rows[row].text.length, 4, np.int32)

    def take_cells(self, Py_ssize_t group):
        """Rows, columns and slots of the cells that are not as they were told last; int32 [3, cells]."""
        cdef Pool *g = check_group(&self.state, group)
        if g.told == NULL:
            told = np.full_like(self.slots[group], -1)
            touched = np.full((self.state.num_rows, 2), (0, self.state.num_columns), np.int32)
            self.told = [*(self.told or ()), told, touched]
            g.told, g.touched = <int32_t *> memory_of(told), <int32_t *> memory_of(touched)
        return take_cells(&self.state, g)

    def copy_rows(self, Py_ssize_t group, rows, out):
        """Copy the used columns of rows to the front of an array's rows; the width that was copied."""
        return copy_rows(&self.state, check_group(&self.state, group), rows, out)

    def num_spares(self, Py_ssize_t group, int32_t row):
        """Open pages the row keeps aside for its forks."""
        check_group(&self.state, group)
        check_live(&self.state, row)
        return self.state.spares[row * self.state.num_groups + group].count

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

    # ends

    def release(self, int32_t row, bint keep_tail, int64_t now, int32_t back=0, bint mark=False):
        """End a row; with keep_tail its computed tokens stay findable: full blocks, and the tail as a partial one. `back`:
        a hint, when its text comes back. With mark where it ended, None: it has left nothing."""
        check_live(&self.state, row)
        check_hint(back)
        return release_row(&self.state, row, keep_tail, now, back, mark)

    def supersede(self, int32_t row, end):
        """A seated row is the next of a session whose last row ended there: text that it leaves behind never comes
        back. Returns that text's page count."""
        check_live(&self.state, row)
        return supersede_row(&self.state, row, end)

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

    def refresh(self, int64_t now):
        """Idle pages whose time is over fall back to the default priority."""
        refresh(&self.state, now)

    # the slow tier

    cdef Pool *slow_pool(self, Py_ssize_t group) except NULL:
        if self.state.slow < 0:
            raise ValueError("this store has no slow tier")
        return check_group(&self.state, group)

    def copy_down(self, Py_ssize_t group, int64_t limit):
        """Begin to copy up to `limit` pages into the slow tier; the moves, int32 [n, 11]."""
        return copy_down(&self.state, self.slow_pool(group), limit)

    def bring_up(self, Py_ssize_t group, pages):
        """Begin to bring pages up from the slow tier; the moves."""
        return bring_up(&self.state, self.slow_pool(group), pages)

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
        self.slow_pool(0)
        for root in roots:
            check_root(&self.state, root)
        restore_arrays(&self.state, np.array(roots, np.int32), blocks, tokens, words, word_at, pages, now)

    @property
    def numbered(self):
        """The last number that a block got."""
        return self.state.tree.numbered

    # the adaptive order

    def is_due(self, Py_ssize_t group):
        """Whether a group's order shall be learned anew."""
        cdef Pool *g = check_group(&self.state, group)
        return g.cells != NULL and g.cells.inserted >= g.cells.due_after

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

    # log

    @property
    def num_moves(self):
        return self.state.log.num_moves

    def is_pending(self, Py_ssize_t group, Py_ssize_t page):
        """Whether a move that waits brings a page its bytes: no plan has it yet."""
        cdef Pool *g = check_group(&self.state, group)
        return bool(is_pending(&self.state.log, g.index, <int32_t> page))

    def take_moves(self):
        """All moves since the last call, int32 [n, 11]."""
        return take_moves(&self.state.log)

    @property
    def num_events(self):
        """What waits in the log: more than 0 when there are events to take."""
        return log_waiting(&self.state.log)

    @property
    def num_lost(self):
        """Hashes that the log has given up since events were last taken."""
        return self.state.log.num_lost

    def take_events(self, bint whole=False):
        """All events since the last call, or instead the whole state: (records, hashes, details, tokens, lost)."""
        if whole and self.state.log.batches != NULL and log_whole(&self.state):
            log_discard(&self.state.log)
            raise MemoryError("take_events: no memory for the whole state")
        return take_events(&self.state.log)

    # questions

    def available(self, Py_ssize_t group):
        """Slots of tier 0 that could be taken now and are not reserved; perhaps below zero while claims are open."""
        return check_group(&self.state, group).room.available

    def reserved(self, Py_ssize_t group):
        """Slots reserved for rows; `available` is net of them."""
        return check_group(&self.state, group).room.reserved

    def num_empty(self, Py_ssize_t group, Py_ssize_t tier):
        return check_tier(&self.state, group, tier).num_empty

    def num_idle(self, Py_ssize_t group, Py_ssize_t tier):
        return check_tier(&self.state, group, tier).num_idle

    def num_shadow(self, Py_ssize_t group, Py_ssize_t tier):
        return check_tier(&self.state, group, tier).num_shadow

    @property
    def num_nodes(self):
        """Blocks in the tree; roots do not count."""
        return self.state.tree.num_nodes

    def nbytes(self):
        """(metadata, tokens): bytes of tree, index and pools."""
        return nbytes(&self.state)

    def page_info(self, Py_ssize_t group, Py_ssize_t page):
        """One page now."""
        return page_info(check_page(&self.state, group, page), <int32_t> page)

    def page_in(self, Py_ssize_t group, Py_ssize_t tier, Py_ssize_t slot):
        """The page that has a copy in a slot, -1: none."""
        cdef Order *o = check_tier(&self.state, group, tier)
        if not 0 <= slot < o.size:
            raise LookupError(f"no slot {slot}")
        return o.slots[slot].page

    def page_slots(self, Py_ssize_t group, Py_ssize_t page):
        """The page's slot per tier, -1: no copy there."""
        return slots_tuple(check_page(&self.state, group, page), <int32_t> page)

    def slots_in(self, Py_ssize_t group, Py_ssize_t tier, pages):
        """The slot of each of these pages in a tier, int32, -1: no copy there."""
        check_tier(&self.state, group, tier)
        return slots_in(self.state.pools + group, <int32_t> tier, pages)

    def dump(self):
        """Everything, as plain values that are the same in both modules."""
        return dump(&self.state, self.hashes)

    def map_slots(self, Py_ssize_t group, Py_ssize_t tier, Py_ssize_t first, Py_ssize_t stop):
        """What lies in the slots [first, stop), cut to those there are: [slots, 4], by SlotColumn."""
        cdef Order *o = check_tier(&self.state, group, tier)
        first, stop = max(0, first), min(stop, <Py_ssize_t> o.size)
        return map_slots(self.state.pools + group, <int32_t> tier, <int32_t> first, <int32_t> max(first, stop))

    def map_order(self, Py_ssize_t group, Py_ssize_t tier, Py_ssize_t limit):
        """Slots of shadows and idle pages in the order in which they would be taken, claimed or not; so many."""
        check_tier(&self.state, group, tier)
        return map_order(self.state.pools + group, <int32_t> tier, limit)

    def map_nodes(self, Py_ssize_t first, Py_ssize_t limit):
        """Nodes from a number on, by NodeColumn, and the number to go on from, -1: that was all."""
        if first < 0 or limit < 1:
            raise ValueError(f"{limit} nodes from number {first} on")
        return map_nodes(&self.state, first, limit)
