# Owns: what a row has of one group besides its columns: which columns have left it, which were offered to the tree, how
# many pages are its own, how many are reserved for it; and what is asked for it: columns, reserves and spares per group,
# retention per block.
# Does not know: what is in a column, why one leaves, how what is asked is given.


cdef struct Stake:            # of a row in a group
    int32_t front             # first column that has not left; 0 where none ever does
    int32_t shown             # columns before it have been offered to the tree
    int32_t base              # columns from here on are the row's own
    int32_t own               # pages it has got in them
    int32_t peak              # pages of its own it may have to hold at once until its prompt is finished; 0: no reserve
    int32_t kept              # own pages that holds keep when they leave: as many more are reserved
    int32_t reserve           # of those, kept free for it
    int32_t fresh             # class of its new pages in the adaptive order
    int32_t followed          # there: a hint said that the last known page of its prompt comes back


cdef inline void renew_reserve(Pool *g, Stake *stake) noexcept nogil:
    """Pages reserved and not yet had count as taken: they are not available to others."""
    cdef int32_t owed = max(0, stake.peak - stake.own) if stake.peak > 0 else 0
    g.room.available -= owed - stake.reserve
    g.room.reserved += owed - stake.reserve
    stake.reserve = owed


cdef inline void count_own(Pool *g, Stake *stake, int32_t change) noexcept nogil:
    stake.own += change
    if stake.peak:
        renew_reserve(g, stake)


cdef inline void set_peak(Pool *g, Stake *stake, int32_t peak) noexcept nogil:
    """Reserve so many pages at once, and those that holds keep; 0 ends it."""
    g.num_peaks += (peak > 0) - (stake.peak > 0)
    stake.kept = stake.kept if peak else 0
    stake.peak = peak + stake.kept
    renew_reserve(g, stake)


cdef inline void keep_more(Pool *g, Stake *stake, int32_t more) noexcept nogil:
    stake.kept += more
    stake.peak += more
    renew_reserve(g, stake)


cdef struct Want:             # of one group
    int32_t first             # pages in the columns [first, stop), and in the sink
    int32_t stop
    int32_t peak              # pages reserved
    int32_t spare             # open pages kept aside

cdef struct Ask:              # what a row shall get when it is settled
    int32_t row
    int32_t handed            # tokens that are handed out with it
    int32_t blocks            # that the retention speaks of
    int32_t priority          # of pages it grows by
    int64_t duration
    Want *wants               # per group
    Pool *inside              # the group in which columns get pages that the step writes itself; NULL: what `wants` says
    int32_t num_inside        # so many; they are in `path`
    int32_t beside            # the last of them is given up first, unless so many slots are left beside them; -1: it is not
    int32_t peak              # pages reserved there afterwards
    const int16_t *priorities # per block, -1: none; or NULL
    const int64_t *durations
    int64_t now               # of a writer


cdef inline int32_t priority_at(Ask *ask, int32_t block) noexcept nogil:
    return DEFAULT_PRIORITY if ask.priorities == NULL or ask.priorities[block] < 0 else ask.priorities[block]


cdef inline int64_t duration_at(Ask *ask, int32_t block) noexcept nogil:
    if ask.durations == NULL or ask.priorities == NULL or ask.priorities[block] < 0:
        return -1
    return ask.durations[block]


cdef int wants_check(Ask *ask, list asks, int32_t num_groups, int32_t num_columns) except -1:
    """Read what is asked of each group, (first, stop, peak, spare), into the ask's wants."""
    cdef int32_t i
    cdef Want *want
    if len(asks) != num_groups:
        raise ValueError(f"{len(asks)} asks for {num_groups} groups")
    for i in range(num_groups):
        want = ask.wants + i
        want.first, want.stop, want.peak, want.spare = asks[i]
        if not 0 <= want.first <= want.stop <= num_columns or want.peak < 0 or want.spare < 0:
            raise ValueError(f"group {i}: {asks[i]} asked of a row of {num_columns} columns")
        ask.blocks = max(ask.blocks, want.stop)
    return 0
