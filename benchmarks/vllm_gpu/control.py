"""CorruptConnector, the control: whatever is loaded from host memory is wrong, and nobody is told."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

from quire.integrations.vllm.common.worker_orders import Copy
from quire.integrations.vllm.connector import QuireConnector
from quire.integrations.vllm.worker.host_pages import Ended, HostPages
from quire.integrations.vllm.worker.worker_side import PageMover

WRONG = 63


class CorruptMover:
    """On a GPU the page's bytes in vLLM's host region are overwritten before each load; on the CPU the loaded block."""

    def __init__(self, pages: Any) -> None:
        self.pages = pages
        self.region: Any = None

    def load(self, copy: Copy) -> None:
        if isinstance(self.pages, HostPages):
            self.pages.load(copy)
            for part in copy.parts:
                for layer in self.pages._layers[part.group]:
                    layer[part.blocks] = WRONG
            return
        for part in copy.parts:
            self._region()[list(part.slots)] = WRONG
        self.pages.load(copy)

    def _region(self) -> Any:
        if self.region is None:
            shared = self.pages._worker._mmap_region
            mapped = mmap.mmap(shared.fd, shared.total_size_bytes)
            self.region = np.frombuffer(mapped, dtype=np.uint8).reshape(shared.num_chunks, -1)
        return self.region

    def store(self, copy: Copy) -> None:
        self.pages.store(copy)

    def flush(self, jobs: Iterable[int]) -> None:
        self.pages.flush(jobs)

    def take_ended(self) -> list[Ended]:
        ended: list[Ended] = self.pages.take_ended()
        return ended


class CorruptConnector(QuireConnector):
    """QuireConnector with a mover that spoils what it loads."""

    def open_mover(self, kv_caches: dict[str, Any]) -> PageMover:
        return CorruptMover(super().open_mover(kv_caches))
