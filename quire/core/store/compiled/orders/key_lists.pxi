# Owns: what is known of a caller's keys, by number: uses, class, which key continues which; the lists they wait in, which
# are those of pages (`cells`, `order`).
# Does not know: the keys themselves, tokens, the tree, tiers.

cdef enum:
    MOST_KEYS = 1 << 28
    APART_USES = 4            # uses of a key more than of the next: turns may have ended between them; more were other texts
    LEAST_NEW = 2048          # keys that come until an order learns, at least: in a small one learning would take longer
    KEY_HELD = 1              # why a key may not go: its holder,
    KEY_SPARED = 2            # the call that is under way

cdef packed struct KeyMemory: # of a key that is there: 40 bytes
    uint64_t hash
    int32_t parent            # the key that it continues, if that has not gone: it has this stamp then
    uint32_t parent_stamp
    uint32_t stamp            # counts the keys that had this number
    int32_t kids              # keys that continue it
    unsigned char priority
    unsigned char stays
    Memory memory             # `kind` is the list of its priority, or IN_COVERED

cdef struct KeyLists:
    KeyMemory *keys
    Order order               # slot and number of a key are the same
    Cells *cells              # NULL: by age alone, without memory
    int32_t room
    int32_t num_held
    int64_t now


cdef inline uint64_t hash_key(const char *key, Py_ssize_t size) noexcept nogil:
    """64 bits by which a key that has gone is known."""
    cdef uint64_t number = K1 ^ <uint64_t> size, word
    cdef Py_ssize_t place = 0
    while place < size:
        word = 0
        memcpy(&word, key + place, min(size - place, <Py_ssize_t> 8))
        number = fold(number ^ word, K0) ^ K2
        place += 8
    return number


cdef int key_lists_open(KeyLists *k, int32_t room, int32_t ghosts, bint adaptive) noexcept nogil:
    """-1 without memory."""
    cdef int32_t i
    k.room = room
    k.keys = <KeyMemory *> calloc(room, sizeof(KeyMemory))
    if k.keys == NULL or order_open(&k.order, room):
        return -1
    if not adaptive:
        return 0
    k.cells = <Cells *> calloc(1, sizeof(Cells))
    if k.cells == NULL or cells_open(k.cells, room, ghosts, 0, room):
        return -1
    k.cells.due_after = max(k.cells.due_after, <int64_t> LEAST_NEW)
    k.cells.pages, k.cells.stride = <char *> &k.keys[0].memory, sizeof(KeyMemory)
    return key_level(k, DEFAULT_PRIORITY)


cdef void key_lists_close(KeyLists *k) noexcept nogil:
    free(k.keys)
    free(k.order.slots)
    free(k.order.levels)
    if k.cells != NULL:
        cells_close(k.cells)
        free(k.cells)
    memset(k, 0, sizeof(KeyLists))


cdef int key_level(KeyLists *k, int32_t priority) noexcept nogil:
    """Lists for the cells of a priority, if there are none yet; -1 without memory."""
    if k.cells == NULL or k.cells.level_of[priority] >= 0:
        return 0
    if order_widen(&k.order, k.cells.num_levels, priority):
        return -1
    k.cells.level_of[priority] = k.cells.num_levels
    k.cells.num_levels += 1
    return 0


cdef void key_rank(KeyLists *k, const int32_t *cells, bint recency) noexcept nogil:
    cdef int32_t i
    k.cells.falls += recency and not k.cells.recency
    k.cells.recency = recency
    for i in range(NUM_CELLS):
        k.cells.list_at[i + 1] = cells[i] + 1
        k.cells.rank_of[cells[i] + 1] = i + 1
    order_ranked(&k.order, k.cells)


cdef inline int32_t key_lists_of(KeyLists *k, int32_t n) noexcept nogil:
    """The first list of a key's priority."""
    return NUM_CLASSES + k.cells.level_of[k.keys[n].priority] * NUM_LISTS


cdef inline int32_t key_list(KeyLists *k, int32_t n) noexcept nogil:
    """The list that a key waits in."""
    cdef KeyMemory *key = k.keys + n
    if k.cells == NULL:
        return key.memory.kind
    return COVERED if key.memory.kind == IN_COVERED else key_lists_of(k, n) + key.memory.kind


cdef void list_key(KeyLists *k, int32_t n, bint released) noexcept nogil:
    """A key goes to where it belongs; `released`: by the last that continued it."""
    cdef KeyMemory *key = k.keys + n
    cdef int32_t kind
    if k.cells == NULL:
        key.memory.kind = <uint16_t> class_at(key.priority, class_in(&key.memory) == NEVER)
        push_back(&k.order, n, key.memory.kind)
    elif key.kids:
        key.memory.kind = IN_COVERED
        push_back(&k.order, n, COVERED)
    else:
        kind = 1 + listed_cell(k.cells, n)
        key.memory.kind = <uint16_t> kind
        if released:
            push_released(&k.order, k.cells, n, key_lists_of(k, n) + kind)
        else:
            push_cell(&k.order, k.cells, n, key_lists_of(k, n) + kind)


cdef void unlist_key(KeyLists *k, int32_t n) noexcept nogil:
    cdef int32_t kind = key_list(k, n)
    if kind < NUM_CLASSES:
        unlist(&k.order, n, kind)
    else:
        unlist_cell(&k.order, k.cells, n, kind)


cdef inline void relist_key(KeyLists *k, int32_t n, bint released) noexcept nogil:
    unlist_key(k, n)
    list_key(k, n, released)


cdef void free_key(KeyLists *k, int32_t n, int32_t why) noexcept nogil:
    """A key is not held, or not spared, any more: it may lie before the cursor of its list."""
    cdef int32_t kind = key_list(k, n)
    k.keys[n].stays &= ~why
    if k.keys[n].stays == 0 and kind < NUM_CLASSES:
        rewind(&k.order, kind)
    elif k.keys[n].stays == 0:
        rewind_cell(&k.order, kind)


cdef inline int32_t pass_staying(KeyLists *k, int32_t slot) noexcept nogil:
    """The first of a list, from this one on, that may go; its sentinel when there is none."""
    while slot < k.room and k.keys[slot].stays:
        slot = k.order.slots[slot].next
    return slot


cdef int32_t first_in_level(KeyLists *k, Level *level) noexcept nogil:
    """The key of a priority to go next, or -1."""
    cdef uint64_t bits
    cdef int32_t word, i
    for word in range(LIST_WORDS):
        bits = level.filled[word]
        while bits:
            i = k.cells.list_at[64 * word + lowest_bit(bits)]
            level.cursor[i] = pass_staying(k, level.cursor[i])
            if level.cursor[i] < k.room:
                return level.cursor[i]
            bits &= bits - 1
    return -1


cdef int32_t first_key(KeyLists *k) noexcept nogil:
    """The key to go next, or -1."""
    cdef uint64_t bits
    cdef int32_t word, kind, slot
    for word in range(CLASS_WORDS):
        bits = k.order.filled[word]
        while bits:
            kind = 64 * word + lowest_bit(bits)
            if k.cells == NULL or kind == COVERED:
                slot = k.order.cursor[kind] = pass_staying(k, k.order.cursor[kind])
            else:
                slot = first_in_level(k, k.order.levels + k.cells.level_of[(kind - FIRST) >> 1])
            if 0 <= slot < k.room:
                return slot
            bits &= bits - 1
    return -1


cdef inline int32_t parent_key(KeyLists *k, int32_t n) noexcept nogil:
    """The key that this one continues, if it is there, or -1."""
    cdef int32_t parent = k.keys[n].parent
    return parent if parent >= 0 and k.keys[parent].stamp == k.keys[n].parent_stamp else -1


cdef void unlink_key(KeyLists *k, int32_t n) noexcept nogil:
    cdef int32_t parent = parent_key(k, n)
    k.keys[n].parent = -1
    if parent >= 0:
        k.keys[parent].kids -= 1
        if k.keys[parent].kids == 0 and k.cells != NULL:
            relist_key(k, parent, True)


cdef void link_key(KeyLists *k, int32_t n, int32_t above) noexcept nogil:
    if parent_key(k, n) == above:
        return
    unlink_key(k, n)
    k.keys[n].parent, k.keys[n].parent_stamp = above, k.keys[above].stamp
    k.keys[above].kids += 1
    if k.keys[above].kids == 1 and k.cells != NULL:
        relist_key(k, above, False)


cdef void begin_key(KeyLists *k, int32_t n, uint64_t hash, int32_t uses) noexcept nogil:
    """A key comes, and is held."""
    cdef KeyMemory *key = k.keys + n
    cdef int32_t[2] ends
    key.hash, key.parent, key.kids, key.priority, key.stays = hash, -1, 0, DEFAULT_PRIORITY, KEY_HELD
    key.memory.uses, key.memory.reuse, key.memory.used = <unsigned char> uses, ONCE, k.now
    k.order.slots[n].page = n
    k.num_held += 1
    if k.cells != NULL:
        k.cells.fresh = ONCE
        begin(k.cells, n, uses)
        ends[0], ends[1] = <int32_t> <uint32_t> hash, <int32_t> <uint32_t> (hash >> 32)
        if chooses(&k.cells.rival, ends, 2) and come_watched(&k.cells.rival, hash):
            key.memory.reuse |= WATCHED
        k.cells.made += 1
        k.cells.inserted += 1
    list_key(k, n, False)


cdef void end_key(KeyLists *k, int32_t n) noexcept nogil:
    """A key goes."""
    cdef KeyMemory *key = k.keys + n
    unlist_key(k, n)
    k.order.slots[n].page = -1
    k.num_held -= key.stays & KEY_HELD
    if key.memory.reuse & WATCHED:
        k.cells.rival.watched -= 1
    key.stamp += 1
    unlink_key(k, n)


cdef void use_key(KeyLists *k, int32_t n, bint reused, int32_t fresh) noexcept nogil:
    """A request is over that used the key; it is listed anew by the caller."""
    cdef Memory *memory = &k.keys[n].memory
    if k.cells == NULL:
        memory.reuse = ONCE
        return
    if reused:
        if memory.reuse & WATCHED:
            find_watched(&k.cells.rival, k.keys[n].hash)
        k.cells.hits[cell(k.cells, n)] += 1
        memory.uses += memory.uses < MAX_USES
    memory.reuse = <unsigned char> (memory.reuse & ~CLASS | class_of(memory.uses, fresh))
    memory.used = k.cells.now


cdef int32_t meet_key(KeyLists *k, uint64_t hash) noexcept nogil:
    """A key will come: its uses with this one, if it was there before, or 0. Its class is `met_class` then."""
    cdef int32_t place = take_ghost(&k.cells.ghosts, &hash, 0, 0), uses
    cdef Ghost *ghost
    if place < 0:
        return 0
    ghost = k.cells.ghosts.ring + place
    miss_watched(&k.cells.rival, hash)
    k.cells.hits[reuse_of(ghost) * NUM_AGES + age_bin(k.cells.now - ghost.used)] += 1
    k.cells.met_class, uses = reuse_of(ghost), min(uses_of(ghost) + 1, MAX_USES)
    ghost.facts = 0
    return uses
