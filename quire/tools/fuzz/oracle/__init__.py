"""The oracle: a small cache that answers by definition, slow and plain. Shares no code with quire.core."""

from quire.tools.fuzz.oracle.oracle import Oracle

__all__ = ["Oracle"]
