"""Quire below SGLang's HiCache: its disk and shared stores as a storage backend."""
