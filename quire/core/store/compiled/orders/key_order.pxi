# Owns: an order over keys of a caller, who keeps what they stand for: which go next when room is needed.
# Does not know: tokens, the tree, tiers, nor where the bytes are. A key is bytes; equal bytes are the same thing.


@cython.final
cdef class KeyOrder:
    """Which of a caller's keys go next."""

    cdef KeyLists lists
    cdef Py_ssize_t room
    cdef bint adaptive
    cdef int32_t ghosts
    cdef dict numbers         # key -> number
    cdef list names           # number -> key, None: free
    cdef list free_numbers    # the next one last
    cdef dict met             # keys that will come, and were there before -> their uses with this one

    def __init__(self, Py_ssize_t room, Py_ssize_t ghosts=8, bint adaptive=True):
        if not 1 <= room <= MOST_KEYS or not 0 <= ghosts <= 64:
            raise ValueError(f"an order of {room} keys with {ghosts} ghosts each: 1 to {MOST_KEYS} keys, 0 to 64 ghosts")
        self.room, self.adaptive, self.ghosts = room, adaptive, <int32_t> ghosts
        self.clear()

    def __dealloc__(self):
        key_lists_close(&self.lists)

    def clear(self):
        """All keys go, held ones too, and all that was learned."""
        cdef int32_t[NUM_CELLS] rank
        cdef int32_t i
        key_lists_close(&self.lists)
        if key_lists_open(&self.lists, <int32_t> self.room, self.ghosts, self.adaptive):
            key_lists_close(&self.lists)
            raise MemoryError(f"no memory for an order of {self.room} keys")
        self.numbers, self.names, self.met = {}, [None] * self.room, {}
        self.free_numbers = list(range(self.room - 1, -1, -1))
        for i in range(NUM_CELLS if self.adaptive else 0):
            rank[i] = FIRST_RANK[i]
        if self.adaptive:
            key_rank(&self.lists, rank, True)

    def __len__(self):
        return len(self.numbers)

    def __contains__(self, key):
        return key in self.numbers

    @property
    def num_free(self):
        """Keys that may go."""
        return len(self.numbers) - self.lists.num_held

    def set_time(self, int64_t now):
        """In microseconds; it never goes back."""
        self.lists.now = max(self.lists.now, now)
        if self.adaptive:
            self.lists.cells.now = max(self.lists.cells.now, self.lists.now)

    def meet(self, keys):
        """These will come: how many of them were there before, and the class of the last of those."""
        cdef int32_t uses, reuse = ONCE
        self.met.clear()
        if self.adaptive and self.lists.cells.ghosts.count:
            for key in keys:
                uses = meet_key(&self.lists, hash_key(<bytes> key, len(<bytes> key)))
                if uses:
                    self.met[key], reuse = uses, self.lists.cells.met_class
        return len(self.met), reuse

    def come(self, bytes key not None):
        """A key is there from now on, and held."""
        cdef int32_t n
        if key in self.numbers or not self.free_numbers:
            raise ValueError("the key is there already" if key in self.numbers else f"{self.room} keys are there")
        n = self.free_numbers.pop()
        self.numbers[key], self.names[n] = n, key
        begin_key(&self.lists, n, hash_key(key, len(key)), self.met.pop(key, 1))

    def hold(self, key):
        """A key may not go from now on."""
        cdef int32_t n = self.numbers[key]
        self.lists.num_held += self.lists.keys[n].stays & KEY_HELD == 0
        self.lists.keys[n].stays |= KEY_HELD

    def let_go(self, key):
        """A key may go from now on."""
        cdef int32_t n = self.numbers[key]
        self.lists.num_held -= self.lists.keys[n].stays & KEY_HELD
        free_key(&self.lists, n, KEY_HELD)

    def take(self, Py_ssize_t count, spared=()):
        """So many keys go, neither held nor spared; None: there are fewer, and nothing has changed."""
        cdef KeyLists *k = &self.lists
        cdef list apart = [], gone = []
        cdef int32_t n
        for number in [self.numbers.get(key) for key in spared]:
            if number is not None and k.keys[<int32_t> number].stays == 0:
                k.keys[<int32_t> number].stays = KEY_SPARED
                apart.append(number)
        if count <= self.num_free - len(apart):
            if k.cells != NULL and is_aging(k.cells):
                age_order(&k.order, k.cells)
            while len(gone) < count:
                n = first_key(k)
                if n < 0:
                    raise BrokenInvariant("no key may go, although it was counted before")
                if k.cells != NULL:
                    remember(k.cells, n, k.keys[n].hash, ~k.keys[n].hash, 0, EVICTED)
                gone.append(self.names[n])
                self._leave(n)
        else:
            gone = None
        for n in apart:
            free_key(k, n, KEY_SPARED)
        return gone

    cdef int _leave(self, int32_t n) except -1:
        end_key(&self.lists, n)
        del self.numbers[self.names[n]]
        self.names[n] = None
        self.free_numbers.append(n)
        return 0

    def drop(self, key):
        """A key is gone, held or not, and not for want of room."""
        self._leave(self.numbers[key])

    def chain(self, keys):
        """Each key continues the one before it: it is of no use without it, and goes before it."""
        cdef int32_t above = -1, n
        for key in keys:
            number = self.numbers.get(key)
            if number is None:
                continue
            n = number
            if above >= 0 and above != n:
                link_key(&self.lists, n, above)
            above = n

    def use(self, keys, reused, bint continued):
        """A request is over that used these keys, found the `reused` ones there, and made the others; `continued`: it
        went on from known text. Its last key goes first. The class that the last reused key had."""
        cdef KeyLists *k = &self.lists
        cdef list known = []
        cdef int32_t n, last = ONCE
        cdef bint again
        if k.cells != NULL:
            next_admission(k.cells)
            k.now = k.cells.now
        for key in keys:
            number = self.numbers.get(key)
            if number is not None:
                known.append(number)
                n, again = number, key in reused
                if again:
                    last = class_in(&k.keys[n].memory)
                use_key(k, n, again, CONTINUED if continued else ONCE)
        for number in reversed(known):
            relist_key(k, number, False)
        return last

    def hint(self, keys, int32_t back):
        """When the text of these keys comes back (0: unknown): of the last ones, which no other text shares. How many
        keys that is."""
        cdef KeyLists *k = &self.lists
        cdef int32_t n, below = -1, count = 0, uses = 0, reuse
        if not 0 <= back <= NEVER - HINT_SHIFT:
            raise ValueError(f"no hint has the number {back}")
        for key in reversed(keys):
            number = self.numbers.get(key)
            if number is None:
                continue
            n = number
            if k.keys[n].kids > (below >= 0 and parent_key(k, below) == n) or 0 < uses < k.keys[n].memory.uses - APART_USES:
                break
            uses, below, count = k.keys[n].memory.uses, n, count + 1
            reuse = told_class(back, k.keys[n].memory.uses, class_in(&k.keys[n].memory))
            if reuse != class_in(&k.keys[n].memory):
                k.keys[n].memory.reuse = <unsigned char> (k.keys[n].memory.reuse & ~CLASS | reuse)
                relist_key(k, n, False)
        return count

    def retain(self, keys, Py_ssize_t priority):
        """These keys have this priority from now on: lower ones go before them."""
        cdef int32_t n
        if not 0 <= priority <= MAX_PRIORITY:
            raise ValueError(f"priority {priority}, must be 0 to {MAX_PRIORITY}")
        if key_level(&self.lists, <int32_t> priority):
            raise MemoryError("no memory for another priority")
        for key in reversed(keys):
            number = self.numbers.get(key)
            if number is not None and self.lists.keys[<int32_t> number].priority != priority:
                n = number
                unlist_key(&self.lists, n)
                self.lists.keys[n].priority = <unsigned char> priority
                list_key(&self.lists, n, False)

    @property
    def is_due(self):
        """Whether there is enough new to learn from."""
        return self.adaptive and self.lists.cells.inserted >= self.lists.cells.due_after

    def take_counts(self):
        """As of a store's group: hits, lost ghosts, a census, the rival's counts."""
        cdef Cells *c = self.lists.cells
        cdef int64_t[NUM_CELLS] census
        cdef int32_t n = 0, step = stride(<int32_t> self.room)
        if c == NULL:
            raise ValueError("this order learns nothing")
        memset(census, 0, sizeof(census))
        while n < self.room:
            if self.lists.order.slots[n].page >= 0:
                census[cell(c, n)] += step
            n += step
        count_ghosts(c, census)
        rival = np.array([c.rival.gained, c.rival.missed, c.rival.watched], np.int64)
        taken = cell_counts(c.hits), cell_counts(c.lost), cell_counts(census), rival
        memset(c.hits, 0, sizeof(census))
        memset(c.lost, 0, sizeof(census))
        c.inserted = c.rival.gained = c.rival.missed = 0
        return taken

    def set_rank(self, cells, recency):
        """Evict in this order of cells from now on; all are named."""
        cdef int32_t[NUM_CELLS] rank
        names = np.ascontiguousarray(cells, np.int32)
        if not self.adaptive or not np.array_equal(np.sort(names, axis=None), np.arange(NUM_CELLS)):
            raise ValueError(f"an order names each of {NUM_CELLS} cells once, if it is adaptive")
        memcpy(rank, memory_of(names), sizeof(rank))
        key_rank(&self.lists, rank, bool(recency))
