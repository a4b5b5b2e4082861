"""Calls of the operating system that a disk may never answer: files, who waits for them, and how long."""
