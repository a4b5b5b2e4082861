"""What Prometheus reads of a server: what each request saw, what cache and engine count. Nothing of prompts."""
