# Owns: what is known of pages that are gone, the last so many of a group: a ring, first in, first out, 28 bytes a
# ghost. Each has a link to the one before it whose key begins alike, and 4 bytes more per ghost are links to the newest
# of those. A page that goes twice leaves two ghosts, and a search finds the newest. A ghost that is taken leaves a gap
# in the ring. For one that falls out nothing is done: a link has the turn of the ring in which it was made, and leads
# to older ghosts only, so a search sees that another ghost is there now.
# A text goes leaf first, so the ghost behind a block's is mostly its parent's. Then the block has no link (up to
# MAX_HIDDEN in a row): it is *hidden*. A search finds it from the first ancestor's ghost that has a link, as many
# places before that. Of the ancestor's place only the key must hold: a gap keeps it, and it never falls out before what
# is hidden there. A link is a line of far memory; so most pages that go cost none.
# Links are made late: ghosts between `linked` and `next` are in the ring alone, until one is looked for or there are
# MAX_UNLINKED. Far memory is slow, but much of it comes at once if asked for together.
# All memory is there from the beginning, since pages go where nothing may fail. The system gives it only as it is
# written to: the ring a little ahead of `next` while it goes round for the first time, the links with the first of
# them.
# Does not know: pages that are there, what a ghost is remembered for.

cdef enum:
    MOST_GHOSTS = 1 << 30
    PLACE = MOST_GHOSTS - 1   # of a link: the place; above it the turn of the ring in which it was made, as far as fits
    TURN_SHIFT = 30
    MAX_REST = 0xFFFFF
    MAX_UNLINKED = 512        # ghosts
    MAX_HIDDEN = 7            # in a row
    MAX_STEPS = 64            # along the links of a block's ancestors, before all ghosts get links of their own

cdef packed struct Ghost:
    uint64_t key              # of the block under its parents and its scope
    uint32_t older            # link to the one before it whose key begins alike; until links are made: whether it is hidden
    uint32_t facts            # quarters of a second that it rested until it went << 12 | uses << 4 | why and class
    int64_t used              # when an admission last used it
    uint32_t admission        # admissions so far, the one it made room for included

cdef struct Ghosts:
    Ghost *ring               # without facts: a gap
    uint32_t *newest          # links, by the beginnings of keys; one that never was is taken for one that fell out
    uint64_t above            # the key of the parent of the block that went last
    uint32_t turn             # of the ring
    int32_t hidden            # of the last ghosts, in a row
    int32_t found             # the newest ghost of its block that was found last, if none was made since, or -1
    bint absent               # none was made since a block was looked for that has neither ghosts nor gaps:
    uint64_t missed           # its key
    bint seen                 # a ghost or a gap of the block that is looked for
    int32_t steps             # along links of ancestors, in the last search
    bint all_linked           # nothing is hidden any more
    int32_t room
    int32_t next
    int32_t linked            # places from here to `next` are in the ring alone
    int32_t count
    int32_t written           # places that the system has given
    bint has_links            # and so has it all of `newest`


cdef int ghosts_open(Ghosts *e, int64_t room) noexcept nogil:
    """-1 without memory."""
    cdef Py_ssize_t n = <Py_ssize_t> min(room, <int64_t> MOST_GHOSTS)
    e.room, e.turn, e.found = <int32_t> n, 1, -1
    e.ring = <Ghost *> lazy_alloc(n * sizeof(Ghost) + 1)
    e.newest = <uint32_t *> lazy_alloc(4 * n + 1)
    return 0 if e.ring and e.newest else -1


cdef void ghosts_close(Ghosts *e) noexcept nogil:
    lazy_free(e.ring, e.room * sizeof(Ghost) + 1)
    lazy_free(e.newest, 4 * <Py_ssize_t> e.room + 1)


cdef inline int32_t num_used(Ghosts *e) noexcept nogil:
    """Places that have a ghost or a gap; those behind them are as they were made."""
    return e.room if e.turn > 1 else e.next


cdef inline int64_t ghosts_bytes(Ghosts *e) noexcept nogil:
    """What has been written to so far: what is forgotten is not given back."""
    return sizeof(Ghost) * <int64_t> max(e.written, num_used(e)) + 4 * <int64_t> e.room * e.has_links


cdef void write_ahead(Ghosts *e) noexcept nogil:
    """The system gives memory for all links, and for as many ghosts as can come before this is called again: at once,
    and not page by page, each of them read first and then written to."""
    cdef int32_t first = max(e.written, e.next), until = min(e.room, e.next + MAX_UNLINKED)
    if not e.has_links:
        write_to(e.newest, 4 * <Py_ssize_t> e.room)
        e.has_links = True
    if first < until:
        write_to(e.ring + first, (until - first) * sizeof(Ghost))
    e.written = max(e.written, until)     # all, once the ring has gone round: nothing that is remembered is written to


cdef inline uint32_t *newest_of(Ghosts *e, uint64_t key) noexcept nogil:
    return e.newest + ((key >> 32) * <uint64_t> <uint32_t> e.room >> 32)


cdef inline int32_t follow(Ghosts *e, uint32_t link) noexcept nogil:
    """The place of a link's ghost, or -1 if it has fallen out. Another that came there four turns later is taken for it:
    its key is another, and it is not older than the ghost that has the link, or leads to such."""
    cdef int32_t place = <int32_t> (link & PLACE)
    return place if link >> TURN_SHIFT == (e.turn - (place >= e.next) & 3) and place < e.room else -1


cdef inline bint is_older(Ghosts *e, int32_t place, int32_t other) noexcept nogil:
    return (place - e.room if place >= e.next else place) < (other - e.room if other >= e.next else other)


cdef void link_ghosts(Ghosts *e) noexcept nogil:
    """All ghosts can be found."""
    cdef int32_t[MAX_UNLINKED] places
    cdef int32_t i, place, count = 0
    cdef uint32_t turn = e.turn << TURN_SHIFT
    cdef uint32_t *newest
    if e.linked == e.next:
        return
    write_ahead(e)
    for place in range(e.linked, e.next):
        places[count] = place
        count += 1 - e.ring[place].older
    for i in range(count):
        touch(newest_of(e, e.ring[places[i]].key))
    for i in range(count):
        newest = newest_of(e, e.ring[places[i]].key)
        e.ring[places[i]].older = newest[0]
        newest[0] = turn | <uint32_t> places[i]
    e.linked = e.next


cdef void link_all(Ghosts *e) noexcept nogil:
    """From now on every ghost has a link: some block went so often that searching those hidden behind it takes long."""
    cdef int32_t i, place, count = num_used(e)
    cdef uint32_t *newest
    memset(e.newest, 0, 4 * <Py_ssize_t> e.room)
    for i in range(count):
        place = i + e.next if i + e.next < count else i + e.next - count       # the oldest first
        if e.ring[place].facts:
            newest = newest_of(e, e.ring[place].key)
            e.ring[place].older = newest[0]
            newest[0] = e.turn - (place >= e.next) << TURN_SHIFT | <uint32_t> place
    e.all_linked = True


cdef int32_t find_from(Ghosts *e, uint32_t link, int32_t up, uint64_t key, int32_t best) noexcept nogil:
    """The newest ghost of a key that lies `up` places before one from a link on; `best` if there is none, or none newer."""
    cdef int32_t place = follow(e, link), before = -1, found
    while place >= 0 and (before < 0 or is_older(e, place, before)) and (best < 0 or is_older(e, best, place)):
        found = place - up
        if found >= 0 and e.ring[found].key == key:
            e.seen = True
            if e.ring[found].facts and (best < 0 or is_older(e, best, found)):
                return found
        e.steps += up > 0
        before, place = place, follow(e, e.ring[place].older)
    return best


cdef int32_t num_above(Ghosts *e, const uint64_t *keys, int32_t block, uint64_t seed) noexcept nogil:
    """How many ancestors of a block may have links that lead to its ghosts; what is known of them is fetched."""
    cdef int32_t up, count = 0 if e.all_linked else min(block, <int32_t> MAX_HIDDEN)
    if count and e.absent and e.missed == keys[block - 1] ^ seed:
        return 0              # of what is hidden the parent lies right behind it
    link_ghosts(e)
    for up in range(count + 1):
        touch(newest_of(e, keys[block - up] ^ seed))
    return count


cdef inline int32_t find_below(Ghosts *e, uint64_t parent, uint64_t key) noexcept nogil:
    """The place before the ghost that was found last, if that is the parent's and this a block's own, or -1. Of those of
    the block that are hidden none is newer: it would lie before a newer one of the parent's."""
    cdef int32_t place = e.found - 1
    if place < 0 or e.ring[place].key != key or not e.ring[place].facts:
        return -1
    return place if e.ring[e.found].key == parent and e.ring[e.found].facts else -1


cdef int32_t find_ghost(Ghosts *e, const uint64_t *keys, int32_t block, uint64_t seed) noexcept nogil:
    """The place of the newest ghost of a block, or -1. Of its text the keys, each xor the seed, up to its own."""
    cdef uint64_t key = keys[block] ^ seed
    cdef int32_t place = -1, up
    if e.count == 0:
        return -1
    if block and e.found > 0:
        place = find_below(e, keys[block - 1] ^ seed, key)
    if place >= 0:
        place = find_from(e, newest_of(e, key)[0], 0, key, place)
    else:
        e.steps, e.seen = 0, False
        for up in range(num_above(e, keys, block, seed) + 1):
            place = find_from(e, newest_of(e, keys[block - up] ^ seed)[0], up, key, place)
        e.absent, e.missed = not e.seen, key
        if e.steps > MAX_STEPS:
            link_all(e)
    e.found = place
    return place


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


cdef int32_t take_from(Ghosts *e, uint32_t link, int32_t up, uint64_t key, int32_t newest) noexcept nogil:
    """Of the ghosts of a key that lie `up` places before those from a link on, and `newest`, only the newest is left."""
    cdef int32_t place = follow(e, link), before = -1, found
    while place >= 0 and (before < 0 or is_older(e, place, before)):
        found = place - up
        if found >= 0 and found != newest and e.ring[found].key == key and e.ring[found].facts:
            if newest < 0 or is_older(e, newest, found):
                newest, found = found, newest
            if found >= 0:
                leave_place(e, found)
        e.steps += up > 0
        before, place = place, follow(e, e.ring[place].older)
    return newest


cdef int32_t take_ghost(Ghosts *e, const uint64_t *keys, int32_t block, uint64_t seed) noexcept nogil:
    """The place of the newest ghost of a block, whose facts the caller has to erase, or -1; it has none any more."""
    cdef uint64_t key = keys[block] ^ seed
    cdef int32_t place = -1, up
    if e.count == 0:
        return -1
    e.steps = 0
    for up in range(num_above(e, keys, block, seed) + 1):
        place = take_from(e, newest_of(e, keys[block - up] ^ seed)[0], up, key, place)
    if e.steps > MAX_STEPS:
        link_all(e)
    e.count -= place >= 0
    return place


cdef void drop_ghost(Ghosts *e, const uint64_t *keys, int32_t block, uint64_t seed) noexcept nogil:
    """The ghosts of a block are none any more."""
    cdef int32_t place = take_ghost(e, keys, block, seed)
    if place >= 0:
        e.ring[place].facts = 0


cdef inline Ghost *make_ghost(Ghosts *e, uint64_t key, uint64_t above) noexcept nogil:
    """The next place for a block, with the key of its parent."""
    cdef Ghost *ghost = e.ring + e.next
    cdef bint hides = key == e.above and e.next > e.linked and e.hidden < MAX_HIDDEN and not e.all_linked
    if hides:                 # the one before it, which needs no link
        e.ring[e.next - 1].older = 1
    e.hidden = e.hidden + 1 if hides else 0
    e.count += ghost.facts == 0
    ghost.key, ghost.older, e.above = key, 0, above
    e.next, e.found, e.absent = e.next + 1, -1, False
    if e.next == e.room or e.next - e.linked == MAX_UNLINKED:
        link_ghosts(e)
        if e.next == e.room:
            e.next = e.linked = 0
            e.turn += 1
    return ghost


cdef inline uint32_t kind_of_loss(int32_t why, int32_t reuse) noexcept nogil:
    """Why a page went and its class in four bits, never 0: a gap has no facts."""
    return <uint32_t> (2 * reuse + why)


cdef inline void add_ghost(Ghosts *e, uint64_t key, uint64_t above, int64_t now, uint32_t admission,
                           int32_t why, int32_t reuse) noexcept nogil:
    """A page is gone now; no order learns from it."""
    cdef Ghost *ghost
    if e.room:
        ghost = make_ghost(e, key, above)
        ghost.facts, ghost.used, ghost.admission = kind_of_loss(why, reuse), now, admission


cdef void ghosts_clear(Ghosts *e) noexcept nogil:
    """Forget all, as if none had ever been."""
    cdef int32_t place
    if e.turn == 1 and e.next == 0:
        return                # there is none
    e.written = max(e.written, num_used(e))
    for place in range(num_used(e)):
        e.ring[place].facts = 0
    if e.has_links:
        memset(e.newest, 0, 4 * <Py_ssize_t> e.room)
    e.next, e.linked, e.count, e.turn, e.found, e.absent, e.all_linked = 0, 0, 0, 1, -1, False, False


cdef inline uint32_t rest_of(int64_t used, int64_t now) noexcept nogil:
    """Quarters of a second from a page's last use until now, the nearest number."""
    return <uint32_t> min((max(<int64_t> 0, now - used) + REST_TICKS // 2) // REST_TICKS, <int64_t> MAX_REST)


cdef inline int32_t uses_of(Ghost *ghost) noexcept nogil:
    return ghost.facts >> 4 & 0xFF


cdef inline int64_t gone_at(Ghost *ghost) noexcept nogil:
    """The tick at which a page went, to a quarter of a second."""
    if uses_of(ghost) == 0:
        return ghost.used     # of an order that learns nothing: when it went
    return (ghost.used + (ghost.facts >> 12) * <int64_t> REST_TICKS + REST_TICKS // 2) // REST_TICKS * REST_TICKS


cdef inline int32_t why_of(Ghost *ghost) noexcept nogil:
    return 1 + ((ghost.facts & 15) - 1 & 1)


cdef inline int32_t reuse_of(Ghost *ghost) noexcept nogil:
    """The class."""
    return ((ghost.facts & 15) - 1) >> 1
