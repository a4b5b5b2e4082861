# Owns: what a row has of one group besides its columns: which columns have left it, which were offered to the tree, how
# many pages are its own, how many are reserved for it.
# Does not know: what is in a column, why one leaves.

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
