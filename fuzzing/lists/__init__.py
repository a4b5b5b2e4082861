"""Lists of calls: recorded, played again, made as short as they go."""
