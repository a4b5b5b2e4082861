"""What a server tells Prometheus: what each request saw, what cache and engine count. Nothing of prompts."""
