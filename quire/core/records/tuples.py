"""Lists that callers pass to frozen records, kept as tuples: nobody can change them later. Checks nothing else."""

from __future__ import annotations


def keep_tuples(record: object, *names: str) -> None:
    """Turn these fields of a frozen dataclass into tuples where they are lists; what is neither is left for checks."""
    for name in names:
        value = getattr(record, name)
        if isinstance(value, list):
            object.__setattr__(record, name, tuple(value))
