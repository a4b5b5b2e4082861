# Owns: growing a C block, borrowing a caller's buffer, handing out a copy as a NumPy array.
# Does not know: what the bytes mean.

cdef extern from *:
    """
    /* What is read here and there all over a large block is found sooner if the system gives it large pages. It may
       decline; nothing is lost then. */
    #if defined(__linux__)
    #include <sys/mman.h>
    #endif
    #if defined(MADV_HUGEPAGE)
    static inline void quire_scattered(void *block, size_t bytes) {
        const size_t large = (size_t) 2 << 20;
        size_t from = ((size_t) block + large - 1) & ~(large - 1), to = ((size_t) block + bytes) & ~(large - 1);
        if (block && from < to) (void) madvise((void *) from, to - from, MADV_HUGEPAGE);
    }
    static inline void *quire_table(size_t bytes) {
        const size_t large = (size_t) 2 << 20;
        void *block = NULL;
        if (bytes < large) return calloc(bytes, 1);
        bytes = (bytes + large - 1) & ~(large - 1);
        if (posix_memalign(&block, large, bytes)) return NULL;
        quire_scattered(block, bytes);
        return memset(block, 0, bytes);
    }
    #else
    static inline void quire_scattered(void *block, size_t bytes) { (void) block; (void) bytes; }
    static inline void *quire_table(size_t bytes) { return calloc(bytes, 1); }
    #endif

    /* New memory is had from the system page by page, when it is first written to, which takes longer than most of
       what is done here: that is now, and not in somebody's admission. Volatile: after calloc it would be left out. */
    static inline void quire_write_to(void *block, size_t bytes) {
        for (size_t at = 0; block && at < bytes; at += 4096) ((volatile char *) block)[at] = 0;
    }

    /* Zeros of which the system gives only what is written to, page by page. What malloc has may have been in use, and
       would have to be erased first: these are had from the system, unless they are few. */
    #if defined(MADV_HUGEPAGE)
    static inline size_t quire_lazy_size(size_t bytes) {
        const size_t large = (size_t) 2 << 20;
        return bytes < large ? bytes : (bytes + large - 1) & ~(large - 1);
    }
    static inline int quire_is_little(size_t bytes) { return bytes < (size_t) 1 << 17; }
    static inline void *quire_lazy(size_t bytes) {
        const size_t large = (size_t) 2 << 20, spare = bytes < large ? 0 : large, size = quire_lazy_size(bytes);
        size_t before;
        char *block;
        if (quire_is_little(bytes)) return calloc(bytes, 1);
        block = (char *) mmap(NULL, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == (char *) MAP_FAILED) return NULL;
        if (!spare) return block;
        before = -(size_t) block & (large - 1);       /* it begins on a large page, and what is over goes back */
        if (before) (void) munmap(block, before);
        (void) munmap(block + before + size, spare - before);
        quire_scattered(block + before, size);
        return block + before;
    }
    static inline void quire_lazy_free(void *block, size_t bytes) {
        if (quire_is_little(bytes)) free(block);
        else if (block) (void) munmap(block, quire_lazy_size(bytes));
    }
    #else
    static inline void *quire_lazy(size_t bytes) { return calloc(bytes, 1); }
    static inline void quire_lazy_free(void *block, size_t bytes) { (void) bytes; free(block); }
    #endif
    """
    void scattered "quire_scattered"(void *block, size_t bytes) noexcept nogil
    void *table_alloc "quire_table"(size_t bytes) noexcept nogil      # of zeros; read all over the place
    void write_to "quire_write_to"(void *block, size_t bytes) noexcept nogil
    void *lazy_alloc "quire_lazy"(size_t bytes) noexcept nogil        # of zeros that take nothing until written to
    void lazy_free "quire_lazy_free"(void *block, size_t bytes) noexcept nogil        # as many as it was made of

cdef enum:
    LINE = 64                 # bytes that come from memory together


cdef inline char *on_line(void *memory) noexcept nogil:
    """Where the first line begins; the memory has one more than is needed."""
    return <char *> ((<size_t> memory + LINE - 1) & ~<size_t> (LINE - 1))


cdef int reserve(void **block, Py_ssize_t *room, Py_ssize_t wanted, Py_ssize_t item) noexcept nogil:
    """Make room for `wanted` items; -1 without memory, and then nothing has changed."""
    cdef Py_ssize_t size = wanted + (wanted >> 3) + 64
    cdef void *moved
    if wanted <= room[0]:
        return 0
    moved = realloc(block[0], size * item)
    if moved == NULL:
        return -1
    block[0], room[0] = moved, size
    return 0


cdef Py_ssize_t borrow(Py_buffer *view, object source, Py_ssize_t width, const char *kinds, str name) except -1:
    """Number of items of a C-contiguous array of items of that width and kind; the view is to be released."""
    cdef const char *form
    cdef const char *kind = kinds
    PyObject_GetBuffer(source, view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    form = view.format
    if form != NULL and (form[0] == c"@" or form[0] == c"=" or form[0] == c"<"):
        form += 1
    while view.itemsize == width and form != NULL and kind[0]:
        if form[0] == kind[0] and form[1] == 0:
            return view.len // width
        kind += 1
    PyBuffer_Release(view)
    raise TypeError(f"{name} must be a C-contiguous array of {8 * width}-bit items, format one of {<bytes> kinds!r}")


cdef object as_array(const void *data, Py_ssize_t items, Py_ssize_t width, object dtype):
    """A NumPy copy of `items` items."""
    cdef Py_buffer view
    array = np.empty(items, dtype)
    if items:
        PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
        memcpy(view.buf, data, items * width)
        PyBuffer_Release(&view)
    return array


cdef void *memory_of(object array) except NULL:
    """Where a NumPy array's items are; the array is kept by the store."""
    cdef Py_buffer view
    cdef void *memory
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    memory = view.buf
    PyBuffer_Release(&view)
    return memory
