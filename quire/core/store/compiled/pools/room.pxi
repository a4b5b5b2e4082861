# Owns: what is counted of a pool as a whole, whichever groups share it.
# Does not know: pages, slots, groups.

cdef struct Room:             # what is counted of a pool as a whole; groups may share it
    int32_t free              # top of the free pages, or -1
    int32_t available         # slots of tier 0 that are empty or hold an idle page nobody claims, less `reserved`
    int32_t reserved          # slots for rows alone
    int64_t owed              # scratch: slots that the present call still takes, beyond what is reserved for the asker
    int64_t net               # scratch: those it asks for, less what is reserved for it
    Expiries times
