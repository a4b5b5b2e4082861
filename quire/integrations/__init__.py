"""Quire inside other engines; each folder is one engine's. Nothing here is imported unless somebody asks for it."""
