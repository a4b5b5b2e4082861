# Owns: what is known of pages that are gone, the last so many of a group: a ring, first in, first out, in columns of 26
# bytes a ghost, and an index of not quite 6: buckets of one line of memory, a ghost's place and as much of its key as
# fits in each entry. A ghost that is taken leaves a gap in the ring.
# Does not know: pages that are there, what a ghost is remembered for.

cdef extern from *:
    """
    /* Which of 16 numbers are `wanted` where `mask` has ones: bit i for number i. */
    #if defined(__GNUC__)
    typedef uint32_t quire_four __attribute__((vector_size(16), aligned(4), may_alias));
    static inline uint32_t quire_matches(const uint32_t *numbers, uint32_t mask, uint32_t wanted) {
        const quire_four *x = (const quire_four *) numbers, bits = {1, 2, 4, 8};
        quire_four found = (quire_four) ((x[0] & mask) == wanted) & bits;
        found |= (quire_four) ((x[1] & mask) == wanted) & (bits << 4);
        found |= (quire_four) ((x[2] & mask) == wanted) & (bits << 8);
        found |= (quire_four) ((x[3] & mask) == wanted) & (bits << 12);
        return found[0] | found[1] | found[2] | found[3];
    }
    #else
    static inline uint32_t quire_matches(const uint32_t *numbers, uint32_t mask, uint32_t wanted) {
        uint32_t found = 0;
        for (int i = 0; i < 16; i++) found |= (uint32_t) ((numbers[i] & mask) == wanted) << i;
        return found;
    }
    #endif
    """
    uint32_t matches "quire_matches"(const uint32_t *numbers, uint32_t mask, uint32_t wanted) noexcept nogil

cdef enum:
    MOST_GHOSTS = 1 << 30
    TICKS_PER_MILLISECOND = 1000
    MAX_REST = 0xFFFFFFFF
    BUCKET = 16               # numbers: what found no room in it, then entries
    ENTRIES = 0xFFFE          # which of them those are, as bits
    FILL = 11                 # of them in use, on average
    SPILLED = 1 << 16         # of what found no room: how many, and below how many buckets on the farthest of them is

cdef struct Ghosts:
    uint64_t *keys            # of the block under its parents and its scope
    int64_t *used             # when an admission last used it
    uint32_t *rest            # milliseconds from then on until it went
    uint32_t *admission       # admissions so far, the one it made room for included
    unsigned char *uses
    unsigned char *marks      # class | why << 4; 0: a gap
    uint32_t *index           # low bits of the key | place + 1; 0: free
    void *index_memory        # where it was had
    int64_t num_buckets
    uint32_t places           # mask of a place in an entry
    int32_t bits              # of it
    int32_t room
    int32_t next
    int32_t count


cdef int ghosts_open(Ghosts *e, int64_t room) noexcept nogil:
    """-1 without memory."""
    cdef Py_ssize_t n = <Py_ssize_t> min(room, <int64_t> MOST_GHOSTS)
    e.room, e.num_buckets = <int32_t> n, n // FILL + 1
    while n >> e.bits:
        e.bits += 1
    e.places = (<uint32_t> 1 << e.bits) - 1
    e.keys = <uint64_t *> malloc(8 * n + 1)
    e.used = <int64_t *> malloc(8 * n + 1)
    e.rest = <uint32_t *> malloc(4 * n + 1)
    e.admission = <uint32_t *> malloc(4 * n + 1)
    e.uses = <unsigned char *> malloc(n + 1)
    e.marks = <unsigned char *> calloc(n + 1, 1)
    e.index_memory = calloc(e.num_buckets + 1, 4 * BUCKET)
    e.index = <uint32_t *> ((<size_t> e.index_memory + 63) & ~<size_t> 63)
    return 0 if e.keys and e.used and e.rest and e.admission and e.uses and e.marks and e.index_memory else -1


cdef void ghosts_close(Ghosts *e) noexcept nogil:
    free(e.keys)
    free(e.used)
    free(e.rest)
    free(e.admission)
    free(e.uses)
    free(e.marks)
    free(e.index_memory)


cdef inline int64_t ghosts_bytes(Ghosts *e) noexcept nogil:
    return 26 * <int64_t> e.room + 4 * BUCKET * e.num_buckets


cdef inline int64_t ghost_home(Ghosts *e, uint64_t key) noexcept nogil:
    return <int64_t> ((key >> 32) * <uint64_t> e.num_buckets >> 32)


cdef inline void fetch_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    prefetch(e.index + BUCKET * ghost_home(e, key))


cdef inline uint32_t *bucket_at(Ghosts *e, int64_t home, int64_t far) noexcept nogil:
    cdef int64_t bucket = home + far
    return e.index + BUCKET * (bucket if bucket < e.num_buckets else bucket - e.num_buckets)


cdef int32_t find_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of a key's ghost, or -1."""
    cdef int64_t home = ghost_home(e, key), far
    cdef uint32_t found, entry, tag = <uint32_t> key << e.bits
    cdef uint32_t *bucket = bucket_at(e, home, 0)
    cdef int32_t last = bucket[0] % SPILLED
    for far in range(last + 1):
        bucket = bucket_at(e, home, far)
        found = matches(bucket, ~e.places, tag) & ENTRIES
        while found:
            entry = bucket[lowest_bit(found)] & e.places
            if entry and e.keys[entry - 1] == key:
                return <int32_t> entry - 1
            found &= found - 1
    return -1


cdef void count_spill(uint32_t *home, uint32_t far, bint comes) noexcept nogil:
    """An entry of a bucket comes into another so far on, or goes from there."""
    if comes:
        home[0] = max(home[0] % SPILLED, far) + (home[0] // SPILLED + 1) * SPILLED
    else:
        home[0] -= SPILLED
        if home[0] < SPILLED:
            home[0] = 0


cdef void replace_entry(Ghosts *e, uint64_t key, uint32_t old, uint32_t new) noexcept nogil:
    """An entry with this key, which is there, becomes another: one goes (to 0), or comes (from 0)."""
    cdef int64_t home = ghost_home(e, key), far = 0
    cdef uint32_t *bucket = bucket_at(e, home, 0)
    cdef uint32_t found = matches(bucket, 0xFFFFFFFF, old) & ENTRIES
    while found == 0:
        far += 1
        bucket = bucket_at(e, home, far)
        found = matches(bucket, 0xFFFFFFFF, old) & ENTRIES
    bucket[lowest_bit(found)] = new
    if far:
        count_spill(bucket_at(e, home, 0), <uint32_t> far, new != 0)


cdef inline uint32_t entry_of(Ghosts *e, uint64_t key, int32_t place) noexcept nogil:
    return <uint32_t> key << e.bits | <uint32_t> (place + 1)


cdef int32_t take_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of a key's ghost, which is found no more and whose mark the caller has to erase; or -1."""
    cdef int32_t place = find_ghost(e, key)
    if place >= 0:
        replace_entry(e, key, entry_of(e, key, place), 0)
        e.count -= 1
    return place


cdef int32_t make_place(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of the next ghost, for a key. A ghost that still has its mark there has fallen out for it."""
    cdef int32_t old = take_ghost(e, key), place = e.next, ahead = place + 8
    if old >= 0:
        e.marks[old] = 0      # of the same block
    e.next = e.next + 1 if e.next + 1 < e.room else 0
    if e.marks[place]:
        replace_entry(e, e.keys[place], entry_of(e, e.keys[place], place), 0)
        e.count -= 1
        if ahead < e.room:
            fetch_ghost(e, e.keys[ahead])         # it falls out soon
    e.keys[place] = key
    replace_entry(e, key, 0, entry_of(e, key, place))
    e.count += 1
    return place


cdef void ghosts_clear(Ghosts *e) noexcept nogil:
    """Forget all, as if none had ever been."""
    memset(e.marks, 0, e.room)
    memset(e.index, 0, 4 * BUCKET * e.num_buckets)
    e.next = e.count = 0


cdef inline uint32_t rest_of(int64_t used, int64_t now) noexcept nogil:
    """Whole milliseconds from a page's last use until now."""
    return <uint32_t> min(max(<int64_t> 0, now - used) // TICKS_PER_MILLISECOND, <int64_t> MAX_REST)
