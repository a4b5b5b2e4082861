# Owns: how a store is opened: groups, pools, tree and rows from the numbers that the interface names; what it keeps.
# Does not know: calls.


cdef class OpenStore:
    """What every call works on; the arrays are live, and only the store writes them."""

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
