# Owns: pending blocks: whole blocks of a prompt that steps in flight compute for another row, behind what the tree has:
# which row has most of them. A hit that ends with them names that row, and keeps their pages by number.
# Does not know: steps. It changes nothing but the hit.


cdef bint is_on_path(State *s, Path *path, int32_t row) noexcept nogil:
    """Whether what a row has committed, and will go on from in the tree, is a part of the hit."""
    cdef int32_t done = s.committed[row]
    if not s.rows[row].keep or s.rows[row].tip < 0 or done > path.blocks:
        return False
    return s.rows[row].tip == (path.nodes[done - 1] if done else path.root)


cdef int32_t pending_end(State *s, Text *text, Path *path, int32_t row, Py_ssize_t usable) noexcept nogil:
    """How many blocks there are with those that a row in flight computes, where every group could resume."""
    cdef int32_t b, i, best = path.blocks
    cdef Py_ssize_t end = min(min(<Py_ssize_t> s.launched[row], s.prompt[row]), min(usable, text.length))
    cdef bint good
    if not is_on_path(s, path, row):
        return best
    memset(s.runs, 0, 16 * s.num_groups)
    for b in range(<int32_t> (end // s.block_size)):
        if b >= s.committed[row] and not same_block(text, s.rows[row].text, b):
            break
        good = True
        for i in range(s.num_groups):
            count_block(s.runs + 4 * i, b + 1, b < path.blocks or pages_of(s, s.pools + i, row)[b] >= 0)
            good = good and is_good(s.pools + i, s.runs + 4 * i, b + 1)
        if good and b + 1 > best:
            best = b + 1
    return best


cdef int add_pending(State *s, Path *path, int32_t owner, int32_t blocks) noexcept nogil:
    """The blocks of a hit up to there are those that a row in flight computes; -1 without memory."""
    cdef int32_t num_nodes = max(path.num_nodes, blocks), groups = s.num_groups, i, b
    cdef unsigned char *present
    cdef int32_t *pages
    if reserve(<void **> &path.nodes, &path.room, num_nodes, 4):
        return -1
    present = <unsigned char *> malloc(<Py_ssize_t> num_nodes * groups)
    pages = <int32_t *> malloc(4 * (<Py_ssize_t> groups * (num_nodes + 1) + 1))
    if present == NULL or pages == NULL:
        free(present)
        free(pages)
        return -1
    memset(pages, 0xFF, 4 * <Py_ssize_t> groups * (num_nodes + 1))
    for i in range(groups):
        for b in range(num_nodes):
            present[b * groups + i] = b < min(path.num_nodes, blocks) and was_present(s, path, i, b)
            if path.blocks <= b < blocks:
                pages[i * num_nodes + b] = pages_of(s, s.pools + i, owner)[b]
                present[b * groups + i] = present[b * groups + i] or pages[i * num_nodes + b] >= 0
            elif b < path.blocks:
                pages[i * num_nodes + b] = at(&s.tree, path.nodes[b]).page[i]
    for b in range(path.num_nodes, num_nodes):
        path.nodes[b] = -1
    free(path.present)
    path.present, path.present_room, path.present_from, path.pages = present, num_nodes, 0, pages
    path.known, path.num_nodes, path.pending = path.num_nodes, num_nodes, blocks - path.blocks
    path.owner, path.owner_seat, path.blocks = owner, s.rows[owner].seat, blocks
    path.coming, path.source, path.matched = max(path.coming, blocks), -1, 0
    return 0


cdef int32_t find_pending(State *s, Text *text, Path *path, Py_ssize_t usable) noexcept nogil:
    """Lengthen a fresh hit by the blocks that one row's steps in flight compute; the row, -1: none, -2: no memory. Not
    with states."""
    cdef int32_t row, end, best = path.blocks, owner = -1
    if path.root < 0 or s.num_current:
        return -1
    for row in range(s.most_rows):
        if s.rows[row].chain == NULL or s.launched[row] <= s.computed[row]:
            continue
        end = pending_end(s, text, path, row, usable)
        if end > best:
            best, owner = end, row
    if owner >= 0 and add_pending(s, path, owner, best):
        return -2
    return owner


cdef inline bint has_owner(State *s, Path *path) noexcept nogil:
    """Whether the row that computes a hit's pending blocks is still live; none ends while a step in flight has it."""
    return s.rows[path.owner].chain != NULL and s.rows[path.owner].seat == path.owner_seat


cdef int32_t num_landed(State *s, Path *path) noexcept nogil:
    """Blocks of a hit that are computed by now."""
    if path.pending == 0 or not has_owner(s, path):
        return path.blocks
    return max(path.blocks - path.pending, min(path.blocks, s.computed[path.owner] // s.block_size))


cdef bint is_still_there(State *s, Path *path) noexcept nogil:
    """Whether the row still has the pages of the pending blocks that were found."""
    cdef int32_t i, b
    if path.pending == 0:
        return True
    if not has_owner(s, path):
        return False
    for i in range(s.num_groups):
        for b in range(path.blocks - path.pending, path.blocks):
            if pages_of(s, s.pools + i, path.owner)[b] != path.pages[i * path.num_nodes + b]:
                return False
    return True
