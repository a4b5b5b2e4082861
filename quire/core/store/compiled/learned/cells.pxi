# Owns: what the adaptive order knows of one pool: the time, each page's uses, the counts it learns from, the order it
# has learned, ghosts; and the lists of cells: of each priority in use one for pages that are passed and one per
# cell, their sentinels behind those of the classes, with a bitmap of those that are not empty, in the learned order.
# Does not know: the tree, when a page is used.

cdef enum:
    WATCHED = 0x80            # of a page: the order is judged by it
    CLASS = 0x07              # of a page: its class,
    YOUNGER = 3               # and behind it, in four bits, ages that it counts as younger
    IN_COVERED = 0xFFFF       # of a page: it waits among the covered

cdef packed struct Memory:    # of a page, right behind it: 32 bytes together where there is one tier
    uint16_t kind             # the list of its priority in which its hottest copy waits, or IN_COVERED
    unsigned char uses
    unsigned char reuse       # class, ages that it is YOUNGER, and whether it is WATCHED
    int64_t used              # when an admission last used it

cdef struct Cells:
    int64_t now               # the latest time given to the store; it never goes back
    int64_t asked             # when the last admission was: each is later than the one before, whatever the clock says
    int64_t aged              # when pages last went on to their next bins: they are listed by their ages then
    int64_t made              # pages made since
    int64_t aging_after
    int64_t inserted          # pages that took a place in the tree since the order was learned
    int64_t due_after
    int32_t fresh             # class of the pages that are being made: that of the row they are for
    int32_t num_levels        # priorities that have lists
    int32_t[MAX_PRIORITY + 1] level_of    # -1: none yet
    int32_t[NUM_LISTS] list_at            # in the learned order
    int32_t[NUM_LISTS] rank_of            # and the place of each list in it
    int64_t[NUM_CELLS] hits
    int64_t[NUM_CELLS] lost
    unsigned char *met        # per column of the row in hand: uses of its block with this one, if it was there before
    int32_t met_first         # columns of which it speaks
    int32_t met_last
    int32_t met_class         # of the ghost that was met last
    int64_t bin_used          # the last age looked at, and its bin: pages of one prompt are of one age
    int64_t bin_now
    int32_t bin
    int32_t listed_bin        # and that of the last page that was listed
    int64_t listed_used
    char *pages               # the memory of the first page, and how far it is from one to the next
    Py_ssize_t stride
    Ghosts ghosts
    Rival rival
    int64_t falls             # how often it fell back to age alone since an order was learned
    bint recency              # all pages are listed as if of one class: so the oldest go first


cdef inline Memory *memory_at(Cells *c, int32_t p) noexcept nogil:
    return <Memory *> (c.pages + p * c.stride)


cdef int cells_open(Cells *c, int32_t num_pages, int32_t ghosts, int32_t columns, int32_t all_pages) noexcept nogil:
    """-1 without memory."""
    cdef int32_t i
    c.due_after = (<int64_t> num_pages + 1) // 2
    c.aging_after = (<int64_t> num_pages + AGING - 1) // AGING
    c.asked = c.listed_used = -1
    for i in range(MAX_PRIORITY + 1):
        c.level_of[i] = -1
    c.list_at[0] = c.rank_of[0] = 0       # pages that are passed go first
    c.met = <unsigned char *> calloc(columns + 1, 1)
    if c.met == NULL or rival_open(&c.rival, all_pages):
        return -1
    return ghosts_open(&c.ghosts, <int64_t> ghosts * num_pages)


cdef void cells_close(Cells *c) noexcept nogil:
    free(c.met)
    ghosts_close(&c.ghosts)
    rival_close(&c.rival)


cdef Py_ssize_t cells_bytes(Cells *c, int32_t num_tiers) noexcept nogil:
    """All that the adaptive order takes besides what is in pages and nodes."""
    cdef Py_ssize_t lists = c.num_levels * (sizeof(Level) + NUM_LISTS * sizeof(Slot))
    return sizeof(Cells) + <Py_ssize_t> ghosts_bytes(&c.ghosts) + rival_bytes(&c.rival) + num_tiers * lists


cdef inline Level *level_at(Order *o, int32_t kind) noexcept nogil:
    return o.levels + (kind - NUM_CLASSES) // NUM_LISTS


cdef inline void push_cell(Order *o, Cells *c, int32_t slot, int32_t kind) noexcept nogil:
    cdef Level *level = level_at(o, kind)
    cdef int32_t end = o.size + kind, tail = o.slots[end].prev, i = (kind - NUM_CLASSES) % NUM_LISTS
    cdef int32_t place = c.rank_of[i], above = class_at(level.priority, False)
    o.slots[tail].next = slot
    o.slots[slot].prev, o.slots[slot].next = tail, end
    o.slots[end].prev = slot
    level.filled[place >> 6] |= <uint64_t> 1 << (place & 63)
    level.count += 1
    o.filled[above >> 6] |= <uint64_t> 1 << (above & 63)
    if level.cursor[i] == end:
        level.cursor[i] = slot
    if tail == end:
        level.due[i] = UNSEEN


cdef inline void push_front(Order *o, Cells *c, int32_t slot, int32_t kind) noexcept nogil:
    cdef int32_t end = o.size + kind, head = o.slots[end].next
    push_cell(o, c, slot, kind)
    if head < o.size:
        o.slots[o.slots[slot].prev].next = end    # out again at the back
        o.slots[end].prev = o.slots[slot].prev
        o.slots[slot].prev, o.slots[slot].next = end, head
        o.slots[end].next = o.slots[head].prev = slot
        level_at(o, kind).cursor[(kind - NUM_CLASSES) % NUM_LISTS] = slot
        level_at(o, kind).due[(kind - NUM_CLASSES) % NUM_LISTS] = UNSEEN


cdef inline void push_released(Order *o, Cells *c, int32_t slot, int32_t kind) noexcept nogil:
    """A page that its last child has released goes to the front of its cell if it is no younger than the first there:
    the oldest go first, and what came together goes together. Else to the back."""
    cdef int32_t head = o.slots[o.size + kind].next
    if head < o.size and memory_at(c, o.slots[slot].page).used > memory_at(c, o.slots[head].page).used:
        push_cell(o, c, slot, kind)
    else:
        push_front(o, c, slot, kind)


cdef inline void unlist_cell(Order *o, Cells *c, int32_t slot, int32_t kind) noexcept nogil:
    cdef Level *level = level_at(o, kind)
    cdef int32_t before = o.slots[slot].prev, after = o.slots[slot].next, i = (kind - NUM_CLASSES) % NUM_LISTS
    cdef int32_t place = c.rank_of[i], above = class_at(level.priority, False)
    o.slots[before].next, o.slots[after].prev = after, before
    o.slots[slot].prev = -1
    level.count -= 1
    if level.cursor[i] == slot:
        level.cursor[i] = after
    if before >= o.size:
        level.due[i] = UNSEEN
    if before == after:
        level.filled[place >> 6] &= ~(<uint64_t> 1 << (place & 63))
    if level.count == 0:
        o.filled[above >> 6] &= ~(<uint64_t> 1 << (above & 63))


cdef inline void rewind_cell(Order *o, int32_t kind) noexcept nogil:
    """A page of this list is no longer claimed: it may lie before the cursor."""
    level_at(o, kind).cursor[(kind - NUM_CLASSES) % NUM_LISTS] = o.slots[o.size + kind].next


cdef void order_ranked(Order *o, Cells *c) noexcept nogil:
    """The order of the lists has changed: their bitmaps follow."""
    cdef int32_t k, i, place, end
    for k in range(c.num_levels):
        memset(o.levels[k].filled, 0, sizeof(o.levels[k].filled))
        for i in range(NUM_LISTS):
            end, place = o.size + NUM_CLASSES + k * NUM_LISTS + i, c.rank_of[i]
            if o.slots[end].next != end:
                o.levels[k].filled[place >> 6] |= <uint64_t> 1 << (place & 63)


cdef inline int32_t class_in(Memory *memory) noexcept nogil:
    return memory.reuse & CLASS


cdef inline int32_t younger_age(Memory *memory, int32_t age) noexcept nogil:
    """The age as which a page's counts when it is listed: what costs more to compute again is younger."""
    return max(0, age - (memory.reuse >> YOUNGER & MOST_YOUNGER))


cdef inline int64_t grown_at(Memory *memory, int32_t age) noexcept nogil:
    """When a page becomes too old for a list of this age."""
    age += memory.reuse >> YOUNGER & MOST_YOUNGER
    return memory.used + EDGES[age] if age < NUM_AGES - 1 else 2**63 - 1


cdef void age_list(Order *o, Cells *c, int32_t kind, int32_t age) noexcept nogil:
    """Pages at the front of a list that have become too old for it go to the back of the one they belong in now."""
    cdef int32_t slot = o.slots[o.size + kind].next, older, first = kind - (kind - NUM_CLASSES) % NUM_LISTS
    cdef Memory *memory
    while slot < o.size:
        memory = memory_at(c, o.slots[slot].page)
        older = younger_age(memory, age_bin(c.aged - memory.used))
        if older <= age:
            level_at(o, kind).due[(kind - NUM_CLASSES) % NUM_LISTS] = grown_at(memory, age)
            return
        unlist_cell(o, c, slot, kind)
        memory.kind = <uint16_t> (1 + listed_class(class_in(memory), c.recency) * NUM_AGES + older)
        push_cell(o, c, slot, first + memory.kind)
        slot = o.slots[o.size + kind].next


cdef void age_level(Order *o, Cells *c, int32_t k) noexcept nogil:
    """Pages of a level have become older; the oldest first: they come before those that follow."""
    cdef uint64_t[LIST_WORDS] filled      # lists that are, by their numbers
    cdef uint64_t bits
    cdef int32_t word, i, first = NUM_CLASSES + k * NUM_LISTS
    memset(filled, 0, sizeof(filled))
    for word in range(LIST_WORDS):
        bits = o.levels[k].filled[word]
        while bits:
            i = c.list_at[64 * word + lowest_bit(bits)]
            filled[i >> 6] |= <uint64_t> 1 << (i & 63)
            bits &= bits - 1
    filled[0] &= ~<uint64_t> 1            # pages that are passed have no age
    for word in range(LIST_WORDS - 1, -1, -1):
        while filled[word]:
            i = 64 * word + highest_bit(filled[word])
            if (i - 1) % NUM_AGES < NUM_AGES - 1 and o.levels[k].due[i] <= c.aged:
                age_list(o, c, first + i, (i - 1) % NUM_AGES)
            filled[word] &= ~(<uint64_t> 1 << (i & 63))


cdef void age_order(Order *o, Cells *c) noexcept nogil:
    """All pages in cells have become older."""
    cdef int32_t k
    for k in range(c.num_levels):
        if o.levels[k].count:
            age_level(o, c, k)


cdef inline bint is_aging(Cells *c) noexcept nogil:
    """Whether pages shall move to their next bins: often enough to matter for evictions, whatever the time."""
    if c.made < c.aging_after:
        return False
    c.made, c.aged, c.listed_used = 0, c.now, -1
    return True


cdef inline void next_admission(Cells *c) noexcept nogil:
    """An admission is at least a tick later than the one before: on a clock that stands, ages count admissions."""
    c.now = c.asked = max(c.now, c.asked + 1)


cdef inline int32_t bin_of(Cells *c, int64_t used) noexcept nogil:
    """The bin of what was last used then."""
    if used != c.bin_used or c.now != c.bin_now:
        c.bin_used, c.bin_now, c.bin = used, c.now, age_bin(c.now - used)
    return c.bin


cdef inline int32_t cell(Cells *c, int32_t p) noexcept nogil:
    """The cell a page belongs to now."""
    return class_in(memory_at(c, p)) * NUM_AGES + bin_of(c, memory_at(c, p).used)


cdef inline int32_t listed_cell(Cells *c, int32_t p) noexcept nogil:
    """The one it is listed in: as of when the others were, so that what came together goes together."""
    cdef Memory *memory = memory_at(c, p)
    if memory.used != c.listed_used:
        c.listed_used, c.listed_bin = memory.used, age_bin(c.aged - memory.used)
    return listed_class(class_in(memory), c.recency) * NUM_AGES + younger_age(memory, c.listed_bin)


cdef inline void begin(Cells *c, int32_t p, int32_t uses) noexcept nogil:
    """A page is made; `uses`: those of its block, this one included. It is not watched yet."""
    cdef Memory *memory = memory_at(c, p)
    memory.uses, memory.reuse = <unsigned char> uses, <unsigned char> class_of(uses, c.fresh)
    memory.used = c.now


cdef bint tell(Cells *c, int32_t p, int32_t back) noexcept nogil:
    """A hint says when it comes back (0: unknown); whether that changes its class."""
    cdef Memory *memory = memory_at(c, p)
    cdef int32_t reuse = told_class(back, memory.uses, class_in(memory))
    cdef bint changed = reuse != class_in(memory)
    memory.reuse = <unsigned char> (memory.reuse & ~CLASS | reuse)
    return changed


cdef void use(Cells *c, int32_t p) noexcept nogil:
    """An admission found the page."""
    cdef unsigned char kept = memory_at(c, p).reuse & ~CLASS
    c.hits[cell(c, p)] += 1
    begin(c, p, min(memory_at(c, p).uses + 1, MAX_USES))
    memory_at(c, p).reuse |= kept


cdef bint meet(Cells *c, const uint64_t *keys, int32_t column, uint64_t seed) noexcept nogil:
    """An admission will make a page for a column: whether its block was there before; noted if so."""
    cdef Ghosts *e = &c.ghosts
    cdef int32_t place = take_ghost(e, keys, column, seed)
    cdef Ghost *ghost
    if place < 0:
        return False
    miss_watched(&c.rival, keys[column] ^ seed)
    ghost = e.ring + place
    c.hits[reuse_of(ghost) * NUM_AGES + age_bin(c.now - ghost.used)] += 1
    c.met[column] = <unsigned char> min(uses_of(ghost) + 1, MAX_USES)
    c.met_class = reuse_of(ghost)
    ghost.facts = 0
    if c.met_first >= c.met_last:
        c.met_first = column
    c.met_last = column + 1
    return True


cdef inline void forget_met(Cells *c) noexcept nogil:
    if c.met_first < c.met_last:
        memset(c.met + c.met_first, 0, c.met_last - c.met_first)
    c.met_first = c.met_last = 0


cdef void remember(Cells *c, int32_t p, uint64_t key, uint64_t above, uint32_t admission, int32_t why) noexcept nogil:
    """A page is gone permanently."""
    cdef Ghosts *e = &c.ghosts
    cdef Memory *memory = memory_at(c, p)
    cdef Ghost *ghost
    if e.room == 0:
        return
    ghost = make_ghost(e, key, above)
    if ghost.facts:
        c.lost[reuse_of(ghost) * NUM_AGES + bin_of(c, ghost.used)] += 1     # they come and fall out together
    ghost.used, ghost.admission = memory.used, admission
    ghost.facts = rest_of(memory.used, c.now) << 12 | <uint32_t> (memory.uses << 4) | kind_of_loss(why, class_in(memory))


cdef inline int32_t stride(int32_t number) noexcept nogil:
    """The stride at which a census samples so many."""
    return max(1, (number + MAX_CENSUS - 1) // MAX_CENSUS)


cdef void count_ghosts(Cells *c, int64_t *census) noexcept nogil:
    cdef Ghosts *e = &c.ghosts
    cdef int32_t step = stride(e.room), place = 0, count = num_used(e)
    while place < count:
        if e.ring[place].facts:
            census[reuse_of(e.ring + place) * NUM_AGES + age_bin(c.now - e.ring[place].used)] += step
        place += step


cdef object cell_counts(int64_t *counts):
    """A copy, [classes, ages]."""
    return as_array(counts, NUM_CELLS, 8, np.int64).reshape(NUM_REUSE_CLASSES, NUM_AGES)
