# Owns: the slots of one tier and the order in which they are taken: one circular list per class, its sentinel behind
# the slots, a bitmap of the classes that are not empty, and per class a cursor before which every page is claimed. A
# priority has two classes; in the adaptive order it has a level instead, a list for every cell.
# Does not know: pages beyond their number and whether they are claimed.

cdef enum:
    EMPTY = 0                 # classes; in release order empty slots go to the class of the default priority instead
    SHADOW = 1
    FIRST = 2                 # class of passed pages of priority 0; then come the others of that priority
    COVERED = 204             # in the adaptive order: pages with a child that needs them
    NUM_CLASSES = 205
    CLASS_WORDS = 4           # of a bitmap of them
    LIST_WORDS = 18           # of a bitmap of the lists of a level
    NUM_LISTS = 1121          # of a level: pages that are passed, then cells

cdef enum:                    # what is known of a page that is to be listed
    UNKNOWN = 0
    IS_COVERED = 1
    IS_PASSED = 2
    IS_NEEDED = 3             # not passed

cdef enum:
    IN_RELEASE_ORDER = 1      # the number of an order

cdef int64_t UNSEEN = -(2**63)

cdef struct Slot:
    int32_t prev              # -1: not listed
    int32_t next
    int32_t page              # -1: empty

cdef struct Level:            # the lists of one priority
    uint64_t[LIST_WORDS] filled           # by their places in the learned order
    int32_t priority
    int32_t count             # pages in them
    int32_t[NUM_LISTS] cursor
    int64_t[NUM_LISTS] due    # when the first page is too old for the list; UNSEEN: nobody has looked at it

cdef struct Order:
    Slot *slots               # `size` slots, then NUM_CLASSES sentinels, then NUM_LISTS for each level
    Level *levels
    int32_t size
    int32_t num_empty
    int32_t num_shadow
    int32_t num_idle
    uint64_t[CLASS_WORDS] filled
    int32_t[NUM_CLASSES] cursor


cdef inline int32_t class_at(int32_t priority, bint passed) noexcept nogil:
    """The class of idle pages of a priority."""
    return FIRST + 2 * priority + (not passed)


cdef int order_open(Order *o, int32_t size) noexcept nogil:
    """All lists empty, no slot listed."""
    cdef int32_t i
    o.slots = <Slot *> malloc((<Py_ssize_t> size + NUM_CLASSES) * sizeof(Slot))
    if o.slots == NULL:
        return -1
    o.size = size
    for i in range(size):
        o.slots[i].prev = o.slots[i].next = o.slots[i].page = -1
    for i in range(NUM_CLASSES):
        o.slots[size + i].prev = o.slots[size + i].next = o.cursor[i] = size + i
        o.slots[size + i].page = -1
    return 0


cdef int order_widen(Order *o, int32_t num_levels, int32_t priority) noexcept nogil:
    """One more level than so many, for a priority; -1 without memory, and then nothing has changed."""
    cdef Py_ssize_t before = <Py_ssize_t> o.size + NUM_CLASSES + num_levels * NUM_LISTS
    cdef void *slots = realloc(o.slots, (before + NUM_LISTS) * sizeof(Slot))
    cdef void *levels
    cdef int32_t i
    if slots == NULL:
        return -1
    o.slots = <Slot *> slots
    levels = realloc(o.levels, (num_levels + 1) * sizeof(Level))
    if levels == NULL:
        return -1
    o.levels = <Level *> levels
    memset(o.levels + num_levels, 0, sizeof(Level))
    o.levels[num_levels].priority = priority
    for i in range(NUM_LISTS):
        o.slots[before + i].prev = o.slots[before + i].next = o.levels[num_levels].cursor[i] = <int32_t> before + i
        o.slots[before + i].page = -1
    return 0


cdef inline void push_back(Order *o, int32_t slot, int32_t kind) noexcept nogil:
    cdef int32_t end = o.size + kind, tail = o.slots[end].prev
    o.slots[tail].next = slot
    o.slots[slot].prev = tail
    o.slots[slot].next = end
    o.slots[end].prev = slot
    o.filled[kind >> 6] |= <uint64_t> 1 << (kind & 63)
    if o.cursor[kind] == end:
        o.cursor[kind] = slot


cdef inline void unlist(Order *o, int32_t slot, int32_t kind) noexcept nogil:
    cdef int32_t before = o.slots[slot].prev, after = o.slots[slot].next
    o.slots[before].next = after
    o.slots[after].prev = before
    o.slots[slot].prev = -1
    if o.cursor[kind] == slot:
        o.cursor[kind] = after
    if before == after:       # only the sentinel is its own neighbour on both sides
        o.filled[kind >> 6] &= ~(<uint64_t> 1 << (kind & 63))


cdef inline void rewind(Order *o, int32_t kind) noexcept nogil:
    """A page of this class is no longer claimed: it may lie before the cursor."""
    o.cursor[kind] = o.slots[o.size + kind].next
