# Owns: one table per group: event hash -> card with the page's holders; per worker the list of its cards, their sums.
# Does not know: records, workers by name, sockets. Both sides of a stream keep the same tables.
#
#     buckets ──► cards: hash, holders (worker, tier, priority, at) ◄──at── stock of a worker: its cards, sums by tier
#
# Memory goes by what workers have, and forgetting a worker walks only its own list.

cdef enum:
    LEDGER_TIERS = 8
    SUM_WIDTH = 3             # number of pages, two lanes of their sum
    NO_CARD = 0xFFFFFFFF

cdef struct Stock:            # what one worker has of a group
    uint64_t sums[LEDGER_TIERS * SUM_WIDTH]
    uint32_t *cards           # in no order
    Py_ssize_t count
    Py_ssize_t room

cdef struct HolderTable:
    Card *cards               # the free ones among them have no holders
    Py_ssize_t room
    uint32_t used             # cards ever taken
    uint32_t free             # the first that is free again
    uint32_t count            # cards with holders
    uint32_t *buckets         # first card by a secret function of its hash
    uint64_t mask


cdef inline uint64_t buckets_for(uint64_t cards) noexcept nogil:
    """At least two per card, as a power of two: a card that is looked at in vain costs a walk to memory."""
    cdef uint64_t places = 64
    while places < 2 * cards:
        places *= 2
    return places


cdef inline uint64_t bucket_of(const HolderTable *f, uint64_t hash) noexcept nogil:
    """Workers say which hashes they have: one that cannot guess our secret cannot put them all in one bucket."""
    return fold(hash ^ SECRET[0], SECRET[1] | 1) & f.mask


cdef inline void table_link(HolderTable *f, uint32_t card) noexcept nogil:
    """A card goes into its bucket."""
    cdef uint32_t *bucket = f.buckets + bucket_of(f, f.cards[card].hash)
    f.cards[card].next = bucket[0]
    bucket[0] = card


cdef int table_hang(HolderTable *f, uint64_t places) noexcept nogil:
    """All cards with holders, in that many buckets; -1 without memory, and then nothing has changed."""
    cdef uint32_t *buckets = <uint32_t *> malloc(places * sizeof(uint32_t))
    cdef uint32_t i
    if buckets == NULL:
        return -1
    memset(buckets, 0xFF, places * sizeof(uint32_t))
    free(f.buckets)
    f.buckets, f.mask = buckets, places - 1
    for i in range(f.used):
        if f.cards[i].count:
            table_link(f, i)
    return 0


cdef int table_open(HolderTable *f) noexcept nogil:
    """An empty table; -1 without memory."""
    memset(f, 0, sizeof(HolderTable))
    f.free = NO_CARD
    return table_hang(f, buckets_for(0))


cdef void table_close(HolderTable *f) noexcept nogil:
    cdef uint32_t i
    for i in range(f.used):
        if f.cards[i].count > 1:
            free(f.cards[i].held.many)
    free(f.cards)
    free(f.buckets)


cdef inline uint32_t table_find(HolderTable *f, uint64_t hash) noexcept nogil:
    """The card of a hash, or NO_CARD."""
    cdef uint32_t card = f.buckets[bucket_of(f, hash)]
    while card != NO_CARD and f.cards[card].hash != hash:
        card = f.cards[card].next
    return card


cdef int table_reserve(HolderTable *f, Stock *s, Py_ssize_t more) noexcept nogil:
    """Room for that many more cards, and for as many in a worker's list; -1 without memory."""
    cdef uint64_t wanted = <uint64_t> f.count + more
    if wanted >= NO_CARD:
        return -1
    if reserve(<void **> &f.cards, &f.room, wanted, sizeof(Card)):
        return -1
    if reserve(<void **> &s.cards, &s.room, s.count + more, sizeof(uint32_t)):
        return -1
    return table_hang(f, buckets_for(wanted)) if 2 * wanted > f.mask + 1 else 0


cdef inline uint32_t table_take(HolderTable *f, uint64_t hash) noexcept nogil:
    """A card for a hash that has none; there is room."""
    cdef uint32_t card = f.free
    if card == NO_CARD:
        card = f.used
        f.used += 1
    else:
        f.free = f.cards[card].next
    f.cards[card].hash, f.cards[card].count = hash, 0
    table_link(f, card)
    f.count += 1
    return card


cdef void table_let_go(HolderTable *f, uint32_t card, Holder *holder) noexcept nogil:
    """A page has one holder less; after the last its card is free."""
    cdef uint32_t *link = f.buckets + bucket_of(f, f.cards[card].hash)    # what names it
    holder_drop(f.cards + card, holder)
    if f.cards[card].count:
        return
    while link[0] != card:
        link = &f.cards[link[0]].next
    link[0] = f.cards[card].next
    f.cards[card].next = f.free
    f.free = card
    f.count -= 1


cdef inline void sum_add(Stock *s, uint64_t hash, const Holder *holder) noexcept nogil:
    """A page counts in the sum of its tier."""
    cdef uint64_t *sum = s.sums + SUM_WIDTH * holder.tier
    sum[0] += 1
    sum[1] += fold(hash ^ K0, K1 + holder.priority)
    sum[2] += fold(hash ^ K2, K3 + holder.priority)


cdef inline void sum_drop(Stock *s, uint64_t hash, const Holder *holder) noexcept nogil:
    cdef uint64_t *sum = s.sums + SUM_WIDTH * holder.tier
    sum[0] -= 1
    sum[1] -= fold(hash ^ K0, K1 + holder.priority)
    sum[2] -= fold(hash ^ K2, K3 + holder.priority)


cdef inline int table_put(HolderTable *f, Stock *s, uint64_t hash, uint16_t worker, int tier,
                          int priority) noexcept nogil:
    """A worker has the page there now; 1 when it had one before, -1 without memory. There is room in the lists."""
    cdef uint32_t card = table_find(f, hash)
    cdef Holder *holder = holder_find(f.cards + card, worker) if card != NO_CARD else NULL
    cdef int known = holder != NULL
    if known:
        sum_drop(s, hash, holder)
    else:
        card = card if card != NO_CARD else table_take(f, hash)
        holder = holder_add(f.cards + card, worker)
        if holder == NULL:
            return -1
        holder.at = <uint32_t> s.count
        s.cards[s.count] = card
        s.count += 1
    holder.tier, holder.priority = <unsigned char> tier, <unsigned char> priority
    sum_add(s, hash, holder)
    return known


cdef inline int table_change(HolderTable *f, Stock *s, uint64_t hash, uint16_t worker, int tier,
                             int priority) noexcept nogil:
    """A page is in another tier or has another priority (-1: as before); 1 when the worker has no such page."""
    cdef uint32_t card = table_find(f, hash)
    cdef Holder *holder = holder_find(f.cards + card, worker) if card != NO_CARD else NULL
    if holder == NULL:
        return 1
    sum_drop(s, hash, holder)
    if tier >= 0:
        holder.tier = <unsigned char> tier
    if priority >= 0:
        holder.priority = <unsigned char> priority
    sum_add(s, hash, holder)
    return 0


cdef inline int table_drop(HolderTable *f, Stock *s, uint64_t hash, uint16_t worker) noexcept nogil:
    """A worker has the page no more; 1 when it had none. The last of its list takes the place."""
    cdef uint32_t last, card = table_find(f, hash)
    cdef Holder *holder = holder_find(f.cards + card, worker) if card != NO_CARD else NULL
    if holder == NULL:
        return 1
    sum_drop(s, hash, holder)
    s.count -= 1
    last = s.cards[s.count]
    if last != card:
        s.cards[holder.at] = last
        holder_find(f.cards + last, worker).at = holder.at
    table_let_go(f, card, holder)
    return 0


cdef void table_wipe(HolderTable *f, Stock *s, uint16_t worker) noexcept nogil:
    """A worker has nothing any more."""
    cdef Py_ssize_t i
    for i in range(s.count):
        table_let_go(f, s.cards[i], holder_find(f.cards + s.cards[i], worker))
    free(s.cards)
    memset(s, 0, sizeof(Stock))


cdef void table_pack(HolderTable *f, Stock *stocks, Py_ssize_t stride) noexcept nogil:
    """Give back what was needed by many more cards than there are; without memory to do so all stays as it is.

    Cards get new numbers; workers' lists follow. `stocks` are those of this group, `stride` apart.
    """
    cdef HolderTable small
    cdef Holder *holders
    cdef uint32_t i, k
    if f.room < 4096 or 4 * <Py_ssize_t> f.count > f.room or table_open(&small):
        return
    if reserve(<void **> &small.cards, &small.room, f.count, sizeof(Card)) or table_hang(&small, buckets_for(f.count)):
        table_close(&small)
        return
    for i in range(f.used):
        if f.cards[i].count:
            small.cards[small.used] = f.cards[i]
            table_link(&small, small.used)
            holders = holders_of(small.cards + small.used)
            for k in range(f.cards[i].count):
                stocks[holders[k].worker * stride].cards[holders[k].at] = small.used
            small.used += 1
    small.count = small.used
    free(f.cards)
    free(f.buckets)
    f[0] = small
