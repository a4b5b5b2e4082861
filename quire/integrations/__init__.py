"""Quire inside other engines; each folder is one engine's. Nothing here is imported unless it is asked for."""
