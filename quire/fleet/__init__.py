"""Fleet: one server in front of many workers. Requests go where their prompt is cached; broken answers go on elsewhere.

    client ──HTTP──► FleetService ──FleetWork──► a worker's engine
                        │    ▲  ◄─pieces─'      │
                        │    └── WorkerBook ◄───┴ events: what each worker has cached
                        '─ an answer whose worker is gone goes on with another one

What runs the workers is a floor below (`on_ray/`, which needs the extra `ray`); the rest knows no Ray.
"""
