"""Decisions: which pages are reused, taken, moved. No bytes, no I/O; one lock, at one door: Cache."""
