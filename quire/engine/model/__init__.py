"""A transformers model over pages: what its layers need, how it is loaded, how it reads and writes them."""
