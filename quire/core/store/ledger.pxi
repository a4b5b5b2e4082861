# Owns: Ledger: who has which published page, in which tier, as records tell it; and the walk along a prompt's hashes.
# Does not know: batches, gaps, sockets: the caller says what to apply.

cdef enum:
    LEDGER_WIDTH = 5          # of a record here: kind, group, count, before, after
    MAX_GROUPS = 64
    MAX_WORKERS = 4096


@cython.final
cdef class Ledger:
    """Pages by event hash, for some workers and groups."""

    cdef Shelf *shelves       # per group
    cdef uint64_t *sums       # per worker, group and tier
    cdef Py_ssize_t num_groups
    cdef Py_ssize_t num_workers

    def __init__(self, Py_ssize_t num_workers=1, Py_ssize_t num_groups=1):
        cdef Py_ssize_t g
        if not (1 <= num_workers <= MAX_WORKERS and 1 <= num_groups <= MAX_GROUPS):
            raise ValueError(f"{num_workers} workers, {num_groups} groups")
        if self.shelves != NULL:
            raise ValueError("a Ledger is made once")
        self.num_workers, self.num_groups = num_workers, num_groups
        self.shelves = <Shelf *> calloc(num_groups, sizeof(Shelf))
        self.sums = <uint64_t *> calloc(num_workers * num_groups * SHELF_TIERS * SUM_WIDTH, 8)
        if self.shelves == NULL or self.sums == NULL:
            raise MemoryError("no memory for a ledger")
        for g in range(num_groups):
            if shelf_open(self.shelves + g, 64, 2 * num_workers):
                raise MemoryError("no memory for a ledger")

    def __dealloc__(self):
        cdef Py_ssize_t g
        if self.shelves != NULL:
            for g in range(self.num_groups):
                shelf_close(self.shelves + g)
        free(self.shelves)
        free(self.sums)

    def __len__(self):
        """Hashes that some worker has, groups apart."""
        return sum([self.shelves[g].count for g in range(self.num_groups)])

    def widen(self, Py_ssize_t num_workers, Py_ssize_t num_groups):
        """Room for that many workers and groups."""
        cdef Py_ssize_t w, g, each = SHELF_TIERS * SUM_WIDTH
        cdef uint64_t *sums
        cdef void *moved
        if not (self.num_workers <= num_workers <= MAX_WORKERS and self.num_groups <= num_groups <= MAX_GROUPS):
            raise ValueError(f"{num_workers} workers, {num_groups} groups: less than there are, or too many")
        sums = <uint64_t *> calloc(num_workers * num_groups * each, 8)
        moved = realloc(self.shelves, num_groups * sizeof(Shelf))
        if moved != NULL:
            self.shelves = <Shelf *> moved
        if sums == NULL or moved == NULL:
            free(sums)
            raise MemoryError("no memory for more workers")
        for w in range(self.num_workers):
            memcpy(sums + w * num_groups * each, self.sums_of(w, 0), self.num_groups * each * 8)
        free(self.sums)
        self.sums = sums
        for g in range(self.num_groups if num_workers > self.num_workers else 0):
            if shelf_rebuild(self.shelves + g, self.shelves[g].mask + 1, 2 * self.num_workers, 2 * num_workers):
                raise MemoryError("no memory for more workers")
        self.num_workers = num_workers
        while self.num_groups < num_groups:
            if shelf_open(self.shelves + self.num_groups, 64, 2 * num_workers):
                raise MemoryError("no memory for more groups")
            self.num_groups += 1

    cdef uint64_t *sums_of(self, Py_ssize_t worker, Py_ssize_t group) noexcept nogil:
        return self.sums + (worker * self.num_groups + group) * SHELF_TIERS * SUM_WIDTH

    cdef int check(self, Py_ssize_t worker, Py_ssize_t group) except -1:
        if not (0 <= worker < self.num_workers and 0 <= group < self.num_groups):
            raise LookupError(f"no worker {worker} or no group {group}")
        return 0

    def apply(self, Py_ssize_t worker, records, hashes, priorities):
        """What records tell, in order; how many of them did not fit what was known. All or nothing is applied."""
        cdef Py_buffer table, names, marks
        cdef Py_ssize_t n, num_hashes
        self.check(worker, 0)
        n = borrow(&table, records, 4, b"il", "records")
        try:
            num_hashes = borrow(&names, hashes, 8, b"LQ", "hashes")
            try:
                if borrow(&marks, priorities, 1, b"B", "priorities") != num_hashes:
                    PyBuffer_Release(&marks)
                    raise ValueError(f"{num_hashes} hashes and another number of priorities")
                try:
                    self.admissible(<const int32_t *> table.buf, n, num_hashes)
                    return self.follow(worker, <const int32_t *> table.buf, n // LEDGER_WIDTH,
                                       <const uint64_t *> names.buf, <const unsigned char *> marks.buf)
                finally:
                    PyBuffer_Release(&marks)
            finally:
                PyBuffer_Release(&names)
        finally:
            PyBuffer_Release(&table)

    cdef int admissible(self, const int32_t *record, Py_ssize_t n, Py_ssize_t num_hashes) except -1:
        """Whether records are what the recorder may have made, and fit the hashes."""
        cdef Py_ssize_t i, total = 0
        if n % LEDGER_WIDTH:
            raise ValueError(f"{n} numbers are no records of {LEDGER_WIDTH}")
        for i in range(n // LEDGER_WIDTH):
            if not (CREATED <= record[0] <= CLEARED and 0 <= record[1] < self.num_groups
                    and 0 <= record[2] <= num_hashes - total):
                raise ValueError(f"record {i} is none: {record[0]}, {record[1]}, {record[2]}")
            if record[0] in (STORED, MOVED) and not 0 <= record[4] < SHELF_TIERS:
                raise ValueError(f"record {i} names tier {record[4]}")
            if record[0] == RETAINED and not 0 <= record[4] < 256:
                raise ValueError(f"record {i} names priority {record[4]}")
            total += record[2]
            record += LEDGER_WIDTH
        if total != num_hashes:
            raise ValueError(f"{total} hashes are told of, {num_hashes} are given")
        return 0

    cdef Py_ssize_t follow(self, Py_ssize_t worker, const int32_t *record, Py_ssize_t n, const uint64_t *hashes,
                           const unsigned char *priorities) except -1:
        cdef Py_ssize_t i, k, odd = 0, stride = 2 * self.num_workers
        cdef Shelf *f
        cdef uint64_t *sums
        for i in range(n):
            f, sums = self.shelves + record[1], self.sums_of(worker, record[1])
            if record[0] == STORED:
                if shelf_reserve(f, record[2], stride):
                    raise MemoryError("no memory for more pages")
                for k in range(record[2]):
                    odd += shelf_put(f, sums, hashes[k] if hashes[k] else 1, worker, stride, record[4], priorities[k])
            elif record[0] == MOVED:
                for k in range(record[2]):
                    odd += shelf_change(f, sums, hashes[k], worker, stride, record[4], -1)
            elif record[0] == RETAINED:
                for k in range(record[2]):
                    odd += shelf_change(f, sums, hashes[k], worker, stride, -1, record[4])
            elif record[0] == REMOVED:
                for k in range(record[2]):
                    odd += shelf_drop(f, sums, hashes[k], worker, stride)
            elif record[0] == CLEARED:
                self.wipe(worker, record[1])
            hashes, priorities = hashes + record[2], priorities + record[2]
            record += LEDGER_WIDTH
        return odd

    cdef int wipe(self, Py_ssize_t worker, Py_ssize_t group) except -1:
        """One worker's pages of a group are gone."""
        cdef Shelf *f = self.shelves + group
        cdef uint64_t *sums = self.sums_of(worker, group)
        cdef Py_ssize_t stride = 2 * self.num_workers
        cdef uint64_t i, num_pages = 0
        for i in range(SHELF_TIERS):
            num_pages += sums[SUM_WIDTH * i]
        if num_pages == 0:
            return 0
        for i in range(f.mask + 1):
            f.cells[i * stride + 2 * worker] = 0
        memset(sums, 0, SHELF_TIERS * SUM_WIDTH * 8)
        if shelf_rebuild(f, f.mask + 1, stride, stride):
            raise MemoryError("no memory to forget pages")
        return 0

    def clear(self, Py_ssize_t worker):
        """Forget a worker's pages."""
        cdef Py_ssize_t g
        self.check(worker, 0)
        for g in range(self.num_groups):
            self.wipe(worker, g)

    def sums_by_tier(self, Py_ssize_t worker):
        """Per group and tier: number of pages and two lanes of their sum; uint64 [groups, 8, 3]."""
        self.check(worker, 0)
        flat = as_array(self.sums_of(worker, 0), self.num_groups * SHELF_TIERS * SUM_WIDTH, 8, np.uint64)
        return flat.reshape(self.num_groups, SHELF_TIERS, SUM_WIDTH)

    def pages(self, Py_ssize_t worker, Py_ssize_t group):
        """A worker's pages in no order: hashes, tiers, priorities."""
        cdef Shelf *f
        cdef Py_ssize_t stride = 2 * self.num_workers
        self.check(worker, group)
        f = self.shelves + group
        hashes = as_array(f.hashes, f.mask + 1, 8, np.uint64)
        cells = as_array(f.cells, (f.mask + 1) * stride, 1, np.uint8).reshape(-1, stride)[:, 2 * worker : 2 * worker + 2]
        there = cells[:, 0] > 0
        return hashes[there], cells[there, 0] - 1, cells[there, 1].copy()

    def runs(self, Py_ssize_t group, hashes):
        """Per worker the number of leading blocks it has, and how many of them in each tier; int32 [workers, 9]."""
        cdef Py_buffer names, view
        cdef Py_ssize_t n
        self.check(0, group)
        found = np.zeros((self.num_workers, 1 + SHELF_TIERS), np.int32)
        n = borrow(&names, hashes, 8, b"LQ", "hashes")
        try:
            PyObject_GetBuffer(found, &view, PyBUF_WRITABLE)
            try:
                self.count_runs(self.shelves + group, <const uint64_t *> names.buf, n, <int32_t *> view.buf)
            finally:
                PyBuffer_Release(&view)
        finally:
            PyBuffer_Release(&names)
        return found

    cdef int count_runs(self, Shelf *f, const uint64_t *hashes, Py_ssize_t n, int32_t *found) except -1:
        cdef Py_ssize_t i, k, still, alive = self.num_workers
        cdef int64_t place
        cdef unsigned char *cells
        cdef int32_t *workers = <int32_t *> malloc(4 * alive)    # those that have had every block so far
        if workers == NULL:
            raise MemoryError("no memory to walk")
        for k in range(alive):
            workers[k] = <int32_t> k
        for i in range(n):
            place = shelf_find(f, hashes[i])
            if place < 0 or alive == 0:
                break
            cells = f.cells + place * 2 * self.num_workers
            still = 0
            for k in range(alive):
                if cells[2 * workers[k]]:
                    found[(1 + SHELF_TIERS) * workers[k]] += 1
                    found[(1 + SHELF_TIERS) * workers[k] + cells[2 * workers[k]]] += 1
                    workers[still] = workers[k]
                    still += 1
            alive = still
        free(workers)
        return 0

    def walk(self, Py_ssize_t group, hashes):
        """Tier by worker and block, holes and all; int8 [workers, blocks], -1: no page."""
        cdef Py_buffer names, view
        cdef Py_ssize_t n, i, w, stride = 2 * self.num_workers
        cdef int64_t place
        self.check(0, group)
        n = borrow(&names, hashes, 8, b"LQ", "hashes")
        try:
            found = np.full((self.num_workers, n), -1, np.int8)
            PyObject_GetBuffer(found, &view, PyBUF_WRITABLE)
            for i in range(n):
                place = shelf_find(self.shelves + group, (<const uint64_t *> names.buf)[i])
                for w in range(self.num_workers if place >= 0 else 0):
                    (<signed char *> view.buf)[w * n + i] = self.shelves[group].cells[place * stride + 2 * w] - 1
            PyBuffer_Release(&view)
        finally:
            PyBuffer_Release(&names)
        return found
