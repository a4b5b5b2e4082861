"""Committed blocks, each under its parent."""
