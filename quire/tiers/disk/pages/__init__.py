"""Slots in files: how pages are laid out, read, written and checked, and the tier of them. Knows no manifest."""
