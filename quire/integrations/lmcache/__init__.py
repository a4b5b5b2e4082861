"""Quire below LMCache: its disk and shared stores as an L2 adapter."""
