# Owns: which of the watched pages of a pool would be there if the oldest always went first (a list of as many as are
# watched in the tree), and the two counts that show which is ahead. A table of keys in chains, and one list by last
# use.
# Does not know: pages beyond their keys, what follows from the counts.

cdef enum:
    MOST_WATCHED = 1024       # pages of a pool, about

cdef uint32_t FIRST_FACTOR = 0x9E3779B1, LAST_FACTOR = 0x85EBCA77

cdef struct Seen:             # a page that the rival has
    uint64_t key
    int32_t older             # by last use; -1: none is
    int32_t newer             # of a free one: the next free one
    int32_t chain             # the next with the same home, or -1

cdef struct Rival:
    Seen *seen
    int32_t *homes            # of keys: the first of a chain, or -1
    uint64_t home_mask
    uint32_t limit            # of a block's number: it is not greater if its pages are watched
    int32_t room
    int32_t count
    int32_t watched           # pages in the tree
    int32_t oldest
    int32_t newest
    int32_t free
    int64_t gained            # pages that an admission found, and the rival had given up
    int64_t missed            # pages that it would have had


cdef int rival_open(Rival *v, int32_t num_slots) noexcept nogil:
    """-1 without memory."""
    cdef int32_t i
    cdef uint64_t homes = 16
    v.room = min(num_slots, 2 * MOST_WATCHED)
    v.limit = 0xFFFFFFFF
    while <int64_t> num_slots * (<int64_t> v.limit + 1) >> 32 > MOST_WATCHED:
        v.limit >>= 1
    while homes < <uint64_t> v.room:
        homes *= 2
    v.home_mask = homes - 1
    v.oldest = v.newest = v.free = -1
    v.seen = <Seen *> malloc((v.room + 1) * sizeof(Seen))
    v.homes = <int32_t *> malloc(homes * sizeof(int32_t))
    if v.seen == NULL or v.homes == NULL:
        return -1
    memset(v.homes, 0xFF, homes * sizeof(int32_t))
    for i in range(v.room, -1, -1):       # one more than there may be: a new page is there before the oldest goes
        v.seen[i].newer = v.free
        v.free = i
    return 0


cdef void rival_close(Rival *v) noexcept nogil:
    free(v.seen)
    free(v.homes)


cdef Py_ssize_t rival_bytes(Rival *v) noexcept nogil:
    return (v.room + 1) * sizeof(Seen) + (v.home_mask + 1) * sizeof(int32_t)


cdef inline bint chooses(Rival *v, const int32_t *tokens, int32_t size) noexcept nogil:
    """Whether pages of a block are watched: by its first token and its last."""
    return <uint32_t> tokens[0] * FIRST_FACTOR + <uint32_t> tokens[size - 1] * LAST_FACTOR <= v.limit


cdef inline int32_t *home_of_seen(Rival *v, uint64_t key) noexcept nogil:
    return v.homes + (key * <uint64_t> 0x9E3779B97F4A7C15 >> 32 & v.home_mask)


cdef int32_t seen_at(Rival *v, uint64_t key) noexcept nogil:
    """Where a key is, or -1."""
    cdef int32_t i = home_of_seen(v, key)[0]
    while i >= 0 and v.seen[i].key != key:
        i = v.seen[i].chain
    return i


cdef inline void link_newest(Rival *v, int32_t i) noexcept nogil:
    v.seen[i].older, v.seen[i].newer = v.newest, -1
    if v.newest >= 0:
        v.seen[v.newest].newer = i
    else:
        v.oldest = i
    v.newest = i


cdef inline void unlink_seen(Rival *v, int32_t i) noexcept nogil:
    cdef int32_t older = v.seen[i].older, newer = v.seen[i].newer
    if older >= 0:
        v.seen[older].newer = newer
    else:
        v.oldest = newer
    if newer >= 0:
        v.seen[newer].older = older
    else:
        v.newest = older


cdef void drop_oldest(Rival *v) noexcept nogil:
    cdef int32_t i = v.oldest
    cdef int32_t *link = home_of_seen(v, v.seen[i].key)
    unlink_seen(v, i)
    while link[0] != i:
        link = &v.seen[link[0]].chain
    link[0] = v.seen[i].chain
    v.seen[i].newer = v.free
    v.free = i
    v.count -= 1


cdef bint renew_watched(Rival *v, uint64_t key) noexcept nogil:
    """A page is used: the last to go now; whether it was there."""
    cdef int32_t i = seen_at(v, key)
    cdef bint known = i >= 0
    cdef int32_t *home
    if known:
        unlink_seen(v, i)
    else:
        i, home = v.free, home_of_seen(v, key)
        v.free = v.seen[i].newer
        v.seen[i].key, v.seen[i].chain = key, home[0]
        home[0] = i
        v.count += 1
    link_newest(v, i)
    while v.count > v.watched:
        drop_oldest(v)
    return known


cdef bint come_watched(Rival *v, uint64_t key) noexcept nogil:
    """A page has come into the tree; whether there is room to watch it."""
    if v.watched >= v.room:
        return False
    v.watched += 1
    renew_watched(v, key)
    return True


cdef void find_watched(Rival *v, uint64_t key) noexcept nogil:
    """An admission found a watched page."""
    v.gained += not renew_watched(v, key)


cdef void miss_watched(Rival *v, uint64_t key) noexcept nogil:
    """An admission asked for a page that has gone."""
    cdef int32_t i = seen_at(v, key)
    if i >= 0:
        v.missed += 1
        unlink_seen(v, i)
        link_newest(v, i)
