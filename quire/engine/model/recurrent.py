"""Recurrent layers over state slots: each segment goes on from its own state and leaves it where it was found.

Single tokens of many sequences run side by side; longer segments one after the other, since the layer has no notion
of several sequences in one row; and one whose state is to be written on the way, piece by piece: the layer tells its
state only at the end of what it is given. The layer's own code does the arithmetic. Knows no cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quire.engine.model.attention import AttentionStep
from quire.engine.model.layers import recurrent_modules
from quire.engine.model.pages import StateView
from quire.engine.tensors.on_device import on_device


def install(module: Any) -> None:
    """Make the recurrent layers of a transformers model read and write state slots."""
    for part in recurrent_modules(module).values():
        if not isinstance(part.forward, _Segments):
            part.forward = _Segments(part.layer_idx, part.forward)


class _Segments:
    """Stands for one layer's forward: runs it segment by segment."""

    def __init__(self, layer: int, forward: Any) -> None:
        self.layer, self.forward = layer, forward

    def __call__(
        self, hidden_states: torch.Tensor, quire_step: AttentionStep | None = None, **given: Any
    ) -> torch.Tensor:
        """[1, tokens, width] in and out."""
        if quire_step is None:
            return self.forward(hidden_states, **given)
        packed, view = quire_step.packed, quire_step.pages.states[self.layer]
        group = quire_step.places[self.layer].group
        slots, writes = packed.state_slots[group].astype(np.int64), packed.snapshots[group]
        out = torch.empty_like(hidden_states)
        single = (packed.counts == 1) & (packed.starts > 0)
        single[list(writes)] = False
        if single.any():
            tokens = on_device(packed.offsets[:-1][single], out.device)
            cells = _Cells(view, on_device(slots[single], out.device))
            near = self.forward(hidden_states[0, tokens, None], cache_params=cells)
            out[0, tokens] = near[:, 0]
            cells.put_back()
        for nth in np.flatnonzero(~single).tolist():
            first, last = int(packed.offsets[nth]), int(packed.offsets[nth + 1])
            fresh = packed.starts[nth] == 0
            cells = _Cells(view, on_device(slots[nth : nth + 1], out.device), fresh)
            for inside, slot in writes.get(nth, ()):
                piece = slice(first, int(packed.offsets[nth]) + inside)
                out[:, piece] = self.forward(hidden_states[:, piece], cache_params=cells)
                cells.put_into(slot)
                first = piece.stop
            if first < last:
                out[:, first:last] = self.forward(hidden_states[:, first:last], cache_params=cells)
            cells.put_back()
        return out


class _Cells:
    """States of some sequences, in the form the layer asks a cache for. A fresh one begins from nothing."""

    def __init__(self, view: StateView, slots: torch.Tensor, fresh: bool = False) -> None:
        self.view, self.slots = view, slots
        self.conv = None if fresh else view.conv[slots]
        self.matrix = None if fresh else view.matrix[slots]

    def put_into(self, slot: int) -> None:
        """A copy of the one state, as it is now."""
        assert self.conv is not None and self.matrix is not None
        self.view.conv[slot], self.view.matrix[slot] = self.conv[0], self.matrix[0]

    def put_back(self) -> None:
        """Into the slots they came from."""
        self.view.conv[self.slots] = self.conv
        self.view.matrix[self.slots] = self.matrix

    def get_conv_state(self, layer: int, state_idx: int = 0) -> torch.Tensor | None:
        """What the convolution remembers; the layer may change it in place."""
        return self.conv

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> torch.Tensor | None:
        """The matrix."""
        return self.matrix

    def is_recording_past(self, layer: int) -> bool:
        """Nothing is ever taken back."""
        return False

    def update_conv_state(self, inputs: torch.Tensor, layer: int, **_: Any) -> torch.Tensor:
        """Remember the last inputs; returns them with what was remembered before in front."""
        known = inputs if self.conv is None else torch.cat([self.conv, inputs], dim=-1)
        places = self.view.conv.shape[-1]
        if known.shape[-1] < places:
            known = torch.nn.functional.pad(known, (places - known.shape[-1], 0))
        self.conv = known[..., -places:]
        return known

    def update_recurrent_state(self, matrix: torch.Tensor, layer: int, **_: Any) -> torch.Tensor:
        """Remember the new matrix."""
        self.matrix = matrix
        return matrix
