"""How many workers, how much memory: fleets behind a router, and the cheapest of them that is quick enough."""
