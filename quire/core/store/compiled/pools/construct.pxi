# Owns: how a store is made and taken down: its C memory, and the NumPy arrays of its rows, which only it writes.
# Does not know: any act.

cdef uint64_t GROUP_SALT = 0x9E3779B97F4A7C15


cdef int state_open(State *s, bint events, Py_ssize_t max_events) except -1:
    """Memory for the rows, the tree and the log."""
    cdef Py_ssize_t rows = s.num_rows, stakes = rows * s.num_groups
    cdef int32_t row
    s.pools = <Pool *> calloc(s.num_groups, sizeof(Pool))
    s.rooms = <Room *> calloc(s.num_groups, sizeof(Room))
    s.before = <int64_t *> malloc(8 * NUM_COUNTERS * s.num_groups)
    s.rows = <Row *> calloc(rows, sizeof(Row))
    s.sights = <Sight *> calloc(rows, sizeof(Sight))
    s.spares = <Spares *> calloc(stakes, sizeof(Spares))
    s.path = <int32_t *> malloc(4 * <Py_ssize_t> s.num_columns)
    s.runs = <int32_t *> malloc(16 * s.num_groups)
    s.needs = <int64_t *> malloc(8 * s.num_groups)
    s.wants = <Want *> malloc(s.num_groups * sizeof(Want))
    s.stakes = <Stake *> calloc(stakes, sizeof(Stake))
    s.written = <int32_t *> calloc(stakes, 4)
    s.edge = <int32_t *> calloc(rows, 4)
    s.prompt = <int32_t *> calloc(rows, 4)
    s.due = <int32_t *> calloc(rows, 4)
    s.opening = <uint32_t *> calloc(rows, 4)
    s.crossing = <int32_t *> malloc(4 * rows)
    if not (s.pools and s.rooms and s.before and s.rows and s.sights and s.spares and s.path and s.runs and s.needs and s.crossing
            and s.wants and s.stakes and s.written and s.edge and s.prompt and s.due
            and s.opening):
        raise MemoryError("no memory for the rows")
    if tree_open(&s.tree, s.block_size, s.num_groups, events) or log_open(&s.log, s.num_groups, events, max_events):
        raise MemoryError("no memory for the tree")
    for row in range(rows):
        s.rows[row].tip = -1
    return 0


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
            if s.pools[i].first == i:
                pool_close(s.pools + i)
    tree_close(&s.tree)
    log_close(&s.log)
    free(s.pools)
    free(s.rooms)
    free(s.before)
    free(s.rows)
    free(s.sights)
    free(s.spares)
    free(s.path)
    free(s.runs)
    free(s.needs)
    free(s.wants)
    free(s.stakes)
    free(s.written)
    free(s.edge)
    free(s.prompt)
    free(s.due)
    free(s.opening)
    free(s.crossing)


cdef list row_arrays(State *s):
    """[length, handed, computed, committed, launched], each int32 [rows]."""
    cdef list arrays = [np.zeros(s.num_rows, np.int32) for _ in range(5)]
    s.length, s.handed = <int32_t *> memory_of(arrays[0]), <int32_t *> memory_of(arrays[1])
    s.computed, s.committed = <int32_t *> memory_of(arrays[2]), <int32_t *> memory_of(arrays[3])
    s.launched = <int32_t *> memory_of(arrays[4])
    return arrays


cdef tuple column_arrays(State *s):
    """(pages, slots, capacity, currents, current slots): per group int32 [rows, columns] twice, int32 [rows]."""
    cdef int32_t i, rows = s.num_rows, columns = s.num_columns
    pages = [np.full((rows, columns), -1, np.int32) for i in range(s.num_groups)]
    slots = [np.full((rows, columns), -1, np.int32) for i in range(s.num_groups)]
    capacity = [np.zeros(rows, np.int32) for i in range(s.num_groups)]
    currents = [np.full(rows, -1, np.int32) for i in range(s.num_groups)]
    current_slots = [np.full(rows, -1, np.int32) for i in range(s.num_groups)]
    for i in range(s.num_groups):
        s.pools[i].row_pages = <int32_t *> memory_of(pages[i])
        s.pools[i].row_slots = <int32_t *> memory_of(slots[i])
        s.pools[i].capacity = <int32_t *> memory_of(capacity[i])
        s.pools[i].currents = <int32_t *> memory_of(currents[i])
        s.pools[i].current_slots = <int32_t *> memory_of(current_slots[i])
    return pages, slots, capacity, currents, current_slots


cdef tuple counter_arrays(State *s):
    """(counters, row counters): per group int64 [NUM_COUNTERS] and [rows, NUM_COUNTERS]."""
    cdef int32_t i
    counters = [np.zeros(NUM_COUNTERS, np.int64) for i in range(s.num_groups)]
    row_counters = [np.zeros((s.num_rows, NUM_COUNTERS), np.int64) for i in range(s.num_groups)]
    for i in range(s.num_groups):
        s.pools[i].counters = <int64_t *> memory_of(counters[i])
        s.pools[i].row_counters = <int64_t *> memory_of(row_counters[i])
    return counters, row_counters


cdef int set_group(State *s, int32_t index, numbers) except -1:
    """What a group needs and keeps: tail, sink, keep, every, extra, current."""
    cdef Pool *g = s.pools + index
    cdef int32_t *tails
    g.tail, g.sink, g.keep, g.every, g.extra, g.current = numbers
    if not makes_sense(g):
        raise ValueError(f"group {index}: {numbers}: a number is out of range, or does not go with another")
    g.leaves_only = g.tail < 0
    if g.tail >= 0:
        tails = s.tree.states + s.num_groups + 2 * s.tree.num_tails
        tails[0], tails[1] = index, g.tail
        s.tree.num_tails += 1
    s.mixed = s.mixed or g.tail >= 0
    s.bounded = s.bounded or g.keep >= 0
    s.num_current += g.current
    if g.current:
        s.tree.states[s.tree.num_states] = index
        s.tree.num_states += 1
    return 0


cdef void set_kinds(State *s, int32_t spacing) noexcept nogil:
    """What guessed resume points take: of each window the pages before it, of each state one."""
    cdef int64_t windows = 0, pages = 0, slots = 0
    cdef int32_t i
    for i in range(s.num_groups):
        if s.pools[i].tail >= 0:
            windows += s.num_current == 0
            pages += s.pools[i].tail
            slots = slots if slots else s.pools[i].num_pages
    kinds_open(&s.tree.kinds, spacing, windows, pages, max(slots, <int64_t> 1), s.num_groups)


cdef void set_ranked(State *s, int32_t spacing) noexcept nogil:
    """In an order that ranks: pages of windows and snapshots may be passed."""
    cdef int32_t i
    for i in range(s.num_groups):
        s.pools[i].overtakes = s.pools[i].current
        s.pools[i].ranked = s.pools[i].tail >= 0 and not s.pools[i].current
        if s.pools[i].ranked:
            s.most_read = max(s.most_read, s.pools[i].tail)
        s.asks = s.asks or (s.pools[i].ranked and s.num_current == 0)
        s.has_kinds = s.has_kinds or s.pools[i].ranked or s.pools[i].overtakes
        s.pools[i].reads = s.pools[i].leaves_only and s.pools[i].cells != NULL and s.mixed
    set_kinds(s, spacing)


cdef int32_t num_near(Pool *g) noexcept nogil:
    """Slots outside the slow tier: what an order learns from, and what is remembered, goes by them."""
    return g.num_pages if g.slow < 0 else g.num_pages - g.tiers[g.slow].size


cdef int make_notes(State *s, int32_t index) except -1:
    """Room to note what changes in the slow tier."""
    cdef Pool *g = s.pools + index
    g.notes = <Notes *> calloc(1, sizeof(Notes))
    if g.notes == NULL or notes_open(g.notes, g.tiers[g.slow].size, g.owners != NULL):
        raise MemoryError(f"group {index}: no memory for notes")
    return 0


cdef int make_tenure(State *s) except -1:
    """Room to note which pages' copies change, in every pool."""
    cdef Pool *g
    cdef int32_t i, p
    for i in range(s.num_groups):
        g = s.pools + i
        for p in range(g.num_pages):
            if page_at(g, p).holders >= 0:
                raise ValueError(f"tenure is noted from the first page on, and page {p} of group {i} is there")
        if g.tenure != NULL:
            continue
        if g.first < i:
            g.tenure = s.pools[g.first].tenure
            continue
        g.tenure = <Tenure *> calloc(1, sizeof(Tenure))
        if g.tenure == NULL or tenure_open(g.tenure, g.num_pages, &s.makes):
            raise MemoryError(f"group {i}: no memory for tenure")
    return 0


cdef int make_cells(State *s, int32_t index, int32_t ghosts) except -1:
    """What the adaptive order knows of a pool: nothing yet."""
    cdef Pool *g = s.pools + index
    cdef int32_t[NUM_CELLS] rank
    cdef int32_t i
    g.cells = <Cells *> calloc(1, sizeof(Cells))
    if (g.cells == NULL or cells_open(g.cells, num_near(g), ghosts, s.num_columns, g.num_pages)
            or level_open(g, DEFAULT_PRIORITY)):
        raise MemoryError(f"group {g.index}: no memory for what its order learns")
    g.ghosts = &g.cells.ghosts
    g.cells.pages, g.cells.stride = g.pages + g.stride - sizeof(Memory), g.stride
    for i in range(NUM_CELLS):
        rank[i] = FIRST_RANK[i]
    g.cells.recency = True    # nothing is learned yet
    set_rank(g, rank, True)
    return 0


cdef int make_ghosts(State *s, int32_t index, int32_t ghosts) except -1:
    """Room for what is remembered of a group whose order learns nothing."""
    cdef Pool *g = s.pools + index
    g.ghosts = <Ghosts *> calloc(1, sizeof(Ghosts))
    if g.ghosts == NULL or ghosts_open(g.ghosts, <int64_t> ghosts * num_near(g)):
        raise MemoryError(f"group {g.index}: no memory for its ghosts")
    return 0


cdef int share_pool(State *s, int32_t index, int32_t first, list sizes) except -1:
    """A group joins the pool of an earlier one: all memory is the pool's, the rows' tables and numbers its own."""
    cdef Pool *g = s.pools + index
    cdef Pool *other = s.pools + first
    cdef int32_t[MAX_TIERS] slots
    cdef int32_t t
    if sizes != [other.tiers[t].size for t in range(s.num_tiers)]:
        raise ValueError(f"group {index}: slots {sizes}, and group {first} of its pool has others")
    g.index, g.first, g.num_tiers, g.num_pages, g.slow = index, first, s.num_tiers, other.num_pages, s.slow
    g.room, g.tree, g.pages, g.pages_memory, g.stride = other.room, other.tree, other.pages, other.pages_memory, other.stride
    g.tiers, g.stays, g.owners, g.empty_class = other.tiers, other.stays, other.owners, other.empty_class
    g.cells, g.ghosts, g.notes = other.cells, other.ghosts, other.notes  # and the tenure, once somebody asks for it
    g.salt = <uint64_t> index * GROUP_SALT
    for t in range(s.num_tiers):
        slots[t] = sizes[t]
    if s.log.batches != NULL:
        log_created(&s.log, index, slots, s.num_tiers)
    return 0


cdef int make_pool(State *s, int32_t index, list sizes, int32_t empty_class, bint adaptive, bint shared) except -1:
    """Pages and slots of a group: so many slots per tier; `shared`: others will join."""
    cdef Pool *g = s.pools + index
    cdef int32_t[MAX_TIERS] slots
    cdef int32_t t
    if not 1 <= len(sizes) <= MAX_TIERS or len(sizes) != s.num_tiers or min(sizes) < 0 or sum(sizes) < 1:
        raise ValueError(f"group {index}: slots {sizes}: 1 to 8 tiers, as many in all groups, not all empty")
    if sum(sizes) > 0x7FFFFF00:
        raise ValueError(f"group {index}: {sum(sizes)} slots are too many")
    for t in range(s.num_tiers):
        slots[t] = sizes[t]
    g.index, g.first, g.num_tiers, g.num_pages, g.slow = index, index, s.num_tiers, sum(sizes), s.slow
    g.room = s.rooms + index
    if shared:
        g.owners = <uint16_t *> calloc(g.num_pages, 2)
        if g.owners == NULL:
            raise MemoryError(f"group {index}: no memory for {g.num_pages} pages")
    g.tree = &s.tree
    if pool_open(g, slots, empty_class, adaptive):
        raise MemoryError(f"group {index}: no memory for {sum(sizes)} slots")
    if s.log.batches != NULL:
        log_created(&s.log, index, slots, s.num_tiers)
    return 0
