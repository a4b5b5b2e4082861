"""What the engine's tests share: one thread for torch, no gradients."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    """Tiny models are fastest on one thread, and nothing here learns. Without torch it does nothing."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)
