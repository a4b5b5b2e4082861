"""What an operator of vLLM with the connector meets: options, sizes, metrics, versions, sleep, the kit for GPUs."""
