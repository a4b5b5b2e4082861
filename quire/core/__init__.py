"""Decisions: which pages are reused, taken, moved. No bytes, no I/O. `Cache` is the way in and has the lock."""
