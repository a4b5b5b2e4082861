"""Device tables: a copy of the cache's block tables on the model's device, kept by the cells that change.

    cache.take_table_changes() ─► [rows, columns, slots] ─► with the step's other numbers ─► scattered on the device

One row more than the cache has leads to the spare page, which the cache does not know: padding reads and writes there.
Knows no model and no step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quire.core.cache import Cache
from quire.core.records.request import Int32
from quire.engine.tensors.on_device import on_device


class DeviceTables:
    """Block tables by layer group, int32 [rows + 1, columns]; -1 where there is no page. `spare_slots` by group."""

    def __init__(self, cache: Cache, spare_slots: Mapping[int, int], device: torch.device) -> None:
        self._cache, self._device, self.spare_slots = cache, device, dict(spare_slots)
        self.spare_row = cache.config.max_sequences
        self.by_group: dict[int, torch.Tensor] = {}
        for group, spare in spare_slots.items():
            columns = cache.table(group).shape[1]
            table = torch.full((self.spare_row + 1, columns), -1, dtype=torch.int32, device=device)
            table[self.spare_row] = spare
            self.by_group[group] = table

    def changes(self, room: int) -> dict[int, Int32]:
        """By group the cells that have changed, [3, at most `room`]; where there are more they are all written here."""
        some: dict[int, Int32] = {}
        for group in self.by_group:
            cells = self._cache.take_table_changes(group)
            if cells.shape[1] > room:
                self.write(group, on_device(cells, self._device))
                cells = cells[:, :0]
            some[group] = cells
        return some

    def write(self, group: int, cells: torch.Tensor) -> None:
        """Cells on the device, [3, any]: rows, columns and slots."""
        rows, columns, slots = cells[0], cells[1], cells[2]
        self.by_group[group].index_put_((rows.long(), columns.long()), slots)
