"""FaultyConnector: QuireConnector whose copies come late, fail or bring wrong bytes, as QUIRE_FAULT says.

late         loads are made, and end, one step later
fail_load    every second load raises
fail_store   every third store raises
flip         every fourth store leaves a page in host memory that is not what was stored
corrupt      every load brings wrong bytes, and says nothing: the control, which the comparison must see
die          the worker's process ends at its fifth load
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from quire.integrations.vllm.connector import QuireConnector
from quire.integrations.vllm.host_pages import Ended, HostPages
from quire.integrations.vllm.orders import Copy

FAULT = os.environ.get("QUIRE_FAULT", "")


class FaultyMover:
    """Real pages with one fault."""

    def __init__(self, pages: HostPages) -> None:
        self.pages = pages
        self.loads = self.stores = 0
        self.waiting: list[Copy] = []
        self.due: list[Copy] = []

    def load(self, copy: Copy) -> None:
        self.loads += 1
        if FAULT == "die" and self.loads == 5:
            os._exit(1)
        if FAULT == "fail_load" and self.loads % 2:
            raise OSError("this load was made to fail")
        if FAULT == "late":
            self.waiting.append(copy)
            return
        self.pages.load(copy)
        if FAULT == "corrupt":
            for part in copy.parts:
                for layer in self.pages._layers[part.group]:
                    layer[part.blocks] = 63

    def store(self, copy: Copy) -> None:
        self.stores += 1
        if FAULT == "fail_store" and self.stores % 3 == 0:
            raise OSError("this store was made to fail")
        self.pages.store(copy)
        if FAULT == "flip" and self.stores % 4 == 0:
            part = copy.parts[-1]
            self.pages.memory[part.group][part.slots[-1], 0] ^= 1

    def flush(self, jobs: Iterable[int]) -> None:
        self.pages.flush(jobs)

    def take_ended(self) -> list[Ended]:
        for copy in self.due:
            self.pages.load(copy)
        self.due, self.waiting = self.waiting, []
        return self.pages.take_ended()


class FaultyConnector(QuireConnector):
    """Named by the runners in place of QuireConnector."""

    def open_mover(self, kv_caches: dict[str, Any]) -> FaultyMover:
        pages = super().open_mover(kv_caches)
        assert isinstance(pages, HostPages)
        return FaultyMover(pages)
