"""What keeps a cache's slow tier on disk: a thread, what it does in which order, and what it has done."""
