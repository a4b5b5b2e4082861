# Owns: moves and events as arrays, drained once per step; one open batch of removals per group.
# Does not know: why something moved. Moves are never lost (room is reserved first); events over a bound are, in a lump.

cdef enum:
    ONBOARD, OFFLOAD, COPY, EXCHANGE                                   # moves

cdef enum:
    CREATED, STORED, MOVED, RETAINED, REMOVED, CLEARED                 # events

cdef enum:
    MOVE_WIDTH = 11
    RECORD_WIDTH = 11         # kind, group, count, hash at, token at, size, before, after, parent, root, under a root

cdef enum:                    # a page's facts beside its hash: priority | tier << 8 | flags
    PARTIAL = 0x10000
    WORDS = 0x20000

cdef struct Batch:            # hashes removed from one group, not yet a record
    uint64_t *hashes
    int32_t *details
    Py_ssize_t count
    Py_ssize_t room
    Py_ssize_t detail_room

cdef struct Log:
    int32_t *moves
    Py_ssize_t num_moves
    Py_ssize_t move_room
    int64_t *records
    Py_ssize_t num_records
    Py_ssize_t record_room
    uint64_t *hashes
    Py_ssize_t num_hashes
    Py_ssize_t hash_room
    int32_t *details          # beside the hashes
    Py_ssize_t detail_room
    int32_t *tokens
    Py_ssize_t num_tokens
    Py_ssize_t token_room
    Batch *batches            # per group; NULL: events are off
    int32_t num_groups
    Py_ssize_t num_pending    # hashes in the log and in the open batches
    Py_ssize_t max_pending
    Py_ssize_t num_lost


cdef int log_open(Log *log, int32_t num_groups, bint events, Py_ssize_t max_events) noexcept nogil:
    log.num_groups, log.max_pending = num_groups, max_events
    if events:
        log.batches = <Batch *> calloc(num_groups, sizeof(Batch))
    return -1 if events and log.batches == NULL else 0


cdef void log_close(Log *log) noexcept nogil:
    cdef int32_t g
    if log.batches != NULL:
        for g in range(log.num_groups):
            free(log.batches[g].hashes)
            free(log.batches[g].details)
    free(log.batches)
    free(log.moves)
    free(log.records)
    free(log.hashes)
    free(log.details)
    free(log.tokens)


cdef inline int moves_reserve(Log *log, Py_ssize_t more) noexcept nogil:
    return reserve(<void **> &log.moves, &log.move_room, log.num_moves + more, 4 * MOVE_WIDTH)


cdef int32_t *log_move(Log *log, int kind, int32_t group) noexcept nogil:
    """The next move, for the caller to fill in from source tier on; room has been reserved."""
    cdef int32_t *move = log.moves + MOVE_WIDTH * log.num_moves
    log.num_moves += 1
    move[0], move[1] = kind, group
    move[9] = move[10] = -1
    return move + 2


cdef bint is_pending(Log *log, int32_t group, int32_t page) noexcept nogil:
    """Whether a move that waits for the next plan brings a page its bytes."""
    cdef Py_ssize_t i
    for i in range(log.num_moves):
        if log.moves[MOVE_WIDTH * i + 1] == group and log.moves[MOVE_WIDTH * i + 7] == page:
            return True
    return False


cdef void log_discard(Log *log) noexcept nogil:
    """Too much was left in the log: drop everything, count it, go on."""
    cdef int32_t g
    log.num_lost += log.num_pending
    log.num_pending = log.num_records = log.num_hashes = log.num_tokens = 0
    for g in range(log.num_groups):
        log.batches[g].count = 0


cdef int log_room(Log *log, Py_ssize_t hashes, Py_ssize_t tokens) noexcept nogil:
    """Room for one record; -1 without memory, and then the log has been discarded."""
    if (reserve(<void **> &log.records, &log.record_room, log.num_records + 1, 8 * RECORD_WIDTH)
            or reserve(<void **> &log.hashes, &log.hash_room, log.num_hashes + hashes, 8)
            or reserve(<void **> &log.details, &log.detail_room, log.num_hashes + hashes, 4)
            or reserve(<void **> &log.tokens, &log.token_room, log.num_tokens + tokens, 4)):
        log.num_pending += hashes
        log_discard(log)
        return -1
    return 0


cdef int64_t *log_record(Log *log, int kind, int32_t group, Py_ssize_t count) noexcept nogil:
    """The next record with `count` hashes at the end of the log; its places from size on are zero."""
    cdef int64_t *record = log.records + RECORD_WIDTH * log.num_records
    log.num_records += 1
    memset(record, 0, 8 * RECORD_WIDTH)
    record[0], record[1], record[2], record[3], record[4] = kind, group, count, log.num_hashes, -1
    return record


cdef inline void log_hash(Log *log, uint64_t hash, int32_t detail) noexcept nogil:
    log.hashes[log.num_hashes] = hash
    log.details[log.num_hashes] = detail
    log.num_hashes += 1


cdef inline void log_bound(Log *log, Py_ssize_t added) noexcept nogil:
    log.num_pending += added
    if log.num_pending >= log.max_pending:
        log_discard(log)


cdef void log_flush(Log *log, int32_t group) noexcept nogil:
    """Make the open batch of removals of a group a record."""
    cdef Batch *batch = log.batches + group
    cdef Py_ssize_t i, count = batch.count
    if count == 0:
        return
    if log_room(log, count, 0):
        log.num_lost -= count         # they were pending already
        return
    log_record(log, REMOVED, group, count)
    for i in range(count):
        log_hash(log, batch.hashes[i], batch.details[i])
    batch.count = 0


cdef void log_removed(Log *log, int32_t group, uint64_t hash, int32_t detail) noexcept nogil:
    cdef Batch *batch = log.batches + group
    if (reserve(<void **> &batch.hashes, &batch.room, batch.count + 1, 8)
            or reserve(<void **> &batch.details, &batch.detail_room, batch.count + 1, 4)):
        log.num_pending += 1
        log_discard(log)
        return
    batch.hashes[batch.count], batch.details[batch.count] = hash, detail
    batch.count += 1
    log_bound(log, 1)


cdef void log_created(Log *log, int32_t group, const int32_t *sizes, int32_t tiers) noexcept nogil:
    cdef int32_t u
    if log_room(log, tiers, 0):
        return
    log_record(log, CREATED, group, tiers)
    for u in range(tiers):
        log_hash(log, <uint64_t> sizes[u], 0)
    log_bound(log, tiers)


cdef inline Py_ssize_t log_waiting(Log *log) noexcept nogil:
    """Records and hashes that wait, and 1 for a loss: more than 0 when there is something to take."""
    return log.num_records + log.num_pending + (log.num_lost > 0)


cdef void log_cleared(Log *log) noexcept nogil:
    """CLEARED for every group, instead of all that waits: it is void now, but for CREATED, which come first."""
    cdef int32_t g
    cdef Py_ssize_t kept = 0, hashes = 0
    while kept < log.num_records and log.records[RECORD_WIDTH * kept] == CREATED:
        hashes += log.records[RECORD_WIDTH * kept + 2]
        kept += 1
    log.num_records, log.num_hashes, log.num_pending, log.num_tokens = kept, hashes, hashes, 0
    for g in range(log.num_groups):
        log.batches[g].count = 0
        if log_room(log, 0, 0) == 0:
            log_record(log, CLEARED, g, 0)


cdef object take_moves(Log *log):
    """All moves so far, int32 [n, 11]; the log is empty then."""
    moves = as_array(log.moves, MOVE_WIDTH * log.num_moves, 4, np.int32).reshape(-1, MOVE_WIDTH)
    log.num_moves = 0
    return moves


cdef tuple take_events(Log *log):
    """(records, hashes, details, tokens, lost); the log is empty then."""
    cdef int32_t g
    if log.batches != NULL:
        for g in range(log.num_groups):
            log_flush(log, g)
    events = (as_array(log.records, RECORD_WIDTH * log.num_records, 8, np.int64).reshape(-1, RECORD_WIDTH),
              as_array(log.hashes, log.num_hashes, 8, np.uint64), as_array(log.details, log.num_hashes, 4, np.int32),
              as_array(log.tokens, log.num_tokens, 4, np.int32), log.num_lost)
    log.num_records = log.num_hashes = log.num_tokens = log.num_pending = log.num_lost = 0
    if log.hash_room > 2 * log.max_pending + 1024:
        log_shrink(log)
    return events


cdef void log_shrink(Log *log) noexcept nogil:
    """Give back what telling the whole state has taken: what waits here is bounded."""
    free(log.records)
    free(log.hashes)
    free(log.details)
    free(log.tokens)
    log.records, log.hashes, log.details, log.tokens = NULL, NULL, NULL, NULL
    log.record_room = log.hash_room = log.detail_room = log.token_room = 0
