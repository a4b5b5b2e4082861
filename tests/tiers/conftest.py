"""Fixtures for tests of the mover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    built = Rig()
    yield built
    built.mover.close()
