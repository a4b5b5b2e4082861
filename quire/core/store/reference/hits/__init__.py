"""What is cached of a chain, and claims on it."""
