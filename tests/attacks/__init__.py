"""Attacks on a server from outside, each a program: `python -m tests.attacks.NAME`. They go to this machine only.

Each starts `quire serve` as a process of its own with a tiny model, tries what its first lines say, for a bounded time
and with a bounded number of connections, prints what it tried and whether it held, and ends with 1 if it did not.
"""
