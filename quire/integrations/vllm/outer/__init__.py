"""Pages below host memory: on disk, and in a store that machines share. Needs no vLLM."""
