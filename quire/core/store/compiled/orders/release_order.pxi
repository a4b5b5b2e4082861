# Owns: the order "release_order": as "lru", but empty slots queue with pages of the default priority, and nothing is
# passed.
# Does not know: why.


cdef inline int32_t class_of_empty(int32_t order) noexcept nogil:
    """Where empty slots wait."""
    return class_at(DEFAULT_PRIORITY, False) if order == IN_RELEASE_ORDER else EMPTY
