# Owns: the checks of arguments that memory safety needs, and what a refusal raises.
# Does not know: any act.


cdef int refused(State *s, int why, str act) except -1:
    """Raise what a batch was refused for, before anything has changed."""
    if why == UNKNOWN_ROW:
        raise LookupError(f"{act}: row {s.culprit} is not live, or twice in the batch")
    if why == TOO_LONG:
        raise ValueError(f"{act}: row {s.culprit} would be longer than its tokens or columns")
    if why == UNDER_WAY:
        raise RuntimeError(f"row {s.culprit} has a prompt under way")
    if why == NO_MEMORY:
        raise MemoryError(f"{act}: no memory")
    return 0


cdef int expect(bint happened, str act) except -1:
    """What was counted before must have happened."""
    if not happened:
        raise BrokenInvariant(f"{act}: nothing available, although it was counted before")
    return 0


cdef Pool *check_group(State *s, Py_ssize_t group) except NULL:
    """The pool of a group."""
    if not 0 <= group < s.num_groups:
        raise LookupError(f"no group {group}")
    return s.pools + group


cdef Pool *check_page(State *s, Py_ssize_t group, Py_ssize_t page) except NULL:
    """The pool that has the page."""
    if not 0 <= page < check_group(s, group).num_pages:
        raise LookupError(f"no page {page}")
    return s.pools + group


cdef Order *check_tier(State *s, Py_ssize_t group, Py_ssize_t tier) except NULL:
    """The order of a tier of a group."""
    if not 0 <= tier < s.num_tiers:
        raise LookupError(f"no tier {tier}")
    return check_group(s, group).tiers + tier


cdef int check_live(State *s, int32_t row) except -1:
    if not is_live(s, row):
        raise LookupError(f"row {row} is not live")
    return 0


cdef int check_vacant(State *s, int32_t row) except -1:
    if not 0 <= row < s.num_rows:
        raise LookupError(f"no row {row}")
    if is_live(s, row):
        raise ValueError(f"row {row} is live already")
    return 0


cdef int check_root(State *s, int32_t root) except -1:
    if not 0 <= root < s.tree.used or not at(&s.tree, root).flags & ROOT:
        raise LookupError(f"no root {root}")
    return 0


cdef int check_chain(State *s, Chain chain, int32_t root) except -1:
    """The chain is cut as the store is, and the root is one, or -1."""
    if chain.text.block_size != s.block_size:
        raise ValueError(f"the chain has blocks of {chain.text.block_size} tokens, not {s.block_size}")
    return 0 if root == -1 else check_root(s, root)


cdef int check_frozen(State *s, str act) except -1:
    """Blocks may be removed only when every claim knows its pages without them."""
    if s.loose:
        raise ValueError(f"{act}: {s.loose} claims are open that were not frozen")
    return 0


cdef int check_end(State *s, int32_t row, int32_t end) except -1:
    """A live row can be handed out up to `end`."""
    if not s.computed[row] <= end <= s.length[row]:
        raise ValueError(f"row {row} has {s.length[row]} tokens, it cannot be handed out up to {end}")
    return 0


cdef int check_back(State *s, int32_t row, int32_t end) except -1:
    """What a live row was handed out from `end` on can be taken back."""
    check_live(s, row)
    if not s.computed[row] <= end <= s.handed[row]:
        raise ValueError(f"row {row} cannot be taken back to {end}")
    return 0


cdef int check_moves(State *s, int64_t slots) except -1:
    """Room in the log for the moves that taking so many slots may cause."""
    if moves_reserve(&s.log, slots * s.num_tiers + s.num_groups):
        raise MemoryError("no memory for moves")
    return 0


cdef int check_needs(State *s, int64_t more=0) except -1:
    """Room for the moves of what has been counted in `needs`, and for so many more."""
    cdef int64_t total = more
    cdef int32_t i
    for i in range(s.num_groups):
        total += s.needs[i]
    return check_moves(s, total)
