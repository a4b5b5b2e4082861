"""The router's side: streams of workers, what is missing of them, and the index made of them."""
