"""Which blocks, bytes and ranks of two workers meet. Arithmetic alone: no peers, no pages, no bytes moved."""
