"""What the fleet's tests share: they need the server's packages and the events'; one thread for torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from ..patient_server import patient  # noqa: F401  # a fixture

NEEDS = ("torch", "transformers", "starlette", "uvicorn", "prometheus_client", "zmq", "msgspec")
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
