"""What the engine's tests share: one thread for torch, no gradients, a valve in front of a file's model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .valve import Valve

if TYPE_CHECKING:
    from quire.engine import Model


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


@pytest.fixture
def valve(model: Model) -> Iterator[Valve]:
    """In front of the model that the test's file has as a fixture; it is open when the test ends."""
    made = Valve(model.module)
    yield made
    made.open()
    made.hook.remove()
