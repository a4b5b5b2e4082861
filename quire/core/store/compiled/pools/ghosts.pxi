# Owns: what is known of pages that are gone, the last so many of a group: a ring, first in, first out, in columns of 24
# bytes a ghost, and an index of 8: buckets of one line of memory, a ghost's place and as much of its key as fits in
# each entry. A ghost that is taken leaves a gap in the ring. The entry of one that falls out stays behind: it is known
# to be dead by its place and the turn of the ring in which it was made, and the next that needs room takes it.
# Ghosts that no order learns from are found later: those between `indexed` and `next` are in the ring alone, until
# somebody looks for one or there are MAX_UNFOUND. Far memory is slow, but comes at once to whoever asks for much of it.
# Does not know: pages that are there, what a ghost is remembered for.

cdef extern from *:
    """
    /* Of the 16 numbers of a bucket, bit i for number i. Matches: those that are `wanted` where `mask` has ones. Free:
       those whose place (+ 1, in the bits of `places`) is 0, or whose turn of the ring is not that of what is there:
       up to `last` that is the turn with this `turn` bit, behind it the other. */
    #if defined(__GNUC__)
    typedef uint32_t quire_four __attribute__((vector_size(16), aligned(4), may_alias));
    typedef int32_t quire_signed __attribute__((vector_size(16), aligned(4), may_alias));
    /* Of sixteen numbers, each all ones or 0: bit i for number i. */
    #if defined(__SSE2__)
    #include <emmintrin.h>
    static inline uint32_t quire_bits(quire_four a, quire_four b, quire_four c, quire_four d) {
        __m128i first = _mm_packs_epi32((__m128i) a, (__m128i) b), last = _mm_packs_epi32((__m128i) c, (__m128i) d);
        return (uint32_t) _mm_movemask_epi8(_mm_packs_epi16(first, last));
    }
    #else
    static inline uint32_t quire_bits(quire_four a, quire_four b, quire_four c, quire_four d) {
        const quire_four bits = {1, 2, 4, 8};
        quire_four all = (a & bits) | (b & (bits << 4)) | (c & (bits << 8)) | (d & (bits << 12));
        return (all[0] | all[1]) | (all[2] | all[3]);
    }
    #endif
    static inline uint32_t quire_matches(const uint32_t *numbers, uint32_t mask, uint32_t wanted) {
        const quire_four *x = (const quire_four *) numbers;
        return quire_bits((quire_four) ((x[0] & mask) == wanted), (quire_four) ((x[1] & mask) == wanted),
                          (quire_four) ((x[2] & mask) == wanted), (quire_four) ((x[3] & mask) == wanted));
    }
    static inline quire_four quire_dead(quire_four x, uint32_t places, uint32_t last, uint32_t bit, uint32_t turn) {
        quire_four place = x & places, same = (quire_four) ((x & bit) == turn);
        quire_four early = (quire_four) ((quire_signed) place <= (int32_t) last);     /* SSE2 compares signed numbers */
        return (quire_four) (place == 0) | (early ^ same);
    }
    static inline uint32_t quire_free(const uint32_t *numbers, uint32_t places, uint32_t last, uint32_t turn) {
        const quire_four *x = (const quire_four *) numbers;
        uint32_t bit = places + 1;
        return quire_bits(quire_dead(x[0], places, last, bit, turn), quire_dead(x[1], places, last, bit, turn),
                          quire_dead(x[2], places, last, bit, turn), quire_dead(x[3], places, last, bit, turn));
    }
    #else
    static inline uint32_t quire_matches(const uint32_t *numbers, uint32_t mask, uint32_t wanted) {
        uint32_t found = 0;
        for (int i = 0; i < 16; i++) found |= (uint32_t) ((numbers[i] & mask) == wanted) << i;
        return found;
    }
    static inline uint32_t quire_free(const uint32_t *numbers, uint32_t places, uint32_t last, uint32_t turn) {
        uint32_t found = 0, bit = places + 1;
        for (int i = 0; i < 16; i++) {
            uint32_t place = numbers[i] & places;
            found |= (uint32_t) (place == 0 || (place <= last) != ((numbers[i] & bit) == turn)) << i;
        }
        return found;
    }
    #endif
    """
    uint32_t matches "quire_matches"(const uint32_t *numbers, uint32_t mask, uint32_t wanted) noexcept nogil
    uint32_t free_entries "quire_free"(const uint32_t *numbers, uint32_t places, uint32_t last,
                                       uint32_t turn) noexcept nogil

cdef enum:
    MOST_GHOSTS = 1 << 30
    MAX_REST = 0xFFFFF
    BUCKET = 16               # numbers: what found no room in it, then entries
    ENTRIES = 0xFFFE          # which of them those are, as bits
    FILL = 8                  # of them in use, on average
    FAR_BITS = 12             # of what found no room: how many buckets on the farthest is, and the turn of the last one
    MAX_UNFOUND = 512         # ghosts that are not in the index yet
    FETCHED = 18                # of those, how many are fetched before the one that is entered

cdef struct Ghosts:
    uint64_t *keys            # of the block under its parents and its scope
    int64_t *used             # when an admission last used it
    uint32_t *admission       # admissions so far, the one it made room for included
    uint32_t *facts           # quarters of a second that it rested until it went << 12 | uses << 4 | why << 2 | class
    uint32_t *index           # low bits of the key | turn & 1 | place + 1; 0: free
    void *index_memory        # where it was had
    int64_t num_buckets
    uint32_t places           # mask of a place in an entry
    int32_t bits              # of it and the turn
    uint32_t turn             # of the ring
    int32_t room
    int32_t next
    int32_t indexed           # places from here to `next` have no entry; equal in an order that learns
    int32_t count             # too high by those of one key among them


cdef int ghosts_open(Ghosts *e, int64_t room) noexcept nogil:
    """-1 without memory."""
    cdef Py_ssize_t n = <Py_ssize_t> min(room, <int64_t> MOST_GHOSTS)
    e.room, e.num_buckets, e.bits = <int32_t> n, max(<int64_t> 2, 2 * ((n + 2 * FILL - 1) // (2 * FILL))), 1
    while n >> e.bits - 1:
        e.bits += 1
    e.places = (<uint32_t> 1 << e.bits - 1) - 1
    e.keys = <uint64_t *> malloc(8 * n + 1)
    e.used = <int64_t *> malloc(8 * n + 1)
    e.admission = <uint32_t *> malloc(4 * n + 1)
    e.facts = <uint32_t *> calloc(n + 1, 4)
    e.index_memory = calloc(4 * BUCKET * e.num_buckets + LINE, 1)
    e.index = <uint32_t *> on_line(e.index_memory)
    scattered(e.index_memory, 4 * BUCKET * e.num_buckets)
    write_to(e.keys, 8 * n)
    write_to(e.used, 8 * n)
    write_to(e.admission, 4 * n)
    write_to(e.facts, 4 * n)
    write_to(e.index_memory, 4 * BUCKET * e.num_buckets)
    return 0 if e.keys and e.used and e.admission and e.facts and e.index_memory else -1


cdef void ghosts_close(Ghosts *e) noexcept nogil:
    free(e.keys)
    free(e.used)
    free(e.admission)
    free(e.facts)
    free(e.index_memory)


cdef inline int64_t ghosts_bytes(Ghosts *e) noexcept nogil:
    return 24 * <int64_t> e.room + 4 * BUCKET * e.num_buckets


cdef inline int64_t ghost_home(Ghosts *e, uint64_t key) noexcept nogil:
    return <int64_t> ((key >> 32) * <uint64_t> e.num_buckets >> 32)


cdef inline uint32_t *bucket_at(Ghosts *e, int64_t home, int64_t far) noexcept nogil:
    """The bucket where a ghost finds room, if not at home: its neighbour, then those behind."""
    cdef int64_t bucket = home ^ far if far < 2 else home + far
    return e.index + BUCKET * (bucket if bucket < e.num_buckets else bucket % e.num_buckets)


cdef inline int32_t farthest(Ghosts *e, uint32_t *bucket) noexcept nogil:
    """How far on ghosts of a bucket may be; what went elsewhere is forgotten two turns later."""
    cdef uint32_t since = (e.turn - (bucket[0] >> FAR_BITS)) << FAR_BITS
    return 0 if since >= <uint32_t> 2 << FAR_BITS else bucket[0] & (1 << FAR_BITS) - 1


cdef inline void fetch_home(Ghosts *e, uint64_t key) noexcept nogil:
    touch(e.index + BUCKET * ghost_home(e, key))


cdef inline void fetch_next(Ghosts *e, uint64_t key) noexcept nogil:
    """After that: the neighbour too, if a ghost may be there."""
    if farthest(e, e.index + BUCKET * ghost_home(e, key)):
        touch(bucket_at(e, ghost_home(e, key), 1))


cdef uint32_t *find_entry(Ghosts *e, uint64_t key) noexcept nogil:
    """The entry of a key's ghost, or NULL."""
    cdef int64_t home = ghost_home(e, key), far
    cdef uint32_t found, place, mask = ~(2 * e.places + 1), tag = <uint32_t> (key << e.bits)
    cdef uint32_t *bucket = bucket_at(e, home, 0)
    for far in range(farthest(e, bucket) + 1):
        bucket = bucket_at(e, home, far)
        found = matches(bucket, mask, tag) & ENTRIES
        while found:
            place = bucket[lowest_bit(found)] & e.places
            if place and e.keys[place - 1] == key and e.facts[place - 1]:
                return bucket + lowest_bit(found)
            found &= found - 1
    return NULL


cdef void add_entry(Ghosts *e, uint64_t key, int32_t place) noexcept nogil:
    """A key, of which there is none, is at a place, the next one, from now on."""
    cdef int64_t home = ghost_home(e, key), far = 0
    cdef uint32_t turn = (e.turn & 1) << e.bits - 1, now = e.turn << FAR_BITS
    cdef uint32_t *bucket = bucket_at(e, home, 0)
    cdef uint32_t *first = bucket
    cdef uint32_t found = free_entries(bucket, e.places, place, turn) & ENTRIES
    while found == 0:
        far += 1
        bucket = bucket_at(e, home, far)
        found = free_entries(bucket, e.places, place, turn) & ENTRIES
    bucket[lowest_bit(found)] = <uint32_t> (key << e.bits) | turn | <uint32_t> (place + 1)
    if far:
        first[0] = now | <uint32_t> max(far, <int64_t> farthest(e, first))


cdef inline void leave_entry(Ghosts *e, uint32_t *entry, uint64_t key) noexcept nogil:
    """An entry, if it is a key's, goes, and its ghost with it; not one to whose place the next of that key has come."""
    cdef int32_t place = <int32_t> (entry[0] & e.places) - 1
    if place < 0 or e.keys[place] != key:
        return
    entry[0] = 0
    if e.facts[place] and not e.indexed <= place < e.next:
        e.facts[place] = 0
        e.count -= 1


cdef void enter_ghost(Ghosts *e, int32_t place) noexcept nogil:
    """The first ghost without entry gets one; an older one of its key is none any more."""
    cdef uint64_t key = e.keys[place]
    cdef uint32_t *bucket = e.index + BUCKET * ghost_home(e, key)
    cdef uint32_t turn = (e.turn & 1) << e.bits - 1, tag = <uint32_t> (key << e.bits), found = 0
    cdef uint32_t *old
    if farthest(e, bucket):
        old = find_entry(e, key)
        if old != NULL:
            leave_entry(e, old, key)
    else:
        found = matches(bucket, ~(2 * e.places + 1), tag) & ENTRIES
    while found:
        leave_entry(e, bucket + lowest_bit(found), key)
        found &= found - 1
    found = free_entries(bucket, e.places, place, turn) & ENTRIES
    if found:
        bucket[lowest_bit(found)] = tag | turn | <uint32_t> (place + 1)
    else:
        add_entry(e, key, place)


cdef void enter_ghosts(Ghosts *e) noexcept nogil:
    """All ghosts can be found. Nothing waits here for what is fetched: a prefetch is enough, and holds up nobody."""
    cdef int32_t place
    for place in range(e.indexed, min(e.indexed + FETCHED, e.next)):
        prefetch(e.index + BUCKET * ghost_home(e, e.keys[place]))
    for place in range(e.indexed, e.next):
        if place + FETCHED < e.next:
            prefetch(e.index + BUCKET * ghost_home(e, e.keys[place + FETCHED]))
        if place + FETCHED // 3 < e.next:
            fetch_next(e, e.keys[place + FETCHED // 3])
        enter_ghost(e, place)
        e.indexed = place + 1


cdef int32_t take_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of a key's ghost, which is found no more and whose facts the caller has to erase; or -1."""
    cdef uint32_t *entry = find_entry(e, key)
    cdef int32_t place
    if entry == NULL:
        return -1
    place = <int32_t> (entry[0] & e.places) - 1
    entry[0] = 0
    e.count -= 1
    return place


cdef int32_t find_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of a key's ghost, or -1."""
    cdef uint32_t *entry
    enter_ghosts(e)
    entry = find_entry(e, key) if e.count else NULL
    return -1 if entry == NULL else <int32_t> (entry[0] & e.places) - 1


cdef void forget_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The ghost of a key, if there is one that can be found, is none any more."""
    cdef int32_t place = take_ghost(e, key)
    if place >= 0:
        e.facts[place] = 0


cdef inline int32_t make_place(Ghosts *e, uint64_t key) noexcept nogil:
    """The place of the next ghost, for a key; an older one of it is none any more. A ghost that still has its facts
    there has fallen out for it. Mostly one bucket is all that is looked at: by itself, as a pool that is full does it
    for every page."""
    cdef int32_t place = e.next
    cdef uint32_t *bucket = e.index + BUCKET * ghost_home(e, key)
    cdef uint32_t turn = (e.turn & 1) << e.bits - 1, tag = <uint32_t> (key << e.bits), found
    if farthest(e, bucket) or matches(bucket, ~(2 * e.places + 1), tag) & ENTRIES:
        forget_ghost(e, key)
    e.count += e.facts[place] == 0
    e.keys[place] = key
    found = free_entries(bucket, e.places, place, turn) & ENTRIES
    if found:
        bucket[lowest_bit(found)] = tag | turn | <uint32_t> (place + 1)
    else:
        add_entry(e, key, place)
    e.next += 1
    if e.next == e.room:
        e.next = 0
        e.turn += 1
    e.indexed = e.next
    return place


cdef void add_ghost(Ghosts *e, uint64_t key, int64_t now, uint32_t admission, int32_t why) noexcept nogil:
    """A page is gone now; no order learns from it."""
    cdef int32_t place = e.next
    if e.room == 0:
        return
    e.count += e.facts[place] == 0
    e.keys[place], e.used[place], e.admission[place], e.facts[place] = key, now, admission, <uint32_t> why << 2
    e.next += 1
    if e.next == e.room or e.next - e.indexed == MAX_UNFOUND:
        enter_ghosts(e)
    if e.next == e.room:
        e.next = e.indexed = 0
        e.turn += 1


cdef void drop_ghost(Ghosts *e, uint64_t key) noexcept nogil:
    """The ghost of a key, if there is one, is none any more."""
    enter_ghosts(e)
    if e.count:
        forget_ghost(e, key)


cdef void ghosts_clear(Ghosts *e) noexcept nogil:
    """Forget all, as if none had ever been."""
    memset(e.facts, 0, 4 * <Py_ssize_t> e.room)
    memset(e.index, 0, 4 * BUCKET * e.num_buckets)
    e.next = e.indexed = e.count = e.turn = 0


cdef inline uint32_t rest_of(int64_t used, int64_t now) noexcept nogil:
    """Whole quarters of a second from a page's last use until now."""
    return <uint32_t> min(max(<int64_t> 0, now - used) // AGING_TICKS, <int64_t> MAX_REST)


cdef inline int64_t gone_at(Ghosts *e, int32_t place) noexcept nogil:
    """The tick at which a page went, to a quarter of a second."""
    return e.used[place] + (e.facts[place] >> 12) * <int64_t> AGING_TICKS


cdef inline int32_t why_of(Ghosts *e, int32_t place) noexcept nogil:
    return e.facts[place] >> 2 & 3


cdef inline int32_t uses_of(Ghosts *e, int32_t place) noexcept nogil:
    return e.facts[place] >> 4 & 0xFF


cdef inline int32_t reuse_of(Ghosts *e, int32_t place) noexcept nogil:
    """The class."""
    return e.facts[place] & 3
