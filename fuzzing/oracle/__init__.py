"""The oracle: a small cache that answers by definition, slow and plain. Shares no code with quire.core."""

from fuzzing.oracle.oracle import Oracle

__all__ = ["Oracle"]
