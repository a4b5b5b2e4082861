# Owns: who has one published page: its holders by worker, in as little memory as they need.
# Does not know: tables, sums, workers by name.

cdef enum:
    HOLDER_STEP = 4           # room for several holders comes in steps of so many

cdef struct Holder:
    uint16_t worker
    unsigned char tier
    unsigned char priority
    uint32_t at               # where its worker's list has this page

cdef union Holding:
    Holder one                # of a page that one worker has, as most do
    Holder *many              # of others: by worker, ascending

cdef struct Card:
    uint64_t hash
    Holding held
    uint32_t count            # holders
    uint32_t next             # card of the same bucket, or the next free one


cdef inline Holder *holders_of(Card *card) noexcept nogil:
    """The first of them; the others follow."""
    return &card.held.one if card.count == 1 else card.held.many


cdef inline uint32_t holder_place(Card *card, uint16_t worker) noexcept nogil:
    """How many holders come before a worker."""
    cdef Holder *holders = holders_of(card)
    cdef uint32_t low = 0, high = card.count, middle
    while low < high:
        middle = (low + high) // 2
        if holders[middle].worker < worker:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline Holder *holder_find(Card *card, uint16_t worker) noexcept nogil:
    """A worker's entry, or NULL."""
    cdef uint32_t place = holder_place(card, worker)
    cdef Holder *holders = holders_of(card)
    return holders + place if place < card.count and holders[place].worker == worker else NULL


cdef Holder *holder_add(Card *card, uint16_t worker) noexcept nogil:
    """An entry for a worker that has none, still to be filled in; NULL without memory. The first needs none."""
    cdef uint32_t place = holder_place(card, worker)
    cdef Holder *holders = &card.held.one
    if card.count == 1:
        holders = <Holder *> malloc(HOLDER_STEP * sizeof(Holder))
        if holders != NULL:
            holders[0] = card.held.one
    elif card.count and card.count % HOLDER_STEP == 0:
        holders = <Holder *> realloc(card.held.many, (card.count + HOLDER_STEP) * sizeof(Holder))
    elif card.count:
        holders = card.held.many
    if holders == NULL:
        return NULL
    if card.count:
        card.held.many = holders
        memmove(holders + place + 1, holders + place, (card.count - place) * sizeof(Holder))
    card.count += 1
    holders[place].worker = worker
    return holders + place


cdef void holder_drop(Card *card, Holder *holder) noexcept nogil:
    """Take an entry out."""
    cdef Holder *many = card.held.many
    cdef Holder *moved
    card.count -= 1
    if card.count == 0:
        return
    memmove(holder, holder + 1, (many + card.count - holder) * sizeof(Holder))
    if card.count == 1:
        card.held.one = many[0]
        free(many)
    elif card.count % HOLDER_STEP == 0:
        moved = <Holder *> realloc(many, card.count * sizeof(Holder))
        card.held.many = moved if moved != NULL else many
