# Owns: what is known of pages that are gone, the last so many of a group: a ring, first in, first out, 28 bytes a
# ghost. Each has a link to the one before it whose key begins alike, and 4 bytes more per ghost are links to the newest
# of those. A page that goes a second time leaves a second ghost, and the newest is the one that is found. A ghost that
# is taken leaves a gap in the ring. For one that falls out nothing is done: by the turn of the ring in which a link was
# made, and since links lead to older ghosts only, whoever follows one knows that another is there now.
# Links are made late: ghosts between `linked` and `next` are in the ring alone, until somebody looks for one or there
# are MAX_UNLINKED. Far memory is slow, but comes at once to whoever asks for much of it.
# Does not know: pages that are there, what a ghost is remembered for.

cdef enum:
    MOST_GHOSTS = 1 << 30
    PLACE = MOST_GHOSTS - 1   # of a link: the place; above it the turn of the ring in which it was made, as far as fits
    TURN_SHIFT = 30
    MAX_REST = 0xFFFFF
    MAX_UNLINKED = 512        # ghosts

cdef packed struct Ghost:
    uint64_t key              # of the block under its parents and its scope
    uint32_t older            # link to the one before it whose key begins alike
    uint32_t facts            # quarters of a second that it rested until it went << 12 | uses << 4 | why << 2 | class
    int64_t used              # when an admission last used it
    uint32_t admission        # admissions so far, the one it made room for included

cdef struct Ghosts:
    Ghost *ring               # without facts: a gap
    uint32_t *newest          # links, by the beginnings of keys; one that never was is taken for one that fell out
    uint32_t turn             # of the ring
    int32_t room
    int32_t next
    int32_t linked            # places from here to `next` are in the ring alone
    int32_t count


cdef int ghosts_open(Ghosts *e, int64_t room) noexcept nogil:
    """-1 without memory."""
    cdef Py_ssize_t n = <Py_ssize_t> min(room, <int64_t> MOST_GHOSTS)
    e.room, e.turn = <int32_t> n, 1
    e.ring = <Ghost *> table_alloc(n * sizeof(Ghost) + 1)
    e.newest = <uint32_t *> table_alloc(4 * n + 1)
    write_to(e.ring, n * sizeof(Ghost))
    write_to(e.newest, 4 * n)
    return 0 if e.ring and e.newest else -1


cdef void ghosts_close(Ghosts *e) noexcept nogil:
    free(e.ring)
    free(e.newest)


cdef inline int64_t ghosts_bytes(Ghosts *e) noexcept nogil:
    return (sizeof(Ghost) + 4) * <int64_t> e.room


cdef inline uint32_t *newest_of(Ghosts *e, uint64_t key) noexcept nogil:
    return e.newest + ((key >> 32) * <uint64_t> <uint32_t> e.room >> 32)


cdef inline int32_t follow(Ghosts *e, uint32_t link) noexcept nogil:
    """The place of a link's ghost, or -1 if it has fallen out. Another that came there four turns later is taken for it:
    its key is another, and it is not older than whoever has the link, or leads to such."""
    cdef int32_t place = <int32_t> (link & PLACE)
    return place if link >> TURN_SHIFT == (e.turn - (place >= e.next) & 3) and place < e.room else -1


cdef inline bint is_older(Ghosts *e, int32_t place, int32_t other) noexcept nogil:
    return (place - e.room if place >= e.next else place) < (other - e.room if other >= e.next else other)


cdef int32_t find_from(Ghosts *e, uint32_t link, int32_t before, uint64_t key) noexcept nogil:
    """The place of the newest ghost of a key from a link on, that of the ghost at `before` (-1: of none), or -1."""
    cdef int32_t place = follow(e, link)
    while place >= 0 and (before < 0 or is_older(e, place, before)):
        if e.ring[place].key == key and e.ring[place].facts:
            return place
        before, place = place, follow(e, e.ring[place].older)
    return -1


cdef void link_ghosts(Ghosts *e) noexcept nogil:
    """All ghosts can be found."""
    cdef int32_t i, n = e.next - e.linked
    cdef uint32_t link = e.turn << TURN_SHIFT | <uint32_t> e.linked
    cdef Ghost *ghosts = e.ring + e.linked
    cdef uint32_t *newest
    for i in range(n):
        touch(newest_of(e, ghosts[i].key))
    for i in range(n):
        newest = newest_of(e, ghosts[i].key)
        ghosts[i].older = newest[0]
        newest[0] = link + <uint32_t> i
    e.linked = e.next


cdef int32_t find_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of the newest ghost of a key, or -1."""
    link_ghosts(e)
    return find_from(e, newest_of(e, key)[0], -1, key) if e.count else -1


cdef void fetch_ghosts(Ghosts *e, const uint64_t *keys, int64_t n, uint64_t seed) noexcept nogil:
    """The ghosts of so many keys, each xor the seed, will be looked for."""
    cdef int64_t i
    cdef int32_t place
    link_ghosts(e)
    if e.count == 0:
        return
    for i in range(n):
        touch(newest_of(e, keys[i] ^ seed))
    for i in range(n):
        place = follow(e, newest_of(e, keys[i] ^ seed)[0])
        if place >= 0:
            touch(e.ring + place)


cdef inline void leave_place(Ghosts *e, int32_t place) noexcept nogil:
    e.ring[place].facts = 0
    e.count -= 1


cdef int32_t take_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of the newest ghost of a key, whose facts the caller has to erase, or -1; the key has none any more."""
    cdef int32_t place = find_ghost(e, key), older = place
    while older >= 0:
        older = find_from(e, e.ring[older].older, older, key)
        if older >= 0:
            leave_place(e, older)
    e.count -= place >= 0
    return place


cdef void drop_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The ghosts of a key are none any more."""
    cdef int32_t place = take_ghost(e, key)
    if place >= 0:
        e.ring[place].facts = 0


cdef inline Ghost *make_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    cdef Ghost *ghost = e.ring + e.next
    e.count += ghost.facts == 0
    ghost.key = key
    e.next += 1
    if e.next == e.room or e.next - e.linked == MAX_UNLINKED:
        link_ghosts(e)
        if e.next == e.room:
            e.next = e.linked = 0
            e.turn += 1
    return ghost


cdef inline void add_ghost(Ghosts *e, uint64_t key, int64_t now, uint32_t admission, int32_t why) noexcept nogil:
    """A page is gone now; no order learns from it."""
    cdef Ghost *ghost
    if e.room:
        ghost = make_ghost(e, key)
        ghost.facts, ghost.used, ghost.admission = <uint32_t> why << 2, now, admission


cdef void ghosts_clear(Ghosts *e) noexcept nogil:
    """Forget all, as if none had ever been."""
    cdef int32_t place
    for place in range(e.room):
        e.ring[place].facts = 0
    memset(e.newest, 0, 4 * <Py_ssize_t> e.room)
    e.next, e.linked, e.count, e.turn = 0, 0, 0, 1


cdef inline uint32_t rest_of(int64_t used, int64_t now) noexcept nogil:
    """Whole quarters of a second from a page's last use until now."""
    return <uint32_t> min(max(<int64_t> 0, now - used) // AGING_TICKS, <int64_t> MAX_REST)


cdef inline int64_t gone_at(Ghost *ghost) noexcept nogil:
    """The tick at which a page went, to a quarter of a second."""
    return ghost.used + (ghost.facts >> 12) * <int64_t> AGING_TICKS


cdef inline int32_t why_of(Ghost *ghost) noexcept nogil:
    return ghost.facts >> 2 & 3


cdef inline int32_t uses_of(Ghost *ghost) noexcept nogil:
    return ghost.facts >> 4 & 0xFF


cdef inline int32_t reuse_of(Ghost *ghost) noexcept nogil:
    """The class."""
    return ghost.facts & 3
