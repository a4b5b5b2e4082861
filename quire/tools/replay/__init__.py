"""`quire replay` and `quire sweep`: recorded workloads through the cache on a virtual clock.

Each imports those before it: workload (a trace, its tokens), optimum (the best that any policy could do), setup (what a
replay is run with), play (the replay itself), show (words, tables, pages), and the two commands.
"""
