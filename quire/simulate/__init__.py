"""Workloads through the cache on a virtual clock: one worker, or several behind a router.

Each imports those before it: setup (what a replay is run with), optimum (the best that any policy could do), play (the
replay itself, and many of them), show (words, tables, pages), capacity (several workers, and the cheapest that do).
"""
