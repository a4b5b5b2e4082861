# Owns: the tokens of one growing sequence, their extras, their chain keys (made when asked for, then kept).
# Does not know: scopes, the tree, rows.

cdef struct Text:             # what an append touches comes first
    Py_ssize_t length
    Py_ssize_t token_room
    int32_t *tokens
    uint64_t *extras          # three words a token; NULL: all plain
    Py_ssize_t block_size
    Py_ssize_t num_keys
    uint64_t *keys
    Py_ssize_t key_room
    Py_ssize_t extra_room     # in tokens
    int32_t tip               # the node of the last block that a writer of this text has met, if it is that still
    int32_t tip_blocks        # up to and with it; 0: none


cdef inline const uint64_t *extras_of(Text *text, Py_ssize_t block) noexcept nogil:
    """The extras of a block; NULL: all plain."""
    return NULL if text.extras == NULL else text.extras + 3 * block * text.block_size


cdef int text_room(Text *text, Py_ssize_t length) noexcept nogil:
    """Room for `length` tokens (and no less for their extras); -1 without memory."""
    if length <= text.token_room:
        return 0
    if text.extras != NULL and reserve(<void **> &text.extras, &text.extra_room, length + (length >> 3) + 64, 24):
        return -1
    return reserve(<void **> &text.tokens, &text.token_room, length, 4)


cdef int text_append(Text *text, const int32_t *tokens, Py_ssize_t n) noexcept nogil:
    """Append plain tokens; -1 without memory."""
    if text.length + n > text.token_room and text_room(text, text.length + n):
        return -1
    if n == 0:
        return 0
    memcpy(text.tokens + text.length, tokens, 4 * n)
    if text.extras != NULL:
        memset(text.extras + 3 * text.length, 0, 24 * n)
    text.length += n
    return 0


cdef void text_truncate(Text *text, Py_ssize_t length) noexcept nogil:
    text.length = length
    text.num_keys = min(text.num_keys, length // text.block_size)


cdef inline int key_room(Text *text, Py_ssize_t blocks) noexcept nogil:
    """Room for the keys of that many blocks (and at once of all there are); -1 without memory."""
    if blocks <= text.key_room:
        return 0
    return reserve(<void **> &text.keys, &text.key_room, text.length // text.block_size, 8)


cdef int text_keys(Text *text, Py_ssize_t blocks) noexcept nogil:
    """Make the keys of the first `blocks` blocks, all of them full; -1 without memory."""
    cdef Py_ssize_t i, size = text.block_size
    cdef uint64_t key
    if blocks <= text.num_keys:
        return 0
    if key_room(text, blocks):
        return -1
    if text.extras == NULL:
        keys_of(SECRET, text.keys, text.num_keys, blocks, text.tokens, size)
    else:
        key = text.keys[text.num_keys - 1] if text.num_keys else 0
        for i in range(text.num_keys, blocks):
            key = key_of(SECRET, key, text.tokens + i * size, size)
            key = extras_key(key, text.extras + 3 * i * size, size)
            text.keys[i] = key
    text.num_keys = blocks
    return 0


@cython.final
cdef class Chain:
    """A growing token sequence with lazily made private chain keys."""

    cdef Text text

    def __cinit__(self):
        self.text.block_size = 1

    def __init__(self, int block_size, tokens, extras=None):
        cdef Py_buffer view
        cdef Py_ssize_t n
        if not 1 <= block_size <= 65535:
            raise ValueError(f"block_size {block_size} is not in 1..65535")
        if self.text.tokens != NULL:
            raise ValueError("a Chain is made once")
        n = borrow(&view, tokens, 4, b"il", "tokens")
        try:
            if n > 0x7FFFFFFF - 65536:
                raise ValueError(f"{n} tokens are too many")
            self.text.block_size = block_size
            self.fill(<const int32_t *> view.buf, n)
        finally:
            PyBuffer_Release(&view)
        if extras is not None:
            self.fill_extras(extras)

    cdef int fill(self, const int32_t *tokens, Py_ssize_t n) except -1:
        if text_room(&self.text, max(1, n)):
            raise MemoryError(f"no memory for {n} tokens")
        if n >= 65536:
            with nogil:
                memcpy(self.text.tokens, tokens, 4 * n)
        elif n:
            memcpy(self.text.tokens, tokens, 4 * n)
        self.text.length = n
        return 0

    cdef int fill_extras(self, object extras) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t n = borrow(&view, extras, 8, b"LQ", "extras"), length = self.text.length
        try:
            if n != 3 * length:
                raise ValueError(f"extras have {n} words, {length} tokens need {3 * length}")
            if all_plain(<const uint64_t *> view.buf, length):
                return 0
            if reserve(<void **> &self.text.extras, &self.text.extra_room, self.text.token_room, 24):
                raise MemoryError(f"no memory for {length} extras")
            memcpy(self.text.extras, view.buf, 24 * length)
        finally:
            PyBuffer_Release(&view)
        return 0

    def __dealloc__(self):
        free(self.text.tokens)
        free(self.text.extras)
        free(self.text.keys)

    def __len__(self):
        return self.text.length

    def tokens(self):
        """A copy of the tokens, int32."""
        return as_array(self.text.tokens, self.text.length, 4, np.int32)

    def extras(self):
        """A copy of the extras, uint64 [len, 3]; None when all tokens are plain."""
        if all_plain(self.text.extras, self.text.length):
            return None
        return as_array(self.text.extras, 3 * self.text.length, 8, np.uint64).reshape(-1, 3)

    def extend_keys(self, Py_ssize_t num_blocks=-1):
        """Make the keys of the first `num_blocks` full blocks (-1: all) without the GIL; how many keys there are."""
        cdef Py_ssize_t full = self.text.length // self.text.block_size
        cdef int failed
        if num_blocks < 0 or num_blocks > full:
            num_blocks = full
        with nogil:
            failed = text_keys(&self.text, num_blocks)
        if failed:
            raise MemoryError(f"no memory for {num_blocks} keys")
        return self.text.num_keys

    def key(self, Py_ssize_t block):
        """The private key of the chain up to and including full block `block`; only good for a test of equality."""
        if block < 0 or (block + 1) * self.text.block_size > self.text.length:
            raise IndexError(f"block {block} is not a full block of {self.text.length} tokens")
        if text_keys(&self.text, block + 1):
            raise MemoryError(f"no memory for {block + 1} keys")
        return self.text.keys[block]

    def event_hashes(self, uint64_t root, seed=bytes(16)):
        """The event hashes of all full blocks under a root's, uint64."""
        cdef Py_ssize_t i, size = self.text.block_size, full = self.text.length // size
        cdef uint64_t hash = root
        cdef uint64_t[2] keys
        cdef Py_buffer view
        read_seed(keys, seed)
        hashes = np.empty(full, np.uint64)
        if full:
            PyObject_GetBuffer(hashes, &view, PyBUF_WRITABLE)
            for i in range(full):
                hash = event_hash(keys, hash, self.text.tokens + i * size, extras_of(&self.text, i), size)
                (<uint64_t *> view.buf)[i] = hash
            PyBuffer_Release(&view)
        return hashes

    def add_tokens(self, tokens):
        """Add plain tokens."""
        cdef Py_buffer view
        cdef Py_ssize_t n = borrow(&view, tokens, 4, b"il", "tokens")
        cdef int failed = text_append(&self.text, <const int32_t *> view.buf, n)
        PyBuffer_Release(&view)
        if failed:
            raise MemoryError(f"no memory for {n} tokens more")

    def cut_tokens(self, Py_ssize_t length):
        """Keep the first `length` tokens."""
        if not 0 <= length <= self.text.length:
            raise ValueError(f"{length} of {self.text.length} tokens")
        text_truncate(&self.text, length)

    def clone(self):
        """A chain of its own with the same tokens, extras and keys."""
        cdef Chain other = Chain.__new__(Chain)
        other.text.block_size = self.text.block_size
        other.fill(self.text.tokens, self.text.length)
        if self.text.extras != NULL:
            if reserve(<void **> &other.text.extras, &other.text.extra_room, other.text.token_room, 24):
                raise MemoryError(f"no memory for {self.text.length} extras")
            memcpy(other.text.extras, self.text.extras, 24 * self.text.length)
        if self.text.num_keys:
            if reserve(<void **> &other.text.keys, &other.text.key_room, self.text.num_keys, 8):
                raise MemoryError(f"no memory for {self.text.num_keys} keys")
            memcpy(other.text.keys, self.text.keys, 8 * self.text.num_keys)
            other.text.num_keys = self.text.num_keys
        return other
