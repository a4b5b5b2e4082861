"""Host memory beside a GPU is pinned while others go on, and stays usable where it cannot be."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quire.tiers.gpu.pinning import Pinning  # noqa: E402
from quire.tiers.torch_tier import TorchTier  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
PAGE = 1 << 20


@needs_cuda
def test_a_gpu_reaches_memory_once_it_is_pinned_and_until_it_is_closed() -> None:
    host, other = np.zeros((64, PAGE), np.uint8), np.ones((3, 5), np.uint8)
    tier = TorchTier("device", [torch.zeros(64, PAGE, dtype=torch.uint8, device="cuda")])
    assert not tier.reaches(0, host)
    pinning = Pinning([host, other, np.zeros(0, np.uint8)], torch.device("cuda:0"))
    assert pinning.wait(120) and pinning.failure is None
    assert tier.reaches(0, host) and torch.from_numpy(other).is_pinned()
    host[:] = np.arange(64, dtype=np.uint8)[:, None]
    tier.write_from(0, list(range(64)), host, list(reversed(range(64))), (1, PAGE))
    tier.write(0, [0, 1], [host[5].reshape(1, -1), host[6].reshape(1, -1)])  # neighbours: one copy
    tier.read_into(0, [0, 1, 2], host, [2, 1, 0], (1, PAGE))
    assert host[:4, -1].tolist() == [61, 6, 5, 3]
    pinning.close()
    assert not torch.from_numpy(host).is_pinned() and host[0, 0] == 61


@needs_cuda
def test_memory_that_cannot_be_pinned_is_said_and_stays() -> None:
    host = np.zeros((4, PAGE), np.uint8)
    first, second = Pinning([host], torch.device("cuda:0")), None
    assert first.wait(120)
    second = Pinning([host], torch.device("cuda:0"))
    assert not second.wait(120) and second.failure is not None and "CUDA error" in second.failure
    second.close()
    assert torch.from_numpy(host).is_pinned()
    first.close()


def test_without_a_gpu_it_says_so_and_ends() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    pinning = Pinning([np.zeros((2, 8), np.uint8)], torch.device("cuda:0"))
    assert not pinning.wait(120) and pinning.failure
    pinning.close()
