"""Pinning: host memory made known to a GPU, on a thread of its own. Owns the thread and what is pinned.

Pinning gigabytes takes seconds. Meanwhile the memory is ordinary: copies work, at a fraction of the link's speed. Each
array is pinned as a whole, since the driver refuses a copy that begins in one pinned piece and ends in another.

Not part of `quire.tiers`, since it needs torch with CUDA.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Thread

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import MissingExtra, install_line, say

try:
    import torch
except ImportError as missing:
    raise MissingExtra(
        say("quire.tiers.gpu.pinning", f"it needs torch ({missing})", install_line("torch"))
    ) from missing

log = logging.getLogger(__name__)
Bytes = NDArray[np.uint8]
PORTABLE = 1  # cudaHostRegisterPortable: for every device of this process


class Pinning:
    """Pins these arrays one after the other; `close` unpins them and lets go of them."""

    def __init__(self, arrays: Sequence[Bytes], device: torch.device) -> None:
        self._arrays = [array for array in arrays if array.nbytes]
        self._device = device
        self._pinned: list[int] = []  # addresses
        self._stop, self._done = Event(), Event()
        self.failure: str | None = None  # why the rest stays ordinary memory
        self._thread = Thread(target=self._work, name="quire-pinning", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all is pinned, within so many seconds. Always False once `failure` is set."""
        return self._done.wait(timeout) and self.failure is None

    def close(self) -> None:
        """Stop, and unpin. Requires: no copy of this memory is under way."""
        self._stop.set()
        self._thread.join()
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned, self._arrays = [], []

    def _work(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            for array in self._arrays:
                if not self._stop.is_set():
                    self._pin(array.__array_interface__["data"][0], array.nbytes)
        except Exception as error:  # what could not be pinned stays slow, and is right all the same
            self.failure = str(error)
            log.warning("host memory stays unpinned, and copies slow: %s", error)
        self._done.set()

    def _pin(self, address: int, size: int) -> None:
        code = int(torch.cuda.cudart().cudaHostRegister(address, size, PORTABLE))
        if code:
            raise RuntimeError(f"pinning {size} bytes gave CUDA error {code}")
        self._pinned.append(address)
