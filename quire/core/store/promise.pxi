# Owns: what a row has of one group besides its columns: which columns have left it, which were offered to the tree, how
# many pages are its own, how many it is promised; and how many columns a length takes.
# Does not know: what is in a column, why one leaves.

cdef struct Stake:            # of a row in a group
    int32_t front             # first column that has not left; 0 where none ever does
    int32_t shown             # columns before it have been offered to the tree
    int32_t base              # columns from here on are the row's own
    int32_t own               # pages it has got in them
    int32_t peak              # pages of its own it may have to hold at once until its prompt is finished; 0: no promise
    int32_t kept              # own pages that holds keep when they leave: as many more are promised
    int32_t reserve           # of those, kept free for it


cdef inline void renew_reserve(Pool *g, Stake *stake) noexcept nogil:
    """Pages promised and not yet had count as taken: they are not available to others."""
    cdef int32_t owed = max(0, stake.peak - stake.own) if stake.peak > 0 else 0
    g.available -= owed - stake.reserve
    g.reserved += owed - stake.reserve
    stake.reserve = owed


cdef inline void count_own(Pool *g, Stake *stake, int32_t change) noexcept nogil:
    stake.own += change
    if stake.peak:
        renew_reserve(g, stake)


cdef inline void set_peak(Pool *g, Stake *stake, int32_t peak) noexcept nogil:
    """Promise so many pages at once, and those that holds keep; 0 ends the promise."""
    stake.kept = stake.kept if peak else 0
    stake.peak = peak + stake.kept
    renew_reserve(g, stake)


cdef inline void keep_more(Pool *g, Stake *stake, int32_t more) noexcept nogil:
    stake.kept += more
    stake.peak += more
    renew_reserve(g, stake)


cdef inline bint is_short(Pool *g, int64_t wanted, int64_t more) noexcept nogil:
    """Whether so many slots are more than is available, and `more`. What is available may be less than nothing (claims
    rest on promised slots), but who wants nothing is not short."""
    return wanted > 0 and wanted > g.available + more


cdef inline int64_t columns_of(Pool *g, int64_t tokens, int64_t size) noexcept nogil:
    """Columns of a row of that length. A page that is written at the end of a block only needs no column before."""
    return tokens // size if g.current else (tokens + g.extra + size - 1) // size


cdef inline int64_t edge_of(Pool *g, int64_t columns, int64_t size) noexcept nogil:
    """The longest a row with so many columns can be."""
    return (columns + 1) * size - 1 if g.current else columns * size - g.extra


cdef inline int64_t pages_between(Pool *g, int64_t first, int64_t last, bint keep) noexcept nogil:
    """Pages that growing from `first` to `last` columns takes."""
    if not g.current:
        return last - first
    return last // g.every - first // g.every if keep and g.every and first < last else 0
