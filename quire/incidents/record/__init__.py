"""Calls of a cache, noted and packed."""
