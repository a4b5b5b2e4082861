"""What the server's tests share: one thread for torch, and a server per module."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ..patient_server import patient  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from .rig import Serving

NEEDS = ("torch", "transformers", "starlette", "uvicorn", "prometheus_client", "msgspec")
MISSING = [name for name in NEEDS if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    if MISSING:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A server without keys."""
    from .rig import serving

    with serving() as made:
        yield made
