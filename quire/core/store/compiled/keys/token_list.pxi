# Owns: token ids out of a Python list into int32 memory.
# Does not know: chains, keys.

cdef extern from *:
    """
    /* Asking Python for an item and then for its value takes 7 ns or more. From 3.11 on a list has a pointer to its
       items behind its length, and an int its lowest digit there, of 30 bits; before that stands a word that says how
       many digits, 1 or 8 for a positive one (PyVarObject has that word in either case). No version promises it: it is
       looked at when the module is imported, and where it is otherwise, Python is asked. */
    static Py_ssize_t quire_one_digit = 0;    /* that word; 0: ask Python */

    #define QUIRE_WORD(object) (((PyVarObject *) (object))->ob_size)
    #define QUIRE_BEHIND(object) ((void *) ((PyVarObject *) (object) + 1))

    /* Up to the first item that is no int of 32 bits; where that is. */
    static Py_ssize_t quire_plain_tokens(PyObject *list, Py_ssize_t i, Py_ssize_t last, int32_t *to) {
        const Py_ssize_t one = quire_one_digit;
        PyTypeObject *const whole = &PyLong_Type;
        PyObject **items = one ? *(PyObject ***) QUIRE_BEHIND(list) : NULL;
        for (; one && i + 4 <= last; i += 4, to += 4) {    /* four at a time: nothing waits for one of them */
            PyObject *a = items[i], *b = items[i + 1], *c = items[i + 2], *d = items[i + 3];
            if ((Py_TYPE(a) != whole) | (Py_TYPE(b) != whole) | (Py_TYPE(c) != whole) | (Py_TYPE(d) != whole)) break;
            if ((QUIRE_WORD(a) ^ one) | (QUIRE_WORD(b) ^ one) | (QUIRE_WORD(c) ^ one) | (QUIRE_WORD(d) ^ one)) break;
            to[0] = (int32_t) *(uint32_t *) QUIRE_BEHIND(a);
            to[1] = (int32_t) *(uint32_t *) QUIRE_BEHIND(b);
            to[2] = (int32_t) *(uint32_t *) QUIRE_BEHIND(c);
            to[3] = (int32_t) *(uint32_t *) QUIRE_BEHIND(d);
        }
        for (; i < last; i++) {
            PyObject *item = one ? items[i] : PyList_GetItem(list, i);
            int over = 0;
            long long value;
            if (item == NULL || Py_TYPE(item) != &PyLong_Type) break;
            if (one && QUIRE_WORD(item) == one) value = *(uint32_t *) QUIRE_BEHIND(item);
            else value = PyLong_AsLongLongAndOverflow(item, &over);
            if (over || value != (int32_t) value) break;
            *to++ = (int32_t) value;
        }
        return i;
    }

    /* Whether both are as said above; nothing is followed that does not look like it. */
    static void quire_look_at_lists(PyObject *list, PyObject *wide) {
        Py_ssize_t i, n = PyList_Size(list), one;
        PyObject **items = *(PyObject ***) QUIRE_BEHIND(list);
        quire_one_digit = 0;
        if (n < 1 || QUIRE_WORD(list) != n || items == NULL || (size_t) items % sizeof(void *)) return;
        one = QUIRE_WORD(PyList_GetItem(list, 0));
        if (one != 1 && one != 8) return;
        for (i = 0; i < n; i++) {
            PyObject *item = PyList_GetItem(list, i);
            if (items[i] != item || QUIRE_WORD(item) != one) return;
            if (*(uint32_t *) QUIRE_BEHIND(item) != PyLong_AsUnsignedLong(item)) return;
        }
        for (i = 0; i < PyList_Size(wide); i++)
            if (QUIRE_WORD(PyList_GetItem(wide, i)) == one) return;
        quire_one_digit = one;
    }
    """
    Py_ssize_t plain_tokens "quire_plain_tokens"(list items, Py_ssize_t first, Py_ssize_t last, int32_t *to)
    void look_at_lists "quire_look_at_lists"(list narrow, list wide)


# of 1 to 30 bits, and a length that no other word of a list has; then what has no digit, several, or a sign
look_at_lists([(1 << nth % 30) + nth % 30 for nth in range(1, 1038)], [0, -1, -5, 1 << 30, 1 << 31, 1 << 60, -(1 << 40)])


cdef int32_t one_token(object item, Py_ssize_t nth) except? -1:
    """Of an item that is no plain int of 32 bits: whatever has an index is as good."""
    if not hasattr(item, "__index__"):
        raise TypeError(f"token {nth} is a {type(item).__name__}, must be an int")
    value = item.__index__()
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ValueError(f"token {nth} does not fit in 32 bits")
    return value


def read_tokens(list items not None, Py_ssize_t first, out):
    """Fill an int32 array with the items from number `first` on; if it raises, a part of it may be filled."""
    cdef Py_buffer view
    cdef Py_ssize_t n, i = first
    cdef int32_t *to
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)        # what cannot be written to raises here
    PyBuffer_Release(&view)
    n = borrow(&view, out, 4, b"il", "out")
    to = <int32_t *> view.buf
    try:
        while True:
            if first < 0 or first + n > len(items):       # again each time: an item may change the list
                raise ValueError(f"tokens [{first}, {first + n}) of {len(items)}")
            i = plain_tokens(items, i, first + n, to + i - first)
            if i == first + n:
                return
            to[i - first] = one_token(items[i], i)
            i += 1
    finally:
        PyBuffer_Release(&view)
