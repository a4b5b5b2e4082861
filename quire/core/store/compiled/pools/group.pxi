# Owns: the arithmetic of blocks and columns that a group's numbers mean.
# Does not know: pages, rows.


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


cdef bint makes_sense(Pool *g) noexcept nogil:
    """Whether a group's numbers are in range and go with each other."""
    if min(g.tail, g.keep) < -1 or min(g.sink, min(g.every, g.extra)) < 0 or (g.tail < 0 and g.keep >= 0):
        return False
    return g.current == 0 or (g.current == 1 and g.tail == 1 and g.sink == 0 and g.keep == 0 and g.extra == 0)


cdef list check_homes(groups, pools):
    """The pool of every group, by default its own: numbered from 0, none left out."""
    homes = list(range(len(groups)) if pools is None else pools)
    if len(homes) != len(groups) or sorted(set(homes)) != list(range(len(set(homes)))) or len(homes) > 0xFFFF:
        raise ValueError(f"pools {homes} of {len(groups)} groups: number them from 0, one for each group")
    return homes
