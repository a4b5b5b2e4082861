"""Calls in files: named, written, read."""
