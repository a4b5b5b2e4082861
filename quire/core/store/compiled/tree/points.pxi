# Owns: where somebody may be expected to resume: where a text ends or parts, was asked for again, or has a snapshot;
# which pages of a window are passed: of use to nobody who begins at such a point; and which snapshots are: the text goes
# on from them in one way only, to a later snapshot.
# Does not know: slots, when that is looked at.

cdef enum:
    FAR = 4096                # blocks; nobody looks further for another snapshot


cdef inline int32_t only_child(Tree *t, int32_t n) noexcept nogil:
    """The one block that the text goes on with; -1 where it ends or parts."""
    cdef int32_t child = at(t, n).child
    if child < 0 or at(t, child).left >= 0 or at(t, child).right >= 0 or at(t, child).size < t.block_size:
        return -1
    return child


cdef inline bint has_snapshot(Tree *t, int32_t n) noexcept nogil:
    """Whether a state may be had at the end of this block."""
    cdef int32_t i
    for i in range(t.num_states):
        if at(t, n).page[t.states[i]] >= 0:
            return True
    return False


cdef inline bint is_point(Tree *t, int32_t n) noexcept nogil:
    """Whether somebody may be expected to resume at the end of this block."""
    if t.num_states == 0:
        return at(t, n).flags & ASKED or only_child(t, n) < 0
    return (at(t, n).child >= 0 and only_child(t, n) < 0) or has_snapshot(t, n)


cdef int32_t steps_to_point(Tree *t, int32_t n, int32_t tail) noexcept nogil:
    """Blocks from a node down to the first resume point; `tail` when there is none nearer than that."""
    cdef int32_t i
    for i in range(tail):
        if is_point(t, n):
            return i
        n = only_child(t, n)
        if n < 0:
            break
    return tail


cdef inline bint is_sink(Tree *t, int32_t n, int32_t sink) noexcept nogil:
    """Whether a block is one of the first so many."""
    cdef int32_t i
    for i in range(sink):
        n = at(t, n).parent
        if at(t, n).flags & ROOT:
            return True
    return False


cdef bint is_passed(Tree *t, int32_t n, int32_t tail, int32_t sink) noexcept nogil:
    """Whether no resume point is at a block, or so near below it that a window reaches back to the block."""
    return at(t, n).size == t.block_size and not is_sink(t, n, sink) and steps_to_point(t, n, tail) == tail


cdef inline int32_t only_way(Tree *t, int32_t n) noexcept nogil:
    """The one block, whole or not, that the text goes on with; -1 where it ends or parts, or a row may yet part."""
    cdef int32_t child = at(t, n).child
    return child if child >= 0 and at(t, n).tips == 0 and at(t, child).left < 0 and at(t, child).right < 0 else -1


cdef bint is_overtaken(Tree *t, int32_t n, int32_t group) noexcept nogil:
    """Whether a snapshot at this block is passed: who goes on from here finds a later one."""
    cdef int32_t i
    for i in range(FAR):
        n = only_way(t, n)
        if n < 0 or at(t, n).page[group] >= 0:
            return n >= 0
    return False


cdef int32_t snapshot_before(Tree *t, int32_t n, int32_t group) noexcept nogil:
    """The page of the last snapshot before this block, -1: none."""
    cdef int32_t i
    for i in range(FAR):
        n = at(t, n).parent
        if at(t, n).flags & ROOT:
            return -1
        if at(t, n).page[group] >= 0:
            return at(t, n).page[group]
    return -1


cdef inline void ask_again(Tree *t, int32_t n) noexcept nogil:
    """A prompt ends at this block: if the text is known to go on, it may be asked for once more."""
    if at(t, n).child >= 0 and not at(t, n).flags & ASKED:
        at(t, n).flags |= ASKED
        t.turns += 1


cdef inline void note_page(Tree *t, int32_t n, bint is_state) noexcept nogil:
    """A page has come to a node or left it."""
    if is_state and at(t, n).child >= 0:
        t.turns += 1
