"""Memory and helpers outside the engine: connectors, a disk, a shared store."""
