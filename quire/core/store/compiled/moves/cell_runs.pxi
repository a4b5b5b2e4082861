# Owns: runs in the adaptive order. A text goes from its end: mostly the parent of the page that goes is next, since
# that page releases it to the front of the same list. In a run the parent never enters that list: it stays among the
# covered until it goes, too.
# Does not know: whose pages are made; callers have made sure that something is available and that the log has room.

cdef struct CellRun:          # in the order of one tier
    int32_t page              # goes next, though it is still among the covered; -1: whatever is picked does
    int32_t kind              # the list that the last page went from, and this one would


cdef int32_t parent_of(Pool *g, int32_t p) noexcept nogil:
    """The page of the parent's block if it is idle, and waits for p in a group that needs all blocks; or -1."""
    cdef int32_t parent = at(g.tree, page_at(g, p).node).parent, q
    if not g.leaves_only or at(g.tree, parent).flags & ROOT:
        return -1
    q = at(g.tree, parent).page[g.index]
    return q if q >= 0 and page_at(g, q).holders == 0 else -1


cdef void fetch_above(Pool *g, int32_t p, int32_t t) noexcept nogil:
    """The pages above p, the next victim of a tier, will be released one by one. They mostly lie behind each other
    among the covered ones, too, and there more than one can be fetched at a time; where not, it was in vain."""
    cdef Order *o = g.tiers + t
    cdef int32_t[MAX_RUN] found
    cdef int32_t q = parent_of(g, p), slot = page_at(g, q).slot[t] if q >= 0 else -1, count = 0, i
    while count < MAX_RUN and 0 <= slot < o.size:
        found[count] = o.slots[slot].page
        prefetch(page_at(g, found[count]))
        slot = o.slots[slot].next
        count += 1
    for i in range(count):
        prefetch(at(g.tree, page_at(g, found[i]).node))


cdef inline bint is_alike(Pool *g, Page *page, Page *other) noexcept nogil:
    """Whether two pages belong in one list when they are not covered, whichever it is: those of one prompt mostly do."""
    cdef Memory *mine = memory_behind(g, page)
    cdef Memory *its = memory_behind(g, other)
    return (mine.used == its.used and (mine.reuse ^ its.reuse) & ~WATCHED == 0
            and class_of_idle(page) == class_of_idle(other))


cdef inline bint goes_next(Pool *g, int32_t t, int32_t p, int32_t kind, int32_t like) noexcept nogil:
    """Whether a page whose last child, picked from the list `kind`, has released it would be picked next. `like`: a page
    that belongs in that list now, or -1."""
    cdef Order *o = g.tiers + t
    cdef Page *page = page_at(g, p)
    cdef int32_t head = o.slots[o.size + kind].next
    if claims_of(page) or is_kept(g, o, p):
        return False
    if not (like >= 0 and is_alike(g, page, page_at(g, like))) and list_of(g, page, p) != kind:
        return False
    return head >= o.size or memory_behind(g, page).used <= memory_at(g.cells, o.slots[head].page).used


cdef inline void cut_page(Pool *g, int32_t t, int32_t p, int32_t target, CellRun *run) noexcept nogil:
    """Take the page that goes next out of the order of a tier, for a colder one or for good (-1). If its parent goes next
    then, the run says so; else that is listed where it belongs, if it was released."""
    cdef int32_t parent = at(g.tree, page_at(g, p).node).parent, like = run.page, q
    cdef int32_t *kids = kids_at(g.tree, parent, g.index)
    cdef Page *page
    leave_idle(g, t, page_at(g, p))
    run.page = -1
    if not g.leaves_only or at(g.tree, parent).flags & ROOT:
        return
    kids[t] -= 1
    if target >= 0:
        kids[target] += 1
    q = at(g.tree, parent).page[g.index]
    page = page_at(g, q)
    if q < 0 or has_any(kids, t) or page.holders or hottest(g, page) != t:
        return
    if g.tiers[t].slots[page.slot[t]].prev < 0:
        return                # cut before its child, in this run: both were covered, the child by what somebody holds
    if g.reads:
        set_passed(g, page, UNKNOWN)
    if goes_next(g, t, q, run.kind, like):
        run.page = q
        return
    unlist(g.tiers + t, page.slot[t], COVERED)
    list_adaptive(g, t, page, False, True)


cdef void end_run(Pool *g, int32_t t, CellRun *run) noexcept nogil:
    """What would have gone next is the first of its list: what came there since has come behind it."""
    cdef int32_t slot
    if run.page >= 0:
        slot = page_at(g, run.page).slot[t]
        unlist(g.tiers + t, slot, COVERED)
        memory_at(g.cells, run.page).kind = <uint16_t> (run.kind - first_list(g, page_at(g, run.page)))
        push_front(g.tiers + t, g.cells, slot, run.kind)
        run.page = -1


cdef inline bint is_full_tier(Pool *g, int32_t t) noexcept nogil:
    """Whether no slot of a tier is empty or a shadow's: such are taken first."""
    return g.tiers[t].filled[0] & (1 << EMPTY | 1 << SHADOW) == 0


cdef inline int32_t next_page(Pool *g, int32_t t, CellRun *run) noexcept nogil:
    """The page of a full tier that goes next, or -1."""
    cdef int32_t slot, p
    if run.page >= 0:
        return run.page
    slot = pick(g, t)
    if slot < 0:
        return -1
    p = g.tiers[t].slots[slot].page
    run.kind = kind_of(g, page_at(g, p))
    return p


cdef void bury_all(State *s, Pool *g, const int32_t *pages, int32_t count) noexcept nogil:
    """Fetch what finds the blocks of pages, for all of them before the first is buried. Not by `bury_cut`: with its
    questions a run takes a tenth longer."""
    cdef int32_t i
    for i in range(count):
        fetch_key(s, page_at(g, pages[i]).node)
    for i in range(count):
        bury(s, g, pages[i], EVICTED)


cdef int32_t cut_cells(State *s, Pool *g, int32_t t, int32_t wanted, int32_t *slots) noexcept nogil:
    """`cut_slots` for cells, in the coldest tier: what evicting the pages changes in the order is done here, too."""
    cdef int32_t[MAX_RUN] pages
    cdef int32_t count = 0, p
    cdef CellRun run
    run.page = -1
    while count < wanted:
        p = next_page(g, t, &run)
        if p < 0:
            break
        if run.page < 0:
            fetch_above(g, p, t)
        pages[count], slots[count] = p, page_at(g, p).slot[t]
        count += 1
        cut_page(g, t, p, -1, &run)
    end_run(g, t, &run)
    bury_all(s, g, pages, count)
    g.tiers[t].num_idle -= count
    if t == 0:
        g.room.available -= count
        g.counters[TOTAL] += count
    return count


cdef inline void cut_pair(Pool *g, int32_t p, int32_t q, CellRun *device, CellRun *host) noexcept nogil:
    """Page p leaves the device for the slot of page q of the host. When q leaves its parent, p is in no tier, and counts
    as a child of its own parent below: either parent may be the same, or p itself."""
    cdef Page *page = page_at(g, p)
    cdef int32_t room = page_at(g, q).slot[1]
    cut_page(g, 0, p, 1, device)
    page.slot[0] = -1
    cut_page(g, 1, q, -1, host)
    put_copy(g, p, 1, room)
    if has_child(g, page, 1):
        list_covered(g, 1, page)
    else:
        list_above(g, 1, page, False, False)
    g.counters[OFFLOADED] += 1


cdef inline bint cut_lone(Pool *g, int32_t p, CellRun *device, CellRun *host) noexcept nogil:
    """Page p leaves the device for good, and perhaps a parent that is in the host: whether another page is next there."""
    cdef int32_t q = parent_of(g, p)
    cut_page(g, 0, p, -1, device)
    if q < 0 or hottest(g, page_at(g, q)) != 1 or has_child(g, page_at(g, q), 1):
        return False
    end_run(g, 1, host)
    look_at_parent(g, q)
    return True


cdef int32_t cut_cell_pairs(State *s, Pool *g, int32_t wanted) noexcept nogil:
    """`cut_pairs` for cells, and for pages that are dropped themselves since the host keeps its own. What goes down comes
    behind all that it does not outrank: the next of either run stays the next."""
    cdef int32_t count = 0, p, q = -1
    cdef CellRun device, host
    device.page = host.page = -1
    if not is_full_tier(g, 0) or not is_full_tier(g, 1):
        return 0
    while count < wanted:
        p = next_page(g, 0, &device)
        q = next_page(g, 1, &host) if q < 0 else q
        if p < 0 or q < 0 or device.kind == COVERED:
            break
        g.run[count] = page_at(g, p).slot[0]
        if priority_of(page_at(g, p)) < s.offload_min or holds_off(g, q, host.kind, p, 1):
            g.dropped[count] = p
            q = -1 if cut_lone(g, p, &device, &host) else q
        else:
            g.dropped[count] = q
            cut_pair(g, p, q, &device, &host)
            q = -1
        count += 1
    end_run(g, 0, &device)
    end_run(g, 1, &host)
    bury_all(s, g, g.dropped, count)
    return count
