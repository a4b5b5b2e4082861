"""quire tiers: what the kinds of memory on this machine can do."""
