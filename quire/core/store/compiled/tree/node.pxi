# Owns: nodes (blocks and roots, with their tokens and extras), pages, memory for nodes, and the index that finds a full
# block under its parent. Does not know: what a page is beyond its record, who holds anything, what is logged.

cdef enum:
    ROOT = 1                  # flags of a node
    NOTED = 2                 # root: in the list that dead_roots drains
    DOOMED = 4                # in a subtree that is being removed
    ASKED = 8                 # a prompt ended there while the text was known to go on
    KIND_AT = 4               # the bits from there on: the kind of resume point that was guessed or named there

cdef enum:
    DEFAULT_PRIORITY = 35     # of a page
    MAX_PRIORITY = 100
    NEEDED = 1                # of a page: it is not listed among those at which nobody resumes
    UNWANTED = 0x100          # of a page: a hint said that it never comes back; of an order without classes
    ONE_CLAIM = 0x200
    LARGE_INDEX = 0x200000    # entries; as in records/reports/index_size.py

cdef struct Node:             # `num_groups` pages long, and where children are counted as many numbers for each tier
    int32_t parent            # free: the next free node, or -1
    int32_t child             # top of the treap of its children, or -1
    int32_t left              # among its siblings; root: the root made before it
    int32_t right             # among its siblings; root: the root made after it
    uint32_t key              # its key in the index: low half of the chain key, xor the root's seed; root: that seed
    uint32_t high             # high halves, likewise
    int32_t tips              # rows whose tip it is
    uint16_t size             # tokens; 0: root, or free
    uint16_t flags
    int32_t page[1]

cdef struct Page:             # `num_tiers` slots long
    int32_t node              # -1: open; of a free page: the next free one, or -1
    int32_t holders           # -1: free
    int32_t stamp
    uint32_t claimed          # claims << 9 | UNWANTED | priority << 1 | NEEDED: the last byte is the place of its class
    int32_t[1] slot           # per tier, -1: no copy there


cdef inline int32_t claims_of(Page *page) noexcept nogil:
    return page.claimed >> 9


cdef inline int32_t priority_of(Page *page) noexcept nogil:
    return (page.claimed & 0xFF) >> 1


cdef inline void put_priority(Page *page, int32_t priority) noexcept nogil:
    page.claimed = (page.claimed & ~<uint32_t> 0xFE) | <uint32_t> priority << 1


cdef struct Tree:
    char *nodes
    int32_t *tokens
    uint64_t **extras         # NULL until a block has some
    uint64_t *hashes          # event hashes; NULL with events off
    uint64_t seed[2]          # they are made with
    int32_t *roots            # the root above each node; NULL with events off
    int32_t num_tiers         # in which children are counted; 0: nobody asks
    uint64_t *index           # key << 32 | node + 1; 0: free. Of full blocks that do not lie right behind their parents
    uint64_t places           # in it
    Py_ssize_t stride         # bytes of a node
    Py_ssize_t room           # nodes there is memory for
    int32_t block_size
    int32_t num_groups
    int32_t used              # node ids ever given out
    int32_t free              # top of the free nodes, or -1
    int32_t num_nodes         # without roots
    int32_t num_roots
    int32_t num_extras        # blocks that have extras, in tokens
    int32_t num_full          # full blocks, for each of which the index has room
    int64_t epoch             # changes when a page leaves its node
    int64_t drops             # nodes removed so far
    int64_t turns             # changes when a block with a child may have become a resume point, or ceased to be one
    int32_t parted            # the last node whose text went on in one way, and now in two; -1: none since it was reset
    Kinds kinds               # of resume points
    int32_t first_root
    int32_t last_root
    int32_t *noted
    Py_ssize_t noted_room
    Py_ssize_t num_noted
    int64_t *lasting          # number of a block for those who keep it beyond the process, 0: none; NULL: nobody asks
    int64_t numbered          # the last one given
    int32_t *births           # of a node: how many had been made by then, so that it is known again; NULL: nobody asks
    int32_t born
    int32_t *depths           # of a node: blocks from its root to it; NULL: nobody asks
    int32_t *states           # the state groups; behind them, of those that do not need all blocks, in turn: which, and
    int32_t num_states, num_tails         # how many blocks each reads before a point


cdef inline Node *at(Tree *t, int32_t n) noexcept nogil:
    return <Node *> (t.nodes + n * t.stride)


cdef inline int32_t *tokens_at(Tree *t, int32_t n) noexcept nogil:
    return t.tokens + <Py_ssize_t> n * t.block_size


cdef inline const uint64_t *extras_at(Tree *t, int32_t n) noexcept nogil:
    return NULL if t.extras == NULL else t.extras[n]


cdef inline int32_t *kids_at(Tree *t, int32_t n, int32_t group) noexcept nogil:
    """By tier: children whose hottest copy of the group is there."""
    return at(t, n).page + t.num_groups + group * t.num_tiers


cdef inline uint64_t key_at(Tree *t, int32_t n) noexcept nogil:
    """The chain key of a full block, xor the root's seed: no other block of any scope has it."""
    return <uint64_t> at(t, n).high << 32 | at(t, n).key


cdef int tree_open(Tree *t, int32_t block_size, int32_t num_groups, bint events) noexcept nogil:
    t.block_size, t.num_groups = block_size, num_groups
    t.stride = sizeof(Node) + 4 * (num_groups - 1) + 4 * num_groups * t.num_tiers
    t.free = t.first_root = t.last_root = -1
    t.places = 64
    t.index = <uint64_t *> table_alloc(t.places * 8)
    t.hashes = <uint64_t *> malloc(8) if events else NULL
    t.roots = <int32_t *> malloc(4) if events else NULL
    t.states = <int32_t *> malloc(12 * num_groups)
    return -1 if t.index == NULL or t.states == NULL or (events and (t.hashes == NULL or t.roots == NULL)) else 0


cdef inline uint64_t home_of(Tree *t, uint32_t key) noexcept nogil:
    """Where an entry is looked for first. Keys in their order have homes in that order."""
    return key * t.places >> 32


cdef inline uint64_t wrapped(Tree *t, uint64_t place) noexcept nogil:
    """Behind the last place comes the first. No branch to guess."""
    return place & -<uint64_t> (place < t.places)


cdef inline uint64_t after(Tree *t, uint64_t place) noexcept nogil:
    return wrapped(t, place + 1)


cdef int index_widen(Tree *t, uint64_t places) noexcept nogil:
    """More places; -1 without memory, and then nothing has changed."""
    cdef uint64_t *old = t.index
    cdef uint64_t *wide = <uint64_t *> table_alloc(places * 8)
    cdef uint64_t num_old = t.places, i, j
    if wide == NULL:
        return -1
    t.index, t.places = wide, places
    for i in range(num_old):
        if old[i]:
            j = home_of(t, <uint32_t> (old[i] >> 32))
            while wide[j]:
                j = after(t, j)
            wide[j] = old[i]
    free(old)
    return 0


cdef int tree_extend(Tree *t, Py_ssize_t *room, Py_ssize_t wanted) noexcept nogil:
    """Memory for so many nodes and some more: an eighth, of very many less; -1 without memory."""
    cdef Py_ssize_t size = wanted + (wanted >> (3 if wanted < LARGE_INDEX // 2 else 5)) + 64
    cdef void *moved = realloc(t.nodes, size * t.stride)
    if moved == NULL:
        return -1
    t.nodes, room[0] = <char *> moved, size
    return 0


cdef inline int widen(void **memory, Py_ssize_t size) noexcept nogil:
    """So many bytes; -1 without memory."""
    cdef void *moved = realloc(memory[0], size)
    if moved == NULL:
        return -1
    memory[0] = moved
    return 0


cdef int tree_widen(Tree *t, Py_ssize_t room) noexcept nogil:
    """Tokens, extras and hashes for `room` nodes; -1 without memory."""
    cdef void *moved
    if widen(<void **> &t.tokens, room * t.block_size * 4):
        return -1
    if t.hashes != NULL and (widen(<void **> &t.hashes, room * 8) or widen(<void **> &t.roots, room * 4)):
        return -1
    if t.lasting != NULL and widen(<void **> &t.lasting, room * 8):
        return -1
    if (t.births != NULL and widen(<void **> &t.births, room * 4)) or (
            t.depths != NULL and widen(<void **> &t.depths, room * 4)):
        return -1
    if t.extras != NULL:
        moved = realloc(t.extras, room * sizeof(void *))
        if moved == NULL:
            return -1
        t.extras = <uint64_t **> moved
        memset(t.extras + t.room, 0, (room - t.room) * sizeof(void *))
    t.room = room
    return 0


cdef inline bint is_full(Tree *t, uint64_t places, uint64_t entries) noexcept nogil:
    """Half of it; two thirds of one that is far larger than the processor's caches, where memory counts for more; and
    six sevenths for blocks that last, of which a disk has many: a search takes some entries more then, side by side."""
    if t.lasting != NULL:
        return 7 * entries > 6 * places
    return 2 * entries > places if places < LARGE_INDEX else 3 * entries > 2 * places


cdef uint64_t places_for(Tree *t, uint64_t entries) noexcept nogil:
    """Places of an index of so many entries: twice as many as before, or if memory counts for more a sixteenth more."""
    cdef uint64_t places = t.places
    while is_full(t, places, entries):
        places += places >> 4 if t.lasting != NULL else places
    return places


cdef int tree_reserve(Tree *t, Py_ssize_t more, bint extras) noexcept nogil:
    """Room for `more` nodes and their index entries; -1 without memory."""
    cdef Py_ssize_t wanted = t.num_nodes + t.num_roots + more, room = t.room
    cdef uint64_t places
    if extras and t.extras == NULL:
        t.extras = <uint64_t **> calloc(t.room + 1, sizeof(void *))
        if t.extras == NULL:
            return -1
    if wanted > t.room:
        if wanted > 0x7FFFFFF0 or tree_extend(t, &room, wanted):
            return -1
        if tree_widen(t, room):
            return -1
    places = places_for(t, <uint64_t> (t.num_full + more))
    return index_widen(t, places) if places > t.places else 0


cdef int tree_expect(Tree *t, Py_ssize_t nodes) noexcept nogil:
    """Memory for so many nodes, touched now so that the first prompts do not pay for it; -1 without memory."""
    t.nodes = <char *> malloc(nodes * t.stride)
    if t.nodes == NULL or tree_widen(t, nodes) or tree_reserve(t, nodes, False):
        return -1
    scattered(t.nodes, nodes * t.stride)
    memset(t.nodes, 0, nodes * t.stride)
    memset(t.tokens, 0, nodes * t.block_size * 4)
    if t.hashes != NULL:
        memset(t.hashes, 0, nodes * 8)
        memset(t.roots, 0, nodes * 4)
    return 0


cdef void tree_close(Tree *t) noexcept nogil:
    cdef int32_t n
    if t.extras != NULL:
        for n in range(t.used):
            free(t.extras[n])
    free(t.nodes)
    free(t.tokens)
    free(t.extras)
    free(t.hashes)
    free(t.roots)
    free(t.lasting)
    free(t.births)
    free(t.depths)
    free(t.index)
    free(t.states)
    free(t.noted)


cdef inline bint is_behind(Tree *t, int32_t n) noexcept nogil:
    """Whether a block lies right behind its parent, as blocks committed together mostly do: it is looked for there
    first, and so needs no entry in the index."""
    return n == at(t, n).parent + 1


cdef inline void index_insert(Tree *t, uint32_t key, int32_t n) noexcept nogil:
    """Enter a node at the first free place from its home on; the first steps are taken without a branch to guess."""
    cdef uint64_t i = home_of(t, key)
    cdef uint64_t *index = t.index
    t.num_full += 1
    if is_behind(t, n):
        return
    i = wrapped(t, i + (index[i] != 0))
    i = wrapped(t, i + (index[i] != 0))
    while index[i]:
        i = after(t, i)
    index[i] = <uint64_t> key << 32 | <uint32_t> (n + 1)


cdef inline uint64_t way(Tree *t, uint64_t from_, uint64_t to) noexcept nogil:
    """How many places it is from one on to another."""
    return to - from_ + (t.places & -<uint64_t> (to < from_))


cdef inline void index_erase(Tree *t, uint32_t key, int32_t n) noexcept nogil:
    """Take an entry out and shift those behind it back, so that no gap parts an entry from its home. The gap is at i;
    it is written without asking whether the entry may move there (no branch to guess), and it stays the gap if not."""
    cdef uint64_t i = home_of(t, key), j, entry
    cdef uint64_t *index = t.index
    t.num_full -= 1
    if is_behind(t, n):
        return
    while <uint32_t> index[i] != <uint32_t> (n + 1):
        i = after(t, i)
    j = after(t, i)
    entry = index[j]
    while entry:
        index[i] = entry
        i += (j - i) & -<uint64_t> (way(t, home_of(t, <uint32_t> (entry >> 32)), j) >= way(t, i, j))
        j = after(t, j)
        entry = index[j]
    index[i] = 0


cdef inline bint same_extras(Tree *t, int32_t n, const uint64_t *extras) noexcept nogil:
    cdef const uint64_t *own = extras_at(t, n)
    cdef Py_ssize_t i
    if own == NULL or extras == NULL:
        return own == NULL and all_plain(extras, t.block_size)
    for i in range(3 * t.block_size):
        if own[i] != extras[i]:
            return False
    return True


cdef inline bint follows(Tree *t, int32_t n, int32_t parent, const int32_t *tokens,
                         const uint64_t *extras) noexcept nogil:
    """Whether node n is the full block of these tokens under this parent."""
    cdef Node *node = at(t, n)
    return (node.parent == parent and node.size == t.block_size
            and same_tokens(tokens_at(t, n), tokens, t.block_size)
            and ((extras == NULL and t.extras == NULL) or same_extras(t, n, extras)))


cdef inline int32_t find_block(Tree *t, int32_t parent, uint32_t key, const int32_t *tokens,
                               const uint64_t *extras) noexcept nogil:
    """The full child of these tokens, or -1; a key alone proves nothing."""
    cdef uint64_t i = home_of(t, key), entry
    if parent + 1 < t.used and follows(t, parent + 1, parent, tokens, extras):
        return parent + 1
    while True:
        entry = t.index[i]
        if entry == 0:
            return -1
        if entry >> 32 == key and follows(t, <int32_t> <uint32_t> entry - 1, parent, tokens, extras):
            return <int32_t> <uint32_t> entry - 1
        i = after(t, i)


cdef inline int32_t new_node(Tree *t, int32_t parent) noexcept nogil:
    """A node without place among its siblings; room has been reserved."""
    cdef int32_t n = t.free, g
    cdef Node *node
    if n >= 0:
        t.free = at(t, n).parent
    else:
        n = t.used
        t.used += 1
    node = at(t, n)
    node.parent = parent
    node.child = node.left = node.right = -1
    node.tips = 0
    node.flags = 0
    if t.lasting != NULL:
        t.lasting[n] = 0
    if t.births != NULL:
        t.born += 1
        t.births[n] = t.born
    if t.depths != NULL:
        t.depths[n] = t.depths[parent] + 1 if parent >= 0 else 0
    node.page[0] = -1         # apart, so that one group does not cost a call of memset
    for g in range(1, t.num_groups):
        node.page[g] = -1
    if t.num_tiers:
        for g in range(t.num_groups, t.num_groups * (1 + t.num_tiers)):
            node.page[g] = 0
    return n


cdef inline int32_t new_block(Tree *t, int32_t parent, const int32_t *tokens, const uint64_t *extras,
                              int32_t size) noexcept nogil:
    """A node with its tokens, not yet among the children of its parent and not in the index."""
    cdef int32_t n = new_node(t, parent)
    at(t, n).size = <uint16_t> size
    copy_tokens(tokens_at(t, n), tokens, size)
    if extras != NULL and not all_plain(extras, size):
        t.extras[n] = <uint64_t *> malloc(24 * size)
        if t.extras[n] == NULL:
            fputs("quire: no memory for the extras of a block, and no way back from half a commit\n", stderr)
            abort()
        memcpy(t.extras[n], extras, 24 * size)
        t.num_extras += size
    if t.hashes != NULL:
        t.hashes[n] = event_hash(t.seed, t.hashes[parent], tokens, extras, size)
        t.roots[n] = t.roots[parent]
    t.num_nodes += 1
    return n


cdef inline void free_node(Tree *t, int32_t n) noexcept nogil:
    cdef Node *node = at(t, n)
    if t.extras != NULL and t.extras[n] != NULL:
        t.num_extras -= node.size
        free(t.extras[n])
        t.extras[n] = NULL
    node.size = node.flags = 0
    node.parent = t.free
    t.free = n
