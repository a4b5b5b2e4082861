# Owns: what the steps of an engine call: look up, claim, seat rows and give them pages, until they are released. Each
# method checks its arguments and calls the part that does the work; `interface/row_calls.py` says what it does.
# Does not know: how anything is done.


cdef class RowCalls(OpenStore):
    """Rows and what they hold."""

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

    def recut(self, int32_t row, int32_t cut, int32_t shared=0):
        """Replace the row's pages from `cut` on that others may read by new ones; slots taken, -1: no room."""
        check_live(&self.state, row)
        return recut_row(&self.state, row, cut, shared)

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

    # time

    def refresh(self, int64_t now):
        """Idle pages whose time is over fall back to the default priority."""
        refresh(&self.state, now)

    def is_due(self, Py_ssize_t group):
        """Whether a group's order shall be learned anew."""
        cdef Pool *g = check_group(&self.state, group)
        return g.cells != NULL and g.cells.inserted >= g.cells.due_after

    # events and moves that wait

    @property
    def num_events(self):
        """What waits in the log: more than 0 when there are events to take."""
        return log_waiting(&self.state.log)

    @property
    def num_lost(self):
        """Hashes that the log has given up since events were last taken."""
        return self.state.log.num_lost

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

    # room

    def available(self, Py_ssize_t group):
        """Slots of tier 0 that could be taken now and are not reserved; perhaps below zero while claims are open."""
        return check_group(&self.state, group).room.available

    def reserved(self, Py_ssize_t group):
        """Slots reserved for rows; `available` is net of them."""
        return check_group(&self.state, group).room.reserved
