# Owns: where a request is likely to resume: where a text ends or parts, was asked for again, or has a snapshot; and at
# guessed or named points of a kind that has earned its pages. Which pages of a window are passed: no request that
# begins at such a point uses them; and which snapshots are: the text goes on from them in one way only, to a later
# snapshot. Which blocks are cut off: no request can resume there, whatever was expected.
# Does not know: slots, when that is looked at.

cdef enum:
    FAR = 4096                # blocks; the search for another snapshot goes no further
    FAR_BACK = 512            # and for the point before one that was resumed at


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


cdef inline int32_t point_kind(Tree *t, int32_t n) noexcept nogil:
    """Of the resume point that was guessed or named there; 0: none."""
    return at(t, n).flags >> KIND_AT


cdef inline bint earns(Tree *t, int32_t n) noexcept nogil:
    """Whether one was whose kind counts."""
    return t.kinds.kept >> point_kind(t, n) & 1


cdef inline bint is_point(Tree *t, int32_t n) noexcept nogil:
    """Whether a request is likely to resume at the end of this block."""
    if t.num_states == 0:
        return at(t, n).flags & ASKED or only_child(t, n) < 0 or earns(t, n)
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
    """Whether a snapshot at this block is passed: a request that continues from here finds a later one."""
    cdef int32_t i
    if earns(t, n):
        return False
    for i in range(FAR):
        n = only_way(t, n)
        if n < 0 or at(t, n).page[group] >= 0:
            return n >= 0
    return False


cdef inline bint is_state(Tree *t, int32_t group) noexcept nogil:
    cdef int32_t i
    for i in range(t.num_states):
        if t.states[i] == group:
            return True
    return False


cdef bint lacks_last(Tree *t, int32_t n, bint but_states) noexcept nogil:
    """Whether a group that does not need all blocks, states perhaps left out, lacks one of the last it reads before the
    end of this block."""
    cdef int32_t i, k, above
    cdef int32_t *tails = t.states + t.num_groups
    for i in range(t.num_tails):
        above = n
        if but_states and is_state(t, tails[2 * i]):
            continue
        for k in range(tails[2 * i + 1]):
            if at(t, above).page[tails[2 * i]] < 0:
                return True
            above = at(t, above).parent
            if at(t, above).flags & ROOT:
                break
    return False


cdef bint is_cut_off(Tree *t, int32_t n) noexcept nogil:
    """Whether no request can resume at the end of this whole block: a window or a snapshot is not all there."""
    return at(t, n).size == t.block_size and lacks_last(t, n, False)


cdef inline bint is_lost(Tree *t, int32_t n) noexcept nogil:
    """Whether no request can resume at a block, expected or not: it is cut off. With states one may yet, behind where the
    text ends or parts."""
    return lacks_last(t, n, t.num_states and at(t, n).child >= 0 and only_child(t, n) < 0)


cdef int32_t way_below(Tree *t, int32_t n, int32_t most) noexcept nogil:
    """How far it is from a block down to one behind it at which a request can resume, at most so far."""
    cdef int32_t way
    for way in range(1, most):
        n = only_child(t, n)
        if n < 0:
            return most
        if not is_lost(t, n):
            return way
    return most


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


cdef void learn_parting(Tree *t, int32_t n) noexcept nogil:
    """A request resumes at this block, or would, where one text went on in one way: which kind of point would serve?"""
    cdef int32_t steps, kind = 0, at_kind = 0
    for steps in range(FAR_BACK + 1):
        if steps == FAR_BACK or at(t, n).flags & ROOT:
            break
        if steps and (at(t, n).flags & ASKED or only_child(t, n) < 0):
            break
        if kind == 0 and point_kind(t, n):
            kind, at_kind = point_kind(t, n), steps
        n = at(t, n).parent
    if kind:
        t.turns += earn(&t.kinds, kind, steps - at_kind)


cdef inline void see_parting(Tree *t) noexcept nogil:
    """A row may have parted from a text: `parted` was reset before."""
    if t.parted >= 0 and not at(t, t.parted).flags & (ROOT | ASKED):
        learn_parting(t, t.parted)
    t.parted = -1


cdef inline void ask_again(Tree *t, int32_t n) noexcept nogil:
    """A prompt ends at this block: if the text is known to go on, it may be asked for once more."""
    if at(t, n).child >= 0 and not at(t, n).flags & ASKED:
        if only_child(t, n) >= 0:
            learn_parting(t, n)
        at(t, n).flags |= ASKED
        t.turns += 1


cdef inline void set_kind(Tree *t, int32_t n, int32_t kind, bint old) noexcept nogil:
    """A point of a kind is at this block, unless one is known there that says more; `old`: others may have seen it."""
    cdef int32_t known = point_kind(t, n)
    if kind and (kind > known if kind >= END else known == 0):
        at(t, n).flags = <uint16_t> ((at(t, n).flags & ((1 << KIND_AT) - 1)) | kind << KIND_AT)
        t.turns += pay(&t.kinds, kind) | old


cdef inline void note_page(Tree *t, int32_t n, bint is_state) noexcept nogil:
    """A page has come to a node or left it."""
    if is_state and at(t, n).child >= 0:
        t.turns += 1
