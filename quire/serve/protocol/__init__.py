"""What clients may ask: the fields of each endpoint, their bounds, and what becomes of them. Knows no HTTP."""
