"""What runs beside the model, once per rank: it moves pages between vLLM's memory and ours, as ordered."""
