# Owns: one table per group: event hash -> for each worker the tier and priority of its page; and what they add up to.
# Does not know: records, workers by name, sockets. Both sides of a stream keep the same tables.

cdef enum:
    SHELF_TIERS = 8
    SUM_WIDTH = 3             # number of pages, two lanes of their sum

cdef struct Shelf:
    uint64_t *hashes          # 0: an empty place; its home is hash & mask
    unsigned char *cells      # per place and worker: tier + 1 (0: no page), priority
    uint64_t mask
    uint64_t count            # places taken


cdef int shelf_open(Shelf *f, uint64_t places, Py_ssize_t stride) noexcept nogil:
    """An empty table; -1 without memory."""
    f.hashes = <uint64_t *> calloc(places, 8)
    f.cells = <unsigned char *> calloc(places, stride)
    f.mask, f.count = places - 1, 0
    if f.hashes == NULL or f.cells == NULL:
        shelf_close(f)
        return -1
    return 0


cdef void shelf_close(Shelf *f) noexcept nogil:
    free(f.hashes)
    free(f.cells)
    f.hashes, f.cells = NULL, NULL


cdef inline int64_t shelf_find(Shelf *f, uint64_t hash) noexcept nogil:
    """The place of a hash, or -1."""
    cdef uint64_t i = hash & f.mask
    while f.hashes[i]:
        if f.hashes[i] == hash:
            return <int64_t> i
        i = (i + 1) & f.mask
    return -1


cdef inline int64_t shelf_place(Shelf *f, uint64_t hash) noexcept nogil:
    """The place of a hash, taken if need be; there is room."""
    cdef uint64_t i = hash & f.mask
    while f.hashes[i] and f.hashes[i] != hash:
        i = (i + 1) & f.mask
    if f.hashes[i] == 0:
        f.hashes[i] = hash
        f.count += 1
    return <int64_t> i


cdef inline bint is_vacant(const unsigned char *cells, Py_ssize_t stride) noexcept nogil:
    """No worker has a page here."""
    cdef Py_ssize_t k
    for k in range(0, stride, 2):
        if cells[k]:
            return False
    return True


cdef void shelf_erase(Shelf *f, uint64_t i, Py_ssize_t stride) noexcept nogil:
    """Take a place out and move those behind it back, so that no gap parts an entry from its home."""
    cdef uint64_t j = i
    while True:
        j = (j + 1) & f.mask
        if f.hashes[j] == 0:
            break
        if ((j - f.hashes[j]) & f.mask) >= ((j - i) & f.mask):
            f.hashes[i] = f.hashes[j]
            memcpy(f.cells + i * stride, f.cells + j * stride, stride)
            i = j
    f.hashes[i] = 0
    memset(f.cells + i * stride, 0, stride)
    f.count -= 1


cdef int shelf_rebuild(Shelf *f, uint64_t places, Py_ssize_t old, Py_ssize_t stride) noexcept nogil:
    """Everything that somebody has, in a table of that many places and that stride; -1 without memory."""
    cdef Shelf wide
    cdef uint64_t i
    cdef int64_t j
    if shelf_open(&wide, places, stride):
        return -1
    for i in range(f.mask + 1):
        if f.hashes[i] and not is_vacant(f.cells + i * old, old):
            j = shelf_place(&wide, f.hashes[i])
            memcpy(wide.cells + j * stride, f.cells + i * old, old)
    shelf_close(f)
    f[0] = wide
    return 0


cdef inline int shelf_reserve(Shelf *f, uint64_t more, Py_ssize_t stride) noexcept nogil:
    """Room for that many more hashes; -1 without memory."""
    cdef uint64_t places = f.mask + 1
    while 2 * (f.count + more) > places:
        places *= 2
    return 0 if places == f.mask + 1 else shelf_rebuild(f, places, stride, stride)


cdef inline void sum_add(uint64_t *sums, uint64_t hash, unsigned char *cell) noexcept nogil:
    """A page counts in the sum of its tier."""
    cdef uint64_t *sum = sums + SUM_WIDTH * (cell[0] - 1)
    sum[0] += 1
    sum[1] += fold(hash ^ K0, K1 + cell[1])
    sum[2] += fold(hash ^ K2, K3 + cell[1])


cdef inline void sum_drop(uint64_t *sums, uint64_t hash, unsigned char *cell) noexcept nogil:
    cdef uint64_t *sum = sums + SUM_WIDTH * (cell[0] - 1)
    sum[0] -= 1
    sum[1] -= fold(hash ^ K0, K1 + cell[1])
    sum[2] -= fold(hash ^ K2, K3 + cell[1])


cdef inline int shelf_put(Shelf *f, uint64_t *sums, uint64_t hash, Py_ssize_t worker, Py_ssize_t stride,
                          int tier, int priority) noexcept nogil:
    """A worker has the page there now; 1 when it had one before. There is room."""
    cdef unsigned char *cell = f.cells + shelf_place(f, hash) * stride + 2 * worker
    cdef int known = cell[0] != 0
    if known:
        sum_drop(sums, hash, cell)
    cell[0], cell[1] = <unsigned char> (tier + 1), <unsigned char> priority
    sum_add(sums, hash, cell)
    return known


cdef inline int shelf_change(Shelf *f, uint64_t *sums, uint64_t hash, Py_ssize_t worker, Py_ssize_t stride,
                             int tier, int priority) noexcept nogil:
    """A page is in another tier or has another priority (-1: as before); 1 when the worker has no such page."""
    cdef int64_t i = shelf_find(f, hash)
    cdef unsigned char *cell
    if i < 0 or f.cells[i * stride + 2 * worker] == 0:
        return 1
    cell = f.cells + i * stride + 2 * worker
    sum_drop(sums, hash, cell)
    if tier >= 0:
        cell[0] = <unsigned char> (tier + 1)
    if priority >= 0:
        cell[1] = <unsigned char> priority
    sum_add(sums, hash, cell)
    return 0


cdef inline int shelf_drop(Shelf *f, uint64_t *sums, uint64_t hash, Py_ssize_t worker, Py_ssize_t stride) noexcept nogil:
    """A worker has the page no more; 1 when it had none."""
    cdef int64_t i = shelf_find(f, hash)
    cdef unsigned char *cells
    if i < 0 or f.cells[i * stride + 2 * worker] == 0:
        return 1
    cells = f.cells + i * stride
    sum_drop(sums, hash, cells + 2 * worker)
    cells[2 * worker] = 0
    if is_vacant(cells, stride):
        shelf_erase(f, <uint64_t> i, stride)
    return 0
