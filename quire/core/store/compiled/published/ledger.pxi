# Owns: Ledger: which worker has which published page, in which tier, according to the records; and the walk along a
# prompt's hashes.
# Does not know: batches, gaps, sockets: the caller says what to apply.

cdef enum:
    LEDGER_WIDTH = 5          # of a record here: kind, group, count, before, after
    MAX_GROUPS = 64
    MAX_WORKERS = 4096


cdef void mark_tiers(HolderTable *f, const uint64_t *hashes, Py_ssize_t n, const int32_t *rows,
                     signed char *found) noexcept nogil:
    cdef Py_ssize_t i, k
    cdef uint32_t card
    cdef Holder *holders
    for i in range(n):
        card = table_find(f, hashes[i])
        if card != NO_CARD:
            holders = holders_of(f.cards + card)
            for k in range(f.cards[card].count):
                if rows[holders[k].worker] >= 0:
                    found[rows[holders[k].worker] * n + i] = <signed char> holders[k].tier


cdef void count_runs(HolderTable *f, const uint64_t *hashes, Py_ssize_t n, const int32_t *rows,
                     int32_t *found) noexcept nogil:
    """A worker that has had every block so far has as many of them as there were."""
    cdef int32_t i = 0
    cdef uint32_t card
    cdef Holder *holder
    cdef Holder *end
    cdef int32_t *own
    cdef bint going = True
    while going and i < n:
        card = table_find(f, hashes[i])
        if card == NO_CARD:
            return
        holder = holders_of(f.cards + card)
        end = holder + f.cards[card].count
        going = False
        while holder < end:
            own = found + (1 + LEDGER_TIERS) * <Py_ssize_t> rows[holder.worker]
            if rows[holder.worker] >= 0 and own[0] == i:
                own[0] = i + 1
                own[1 + holder.tier] += 1
                going = True
            holder += 1
        i += 1


@cython.final
cdef class Ledger:
    """Pages by event hash, for some workers and groups."""

    cdef HolderTable *tables  # per group
    cdef Stock *stocks        # per worker and group
    cdef Py_ssize_t num_groups
    cdef Py_ssize_t num_workers

    def __init__(self, Py_ssize_t num_workers=1, Py_ssize_t num_groups=1):
        if not (1 <= num_workers <= MAX_WORKERS and 1 <= num_groups <= MAX_GROUPS):
            raise ValueError(f"{num_workers} workers, {num_groups} groups")
        if self.tables != NULL:
            raise ValueError("a Ledger is made once")
        self.widen(num_workers, num_groups)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.num_groups):
            table_close(self.tables + i)
        for i in range(self.num_workers * self.num_groups):
            free(self.stocks[i].cards)
        free(self.tables)
        free(self.stocks)

    def __len__(self):
        """Hashes that some worker has, groups apart."""
        return sum([self.tables[g].count for g in range(self.num_groups)])

    def widen(self, Py_ssize_t num_workers, Py_ssize_t num_groups):
        """Room for that many workers and groups."""
        cdef Py_ssize_t w, g = self.num_groups
        cdef Stock *stocks
        cdef void *moved
        if not (self.num_workers <= num_workers <= MAX_WORKERS and self.num_groups <= num_groups <= MAX_GROUPS):
            raise ValueError(f"{num_workers} workers, {num_groups} groups: less than there are, or too many")
        stocks = <Stock *> calloc(num_workers * num_groups, sizeof(Stock))
        moved = realloc(self.tables, num_groups * sizeof(HolderTable))
        if moved != NULL:
            self.tables = <HolderTable *> moved
            while g < num_groups and table_open(self.tables + g) == 0:
                g += 1
        if stocks == NULL or g < num_groups:
            while g > self.num_groups:
                g -= 1
                table_close(self.tables + g)
            free(stocks)
            raise MemoryError("no memory for more workers")
        for w in range(self.num_workers):
            memcpy(stocks + w * num_groups, self.stock(w, 0), self.num_groups * sizeof(Stock))
        free(self.stocks)
        self.stocks, self.num_workers, self.num_groups = stocks, num_workers, num_groups

    cdef Stock *stock(self, Py_ssize_t worker, Py_ssize_t group) noexcept nogil:
        return self.stocks + worker * self.num_groups + group

    cdef int check(self, Py_ssize_t worker, Py_ssize_t group) except -1:
        if not (0 <= worker < self.num_workers and 0 <= group < self.num_groups):
            raise LookupError(f"no worker {worker} or no group {group}")
        return 0

    def apply(self, Py_ssize_t worker, records, hashes, priorities):
        """Apply records in order, all or none; how many of them did not fit what was known."""
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
            if record[0] in (STORED, MOVED) and not 0 <= record[4] < LEDGER_TIERS:
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
        cdef Py_ssize_t i, k, odd = 0
        cdef int known
        cdef HolderTable *f
        cdef Stock *s
        for i in range(n):
            f, s = self.tables + record[1], self.stock(worker, record[1])
            if record[0] == STORED:
                if table_reserve(f, s, record[2]):
                    raise MemoryError("no memory for more pages")
                for k in range(record[2]):
                    known = table_put(f, s, hashes[k] if hashes[k] else 1, worker, record[4], priorities[k])
                    if known < 0:
                        raise MemoryError("no memory for more holders")
                    odd += known
            elif record[0] == MOVED:
                for k in range(record[2]):
                    odd += table_change(f, s, hashes[k], worker, record[4], -1)
            elif record[0] == RETAINED:
                for k in range(record[2]):
                    odd += table_change(f, s, hashes[k], worker, -1, record[4])
            elif record[0] == REMOVED:
                for k in range(record[2]):
                    odd += table_drop(f, s, hashes[k], worker)
            elif record[0] == CLEARED:
                self.wipe(worker, record[1])
            hashes, priorities = hashes + record[2], priorities + record[2]
            record += LEDGER_WIDTH
        return odd

    cdef void wipe(self, Py_ssize_t worker, Py_ssize_t group) noexcept:
        """One worker's pages of a group are gone."""
        table_wipe(self.tables + group, self.stock(worker, group), worker)
        table_pack(self.tables + group, self.stock(0, group), self.num_groups)

    def clear(self, Py_ssize_t worker):
        """Forget a worker's pages; takes time by how many it has."""
        cdef Py_ssize_t g
        self.check(worker, 0)
        for g in range(self.num_groups):
            self.wipe(worker, g)

    def num_pages(self, Py_ssize_t worker):
        """Pages of a worker, in all its groups."""
        cdef Py_ssize_t g, count = 0
        self.check(worker, 0)
        for g in range(self.num_groups):
            count += self.stock(worker, g).count
        return count

    def sums_by_tier(self, Py_ssize_t worker):
        """Per group and tier: number of pages and two lanes of their sum; uint64 [groups, 8, 3]."""
        self.check(worker, 0)
        sums = [as_array(self.stock(worker, g).sums, LEDGER_TIERS * SUM_WIDTH, 8, np.uint64)
                for g in range(self.num_groups)]
        return np.stack(sums).reshape(-1, LEDGER_TIERS, SUM_WIDTH)

    def pages(self, Py_ssize_t worker, Py_ssize_t group):
        """A worker's pages in no order: hashes, tiers, priorities."""
        cdef Stock *s
        cdef Card *card
        cdef Holder *holder
        cdef Py_buffer view
        cdef Py_ssize_t i
        cdef uint64_t *row
        self.check(worker, group)
        s = self.stock(worker, group)
        found = np.empty((s.count, 3), np.uint64)
        PyObject_GetBuffer(found, &view, PyBUF_WRITABLE)
        for i in range(s.count):
            card = self.tables[group].cards + s.cards[i]
            holder = holder_find(card, worker)
            row = <uint64_t *> view.buf + 3 * i
            row[0], row[1], row[2] = card.hash, holder.tier, holder.priority
        PyBuffer_Release(&view)
        return found[:, 0].copy(), found[:, 1].astype(np.uint8), found[:, 2].astype(np.uint8)

    cdef int32_t *rows_of(self, list workers) except NULL:
        """The row of each worker in an answer about some of them, -1 for the others; to be freed."""
        cdef int32_t *rows
        cdef Py_ssize_t worker
        cdef int32_t row = 0
        for worker in workers:
            self.check(worker, 0)
        rows = <int32_t *> malloc(self.num_workers * sizeof(int32_t))
        if rows == NULL:
            raise MemoryError("no memory for an answer")
        memset(rows, 0xFF, self.num_workers * sizeof(int32_t))
        for worker in workers:
            rows[worker] = row
            row += 1
        return rows

    def runs(self, Py_ssize_t group, hashes, list workers not None):
        """For each of some workers, how many leading blocks it has, and how many in each tier; int32 [workers, 9]."""
        cdef Py_buffer names, view
        cdef Py_ssize_t n
        cdef int32_t *rows
        self.check(0, group)
        found = np.zeros((len(workers), 1 + LEDGER_TIERS), np.int32)
        n = borrow(&names, hashes, 8, b"LQ", "hashes")
        try:
            rows = self.rows_of(workers)
            PyObject_GetBuffer(found, &view, PyBUF_WRITABLE)
            count_runs(self.tables + group, <const uint64_t *> names.buf, n, rows, <int32_t *> view.buf)
            PyBuffer_Release(&view)
            free(rows)
        finally:
            PyBuffer_Release(&names)
        return found

    def walk(self, Py_ssize_t group, hashes, list workers not None):
        """Tier by worker and block, holes and all; int8 [workers, blocks], -1: no page."""
        cdef Py_buffer names, view
        cdef Py_ssize_t n
        cdef int32_t *rows
        self.check(0, group)
        n = borrow(&names, hashes, 8, b"LQ", "hashes")
        try:
            found = np.full((len(workers), n), -1, np.int8)
            rows = self.rows_of(workers)
            PyObject_GetBuffer(found, &view, PyBUF_WRITABLE)
            mark_tiers(self.tables + group, <const uint64_t *> names.buf, n, rows, <signed char *> view.buf)
            PyBuffer_Release(&view)
            free(rows)
        finally:
            PyBuffer_Release(&names)
        return found
