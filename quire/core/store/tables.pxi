# Owns: construction: the arrays of a store, the NumPy memory of its rows, taking both down again.
# Does not know: any act.


cdef void *memory_of(object array) except NULL:
    """Where a NumPy array's items are; the array is kept by the store."""
    cdef Py_buffer view
    cdef void *memory
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    memory = view.buf
    PyBuffer_Release(&view)
    return memory


cdef int pool_open(Pool *g, const int32_t *sizes, int32_t empty_class) noexcept nogil:
    """All pages free, all slots empty; -1 without memory."""
    cdef int32_t p, t, slot
    g.stride = sizeof(Page) + 4 * (g.num_tiers - 1)
    g.empty_class = empty_class
    g.pages = <char *> calloc(max(1, g.num_pages), g.stride)
    g.tiers = <Order *> calloc(g.num_tiers, sizeof(Order))
    if g.pages == NULL or g.tiers == NULL:
        return -1
    for t in range(g.num_tiers):
        if order_open(g.tiers + t, sizes[t]):
            return -1
        for slot in range(sizes[t]):
            list_empty(g, t, slot)
    g.free = -1
    for p in range(g.num_pages - 1, -1, -1):
        for t in range(g.num_tiers):
            page_at(g, p).slot[t] = -1
        page_at(g, p).claimed = DEFAULT_PRIORITY
        push_page(g, p)
    return 0


cdef void pool_close(Pool *g) noexcept nogil:
    cdef int32_t t
    if g.tiers != NULL:
        for t in range(g.num_tiers):
            free(g.tiers[t].slots)
    free(g.tiers)
    free(g.pages)
    free(g.duration)
    free(g.heap)


cdef void state_close(State *s) noexcept:
    cdef int32_t i
    if s.rows != NULL:
        for i in range(s.num_rows):
            if s.rows[i].chain != NULL:
                Py_DECREF(<object> s.rows[i].chain)
    if s.spares != NULL:
        for i in range(s.num_rows * s.num_groups):
            free(s.spares[i].pages)
    if s.pools != NULL:
        for i in range(s.num_groups):
            pool_close(s.pools + i)
    tree_close(&s.tree)
    log_close(&s.log)
    free(s.pools)
    free(s.rows)
    free(s.spares)
    free(s.path)
    free(s.runs)
    free(s.needs)
    free(s.wants)
    free(s.stakes)
    free(s.edge)
    free(s.due)
    free(s.crossing)


cdef class Tables:
    """The state of a store and its live NumPy views, which only the store writes."""

    cdef State state
    cdef dict numbers                     # root -> its event hash
    cdef readonly list pages              # per group: int32 [rows, columns], -1: none
    cdef readonly list slots              # the same: slots of tier 0
    cdef readonly list capacity           # per group: int32 [rows]
    cdef readonly list row_counters       # per group: int64 [rows, NUM_COUNTERS]
    cdef readonly list counters           # per group: int64 [NUM_COUNTERS]
    cdef readonly list currents           # per group: int32 [rows]: page outside the columns, -1: none
    cdef readonly list current_slots      # the same: slots of tier 0
    cdef readonly object length           # int32 [rows]
    cdef readonly object handed
    cdef readonly object computed
    cdef readonly object committed

    def __cinit__(self, int32_t block_size, groups, int32_t rows, int32_t columns, int order, bint shadows,
                  int offload_min, bint events, Py_ssize_t max_events, bint tails=True, seed=bytes(16)):
        cdef State *s = &self.state
        if not 1 <= block_size <= 65535 or rows < 1 or columns < 1 or not groups or order not in (0, 1):
            raise ValueError(f"block_size {block_size} (to 65535) rows {rows}, columns {columns}, order {order} (0, 1) "
                             f"or {len(groups)} groups: out of range")
        s.block_size, s.num_groups, s.num_rows, s.num_columns = block_size, len(groups), rows, columns
        s.num_tiers, s.offload_min, s.shadows, s.inherit = len(groups[0][6]), offload_min, shadows, True
        s.tails = tails
        read_seed(s.tree.seed, seed)
        self.numbers = {}
        s.pools = <Pool *> calloc(s.num_groups, sizeof(Pool))
        s.rows = <Row *> calloc(rows, sizeof(Row))
        s.spares = <Spares *> calloc(<Py_ssize_t> rows * s.num_groups, sizeof(Spares))
        s.path = <int32_t *> malloc(4 * <Py_ssize_t> columns)
        s.runs = <int32_t *> malloc(8 * s.num_groups)
        s.needs = <int64_t *> malloc(8 * s.num_groups)
        s.wants = <Want *> malloc(s.num_groups * sizeof(Want))
        s.stakes = <Stake *> calloc(<Py_ssize_t> rows * s.num_groups, sizeof(Stake))
        s.edge = <int32_t *> calloc(rows, 4)
        s.due = <int32_t *> calloc(rows, 4)
        s.crossing = <int32_t *> malloc(4 * <Py_ssize_t> rows)
        if not (s.pools and s.rows and s.spares and s.path and s.runs and s.needs and s.crossing
                and s.wants and s.stakes and s.edge and s.due):
            raise MemoryError("no memory for the rows")
        if tree_open(&s.tree, block_size, s.num_groups, events) or log_open(&s.log, s.num_groups, events, max_events):
            raise MemoryError("no memory for the tree")
        for row in range(rows):
            s.rows[row].tip = -1
        self.make_views(rows, columns)
        for i, (*numbers, sizes) in enumerate(groups):
            self.set_numbers(i, numbers)
            self.make_pool(i, list(sizes), FIRST + DEFAULT_PRIORITY if order else EMPTY)
        if tree_expect(&s.tree, max([sizes[0] for *_, sizes in groups])):
            raise MemoryError("no memory for the tree")

    cdef int make_views(self, int32_t rows, int32_t columns) except -1:
        cdef State *s = &self.state
        cdef int32_t i
        self.length, self.handed, self.computed, self.committed = [np.zeros(rows, np.int32) for _ in range(4)]
        s.length, s.handed = <int32_t *> memory_of(self.length), <int32_t *> memory_of(self.handed)
        s.computed, s.committed = <int32_t *> memory_of(self.computed), <int32_t *> memory_of(self.committed)
        self.pages = [np.full((rows, columns), -1, np.int32) for _ in range(s.num_groups)]
        self.slots = [np.full((rows, columns), -1, np.int32) for _ in range(s.num_groups)]
        self.capacity = [np.zeros(rows, np.int32) for _ in range(s.num_groups)]
        self.row_counters = [np.zeros((rows, NUM_COUNTERS), np.int64) for _ in range(s.num_groups)]
        self.counters = [np.zeros(NUM_COUNTERS, np.int64) for _ in range(s.num_groups)]
        self.currents = [np.full(rows, -1, np.int32) for _ in range(s.num_groups)]
        self.current_slots = [np.full(rows, -1, np.int32) for _ in range(s.num_groups)]
        for i in range(s.num_groups):
            s.pools[i].row_pages = <int32_t *> memory_of(self.pages[i])
            s.pools[i].row_slots = <int32_t *> memory_of(self.slots[i])
            s.pools[i].capacity = <int32_t *> memory_of(self.capacity[i])
            s.pools[i].row_counters = <int64_t *> memory_of(self.row_counters[i])
            s.pools[i].counters = <int64_t *> memory_of(self.counters[i])
            s.pools[i].currents = <int32_t *> memory_of(self.currents[i])
            s.pools[i].current_slots = <int32_t *> memory_of(self.current_slots[i])
        return 0

    cdef int set_numbers(self, int32_t index, numbers) except -1:
        """What a group needs and keeps: tail, sink, keep, every, extra, current."""
        cdef State *s = &self.state
        cdef Pool *g = s.pools + index
        g.tail, g.sink, g.keep, g.every, g.extra, g.current = numbers
        if (min(g.tail, g.keep) < -1 or min(g.sink, g.every, g.extra) < 0 or g.current not in (0, 1)
                or (g.tail < 0 and g.keep >= 0) or (g.current and (g.tail, g.sink, g.keep, g.extra) != (1, 0, 0, 0))):
            raise ValueError(f"group {index}: {numbers}: a number is out of range, or does not go with another")
        s.mixed = s.mixed or g.tail >= 0
        s.bounded = s.bounded or g.keep >= 0
        s.num_current += g.current
        return 0

    cdef int make_pool(self, int32_t index, list sizes, int32_t empty_class) except -1:
        cdef State *s = &self.state
        cdef Pool *g = s.pools + index
        cdef int32_t[MAX_TIERS] slots
        cdef int32_t t
        if not 1 <= len(sizes) <= MAX_TIERS or len(sizes) != s.num_tiers or min(sizes) < 0 or sizes[0] < 1:
            raise ValueError(f"group {index}: slots {sizes}: 1 to 8 tiers, as many in all groups, tier 0 not empty")
        if sum(sizes) > 0x7FFFFF00:
            raise ValueError(f"group {index}: {sum(sizes)} slots are too many")
        for t in range(s.num_tiers):
            slots[t] = sizes[t]
        g.index, g.num_tiers, g.num_pages = index, s.num_tiers, sum(sizes)
        if pool_open(g, slots, empty_class):
            raise MemoryError(f"group {index}: no memory for {sum(sizes)} slots")
        if s.log.batches != NULL:
            log_created(&s.log, index, slots, s.num_tiers)
        return 0

    def __dealloc__(self):
        state_close(&self.state)
