"""Deadlines of an engine's requests: what stands before each, which hits are held for it, what became of its bound."""
