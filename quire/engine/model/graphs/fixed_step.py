"""FixedStep: one decoding step of at most `size` rows, in memory that stays where it is: so it can be captured.

    numbers   ids | starts | rows | changed cells of each table        one buffer, filled by one copy
              └─► tables brought up to date ─► the step's rows of them ─► the model ─► logits

No shape depends on what the numbers are. Rows to spare compute a token that is not read, on the spare page.
Knows no graph and no scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from quire.core.records.request import Int32
from quire.engine.model.graphs.device_tables import DeviceTables
from quire.engine.model.kernels.choice import Kernels, kernels_for
from quire.engine.model.kernels.rules import Rule
from quire.engine.model.kernels.steps import DecodeLane, DecodeStep
from quire.engine.model.layers import KvShape, Model, Shape
from quire.engine.model.pages import Pages

CELLS = 2  # changed cells per row and group that travel with a step: a row changes one at a block edge, two at a window


@dataclass(frozen=True, slots=True, eq=False)
class FixedTokens:
    """What a model reads of a step: `Packed` of single tokens, whose logits are all wanted."""

    ids: torch.Tensor
    positions: torch.Tensor
    wanted: slice


class FixedStep:
    """Static buffers of one batch size, and the computation over them. `logits` are its result."""

    def __init__(self, model: Model, pages: Pages, tables: DeviceTables, size: int) -> None:
        self.size, self.room = size, CELLS * size
        self._model, self._pages, self._tables = model, pages, tables
        device, groups = model.device, len(tables.by_group)
        self.numbers = torch.zeros(3 * size + groups * 3 * self.room, dtype=torch.int32, device=device)
        head = self.numbers[: 3 * size].view(3, size)
        self.ids, self.starts, self.rows = head[0], head[1], head[2]
        self._cells = self.numbers[3 * size :].view(groups, 3, self.room)
        self._padding = self._padded()
        self.numbers.copy_(torch.from_numpy(self._padding))
        self.packed = FixedTokens(self.ids, self.starts, slice(None))
        self._windows = {group: _window(model.shapes[group]) for group in tables.by_group}
        self._lanes: dict[int, DecodeLane] = {}
        self.logits = torch.empty(0, device=device)  # [size, vocabulary]

    def _padded(self) -> Int32:
        """The numbers of a step without any row."""
        numbers = np.zeros(len(self.numbers), np.int32)
        spare = self._tables.spare_row
        numbers[2 * self.size : 3 * self.size] = spare
        cells = numbers[3 * self.size :].reshape(-1, 3, self.room)
        cells[:, 0] = spare
        cells[:, 2] = np.array(list(self._tables.spare_slots.values()), np.int32)[:, None]
        return numbers

    def numbers_of(self, ids: Int32, starts: Int32, rows: Int32, changes: Mapping[int, Int32]) -> Int32:
        """The numbers of a step: of each row its token, where that stands and which row of the tables is its own."""
        numbers, count = self._padding.copy(), len(ids)
        head = numbers[: 3 * self.size].reshape(3, self.size)
        head[0, :count], head[1, :count], head[2, :count] = ids, starts, rows
        cells = numbers[3 * self.size :].reshape(-1, 3, self.room)
        for nth, changed in enumerate(changes.values()):
            cells[nth, :, : changed.shape[1]] = changed
        return numbers

    def compute(self) -> None:
        """From the numbers to `logits`. Waits for nothing and asks for no number."""
        for nth, (group, table) in enumerate(self._tables.by_group.items()):
            self._tables.write(group, self._cells[nth])
            self._lanes[group] = DecodeLane(self._windows[group], table.index_select(0, self.rows), self.starts)
        self.logits = self._model.forward(self)

    def fused(self, kernels: Kernels) -> DecodeStep:
        """The same for the fused decoder."""
        return DecodeStep(self._lanes, self._pages.kv, self._model.places, kernels)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float,
        softcap: float = 0.0,
    ) -> torch.Tensor:  # fmt: skip
        """One layer, as `AttentionStep.attend`: [tokens, heads, dim] in and out."""
        group, place = self._model.places[layer]
        lane, kv = self._lanes[group], self._pages.kv[group]
        keys, values = kv[:, place, 0], kv[:, place, 1]
        column = torch.div(self.starts, keys.shape[1], rounding_mode="floor")
        slot = lane.table.gather(1, column.long()[:, None])[:, 0].long()
        inside = (self.starts - column * keys.shape[1]).long()
        keys[slot, inside] = key
        values[slot, inside] = value
        rule = Rule(scale, lane.window, softcap)
        return kernels_for(query.device).decode(query, keys, values, lane.table, lane.starts, rule=rule)


def _window(shape: Shape) -> int:
    """0: everything before."""
    return (shape.window or 0) if isinstance(shape, KvShape) else 0
