"""What the engine's tests share: one thread for torch, no gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    """Tiny models are fastest on one thread, and nothing here learns."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)
