"""Numbers on their way to a model's device. Owns one rule: the host does not wait for what the device computes.

A plain copy from pageable memory ends when the device has done all that was launched before, and nothing could be
prepared meanwhile. A copy from pinned memory is queued behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def on_device(
    numbers: NDArray[Any] | Sequence[float], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A tensor of them there; on a CPU an array's own memory."""
    as_it_is = dtype is None and isinstance(numbers, np.ndarray)
    tensor = torch.from_numpy(numbers) if as_it_is else torch.as_tensor(numbers, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
