"""What the cache costs, row by row: `bench.py` prints them all, `ab.py` compares two trees. Uses public names only."""
