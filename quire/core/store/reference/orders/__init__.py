"""Orders of eviction, one file each: which idle page goes next (docs/reference/order.md)."""
