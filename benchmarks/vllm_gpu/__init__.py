"""Real vLLM with the connector on a GPU machine without a network: a kit to build, carry and run. See README.md."""
