# Owns: what is counted of a pool as a whole, whichever groups share it; one group in its pool in one struct, with its
# pages; which of them are spared.
# Does not know: where pages are listed, who holds one.

cdef struct Room:             # what is counted of a pool as a whole; groups may share it
    int32_t free              # top of the free pages, or -1
    int32_t available         # slots of tier 0 that are empty or hold an idle page nobody claims, less `reserved`
    int32_t reserved          # slots for rows alone
    int64_t owed              # scratch: slots that the present call still takes, beyond what is reserved for the asker
    int64_t net               # scratch: those it asks for, less what is reserved for it
    Expiries times

cdef enum:
    TOTAL, NEW, REUSED_FULL, REUSED_PARTIAL, MISSED, ONBOARDED
    OFFLOADED, COPIED, DROPPED, DEMOTED, GROWN, COPIED_TOKENS
    REUSED_FROM               # one per tier from here on
    MAX_TIERS = 8
    MAX_CLAIMS = 0x7FFFFF
    PARTIAL_FROM = 20         # of those, partial hits
    SKIPPED = 28              # snapshots not taken: the state may have gone on
    BEHIND = 29               # of the dropped: those that should have had a copy in the slow tier
    COPIED_DOWN = 30          # background copies
    PREFETCHED = 31
    TOLD = 31                 # + hint: pages of which it was given
    FOUND_AGAIN = 34                # + hint: of the reused, those that had it
    SUPERSEDED = 38           # pages of text that its session has left behind
    PENDING = 39              # of the reused: pages that a step in flight was computing
    NUM_COUNTERS = 40
    MAX_RUN = 32

cdef uint32_t COPYING = 1 << 31           # in `stays`: a background copy of the page is being made

cdef struct Pool:             # the pages of one group: numbers of its own, and its pool's
    Room *room
    char *pages
    void *pages_memory        # where they were had
    Py_ssize_t stride         # bytes of a page
    int32_t num_pages
    int32_t num_tiers
    int32_t index             # of the group
    int32_t tail              # blocks a hit needs before its end, -1: all
    int32_t sink              # and at its start
    int32_t keep              # blocks before its committed end that a row goes on holding, -1: all
    int32_t every             # with `current`: a growing row gets a page in every so-manieth column, 0: in none
    int32_t extra             # tokens of standing room behind a row's length
    int32_t current           # 1: a row has one page outside its columns, which it goes on writing
    int32_t ranked            # pages may be passed: it has a window, and its order ranks
    int32_t overtakes         # the same of one that has snapshots
    int32_t reads             # and of one that needs all blocks beside others that do not, in the adaptive order
    int32_t leaves_only       # it needs all blocks: in the adaptive order a parent does not go before its child
    int32_t first             # group of the pool; it gives the memory back
    int32_t num_peaks         # rows for which slots are reserved
    int32_t empty_class
    int32_t hears             # what is said of the future: its order is not that of release
    int32_t hinted            # something was said
    int32_t dear              # depths of which each makes a page one age younger; 0: all pages cost the same
    int32_t[MOST_YOUNGER] dear_from
    int32_t[MAX_RUN] run      # slots cut out of the order for pages that are being made; empty between calls
    int32_t[MAX_RUN] dropped  # for the first `num_paired` of them: the page there, or one of the host if that goes down
    int32_t num_paired, run_at, run_end
    int64_t to_cut            # slots the present call will still cut
    uint64_t salt             # keeps its ghosts apart from those of other groups of the pool
    uint16_t *owners          # per page: its group; NULL: the pool is one group's
    Order *tiers
    Cells *cells              # of the adaptive order; NULL in others
    Ghosts *ghosts            # its own, or those of an order that learns nothing; NULL: what is gone is not remembered
    Tree *tree
    int64_t *counters         # NumPy memory from here on
    int64_t *row_counters
    int32_t *row_pages
    int32_t *row_slots
    int32_t *told             # the same as they were told last; NULL: never
    int32_t *touched          # [rows, 2]: columns [first, last) that may have changed since; last 0: none; NULL: all
    int32_t *capacity
    int32_t *currents         # per row: that page, or -1
    int32_t *current_slots
    uint32_t *stays           # per page, not NumPy's any more: who needs its colder copies where they are | COPYING; NULL with one tier
    Notes *notes              # of changes in the slow tier; NULL: they are not wanted
    Tenure *tenure            # of pages whose copies change; NULL: it is not wanted
    int32_t slow              # the tier that no step waits for, -1: there is none


cdef inline Page *page_at(Pool *g, int32_t p) noexcept nogil:
    return <Page *> (g.pages + p * g.stride)


cdef inline bint is_mine(Pool *g, int32_t p) noexcept nogil:
    """Whether a page of the pool is one of the group's."""
    return g.owners == NULL or g.owners[p] == g.index


cdef inline uint32_t stays_of(Pool *g, int32_t p) noexcept nogil:
    return 0 if g.stays == NULL else g.stays[p] & ~COPYING


cdef inline bint is_copying(Pool *g, int32_t p) noexcept nogil:
    return g.stays != NULL and g.stays[p] & COPYING


cdef inline Memory *memory_behind(Pool *g, Page *page) noexcept nogil:
    """What the adaptive order knows of a page."""
    return <Memory *> (<char *> page + g.stride - sizeof(Memory))


cdef inline int32_t hottest(Pool *g, Page *page) noexcept nogil:
    """The tier of the hottest copy; num_tiers when there is none."""
    cdef int32_t t = 1
    if page.slot[0] >= 0:     # mostly
        return 0
    while t < g.num_tiers and page.slot[t] < 0:
        t += 1
    return t


cdef inline bint is_kept(Pool *g, Order *o, int32_t p) noexcept nogil:
    """Whether a copy of the page in this tier, below the device, must stay there."""
    return o != g.tiers and stays_of(g, p)


cdef int32_t pass_claimed(Pool *g, Order *o, int32_t slot) noexcept nogil:
    """The first slot of a list, from this one on, whose page nobody claims; its sentinel when there is none."""
    cdef int32_t p
    while slot < o.size:
        p = o.slots[slot].page
        if p < 0 or not (claims_of(page_at(g, p)) or is_kept(g, o, p)):
            break
        slot = o.slots[slot].next
    return slot


cdef int32_t pass_kept(Pool *g, Order *o, int32_t slot) noexcept nogil:
    """The same among shadows, which are not claimed."""
    while slot < o.size and is_kept(g, o, o.slots[slot].page):
        slot = o.slots[slot].next
    return slot
