"""Soak: everything that is tried with random numbers, on all cores with fresh seeds, until it is stopped.

pieces (one short run of one kind) <-- worker (one process, piece after piece) <-- crew (counts, failures, the end)
"""
