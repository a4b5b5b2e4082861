"""The worker's side: a cache's events, numbered, sent and answered for."""
