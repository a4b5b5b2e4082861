"""A workload on a virtual clock: arrivals, admission, decoding, and what is counted meanwhile."""
