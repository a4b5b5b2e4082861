# Owns: the interface as a whole, with what is reported and asked: one method per act, each of them checks its arguments
# and calls the part that does the work.
# Does not know: how anything is done. `interface` says what each method does.


@cython.final
cdef class Store(PageCalls):
    """Tree, pools and rows of one cache."""

    # events

    def take_events(self, bint whole=False):
        """All events since the last call, or instead the whole state: (records, hashes, details, tokens, lost)."""
        if whole and self.state.log.batches != NULL and log_whole(&self.state):
            log_discard(&self.state.log)
            raise MemoryError("take_events: no memory for the whole state")
        return take_events(&self.state.log)

    # questions

    def num_empty(self, Py_ssize_t group, Py_ssize_t tier):
        return check_tier(&self.state, group, tier).num_empty

    def num_idle(self, Py_ssize_t group, Py_ssize_t tier):
        return check_tier(&self.state, group, tier).num_idle

    def num_shadow(self, Py_ssize_t group, Py_ssize_t tier):
        return check_tier(&self.state, group, tier).num_shadow

    @property
    def num_nodes(self):
        """Blocks in the tree; roots do not count."""
        return self.state.tree.num_nodes

    def nbytes(self):
        """(metadata, tokens): bytes of tree, index and pools."""
        return nbytes(&self.state)

    def page_info(self, Py_ssize_t group, Py_ssize_t page):
        """One page now."""
        return page_info(check_page(&self.state, group, page), <int32_t> page)

    def page_in(self, Py_ssize_t group, Py_ssize_t tier, Py_ssize_t slot):
        """The page that has a copy in a slot, -1: none."""
        cdef Order *o = check_tier(&self.state, group, tier)
        if not 0 <= slot < o.size:
            raise LookupError(f"no slot {slot}")
        return o.slots[slot].page

    def page_slots(self, Py_ssize_t group, Py_ssize_t page):
        """The page's slot per tier, -1: no copy there."""
        return slots_tuple(check_page(&self.state, group, page), <int32_t> page)

    def slots_in(self, Py_ssize_t group, Py_ssize_t tier, pages):
        """The slot of each of these pages in a tier, int32, -1: no copy there."""
        check_tier(&self.state, group, tier)
        return slots_in(self.state.pools + group, <int32_t> tier, pages)

    def dump(self):
        """Everything, as plain values that are the same in both modules."""
        return dump(&self.state, self.hashes)

    def map_slots(self, Py_ssize_t group, Py_ssize_t tier, Py_ssize_t first, Py_ssize_t stop):
        """What lies in the slots [first, stop), cut to those there are: [slots, 4], by SlotColumn."""
        cdef Order *o = check_tier(&self.state, group, tier)
        first, stop = max(0, first), min(stop, <Py_ssize_t> o.size)
        return map_slots(self.state.pools + group, <int32_t> tier, <int32_t> first, <int32_t> max(first, stop))

    def map_order(self, Py_ssize_t group, Py_ssize_t tier, Py_ssize_t limit):
        """Slots of shadows and idle pages in the order in which they would be taken, claimed or not; so many."""
        check_tier(&self.state, group, tier)
        return map_order(self.state.pools + group, <int32_t> tier, limit)

    def map_nodes(self, Py_ssize_t first, Py_ssize_t limit):
        """Nodes from a number on, by NodeColumn, and the number to go on from, -1: that was all."""
        if first < 0 or limit < 1:
            raise ValueError(f"{limit} nodes from number {first} on")
        return map_nodes(&self.state, first, limit)
