"""A full disk, for as long as a block of code: afterwards whoever runs the tests can write again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    resource = pytest.importorskip("resource")  # limits of a process; not on Windows
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
