"""DecodeGraphs: decoding steps as CUDA graphs, one for each of some batch sizes. A step is one copy and one launch.

    rows of a step ─► the least size that holds them ─► its numbers, in one copy ─► replay ─► logits of the rows

All graphs share one pool of memory: only one runs at a time. On a CPU the same step is computed without a graph.
Knows no scheduler; which steps are made of single tokens is `takes`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from quire.core.cache import Cache
from quire.core.records.request import Int32
from quire.engine.model.attention import OwnForward
from quire.engine.model.folders import first_line
from quire.engine.model.graphs.device_tables import DeviceTables
from quire.engine.model.graphs.fixed_step import FixedStep
from quire.engine.model.layers import Model
from quire.engine.model.packing import Decodes, Int64, Segment, is_decode
from quire.engine.model.pages import Pages
from quire.engine.tensors.progress_bar import progress_bar

FIRST_SIZES = (1, 2, 4, 8, 16, 24, 32)
EVERY = 32  # beyond these
WARM_UPS = 2  # before a capture: kernels are compiled, libraries ready
_log = logging.getLogger("quire.engine")


def graphs_for(model: Model, cache: Cache, pages: Pages, mode: str) -> DecodeGraphs | None:
    """Of this model; None: its steps are packed anew each time, since it has states, runs code that is not ours, or
    `mode` says so: "auto" is for CUDA, "on" for a CPU too, "off" for none."""
    fits = isinstance(model.forward, OwnForward) and not model.recurrent
    wanted = mode == "on" or (mode == "auto" and model.device.type == "cuda")
    return DecodeGraphs(model, cache, pages) if fits and wanted else None


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """A decoding step, on its way to the device: one token of each row."""

    step: FixedStep
    rows: Int32  # of the block tables
    starts: Int64  # where each token stands

    @property
    def num_tokens(self) -> int:
        """Tokens it computes."""
        return len(self.rows)

    @property
    def ids(self) -> torch.Tensor:
        """Tokens, on the device; one that the host does not know yet is written there."""
        return self.step.ids[: len(self.rows)]

    @property
    def offsets(self) -> Int64:
        """Of each row's token among the ids."""
        return np.arange(len(self.rows) + 1)


class DecodeGraphs:
    """Decoding steps of one engine."""

    def __init__(self, model: Model, cache: Cache, pages: Pages) -> None:
        assert isinstance(model.forward, OwnForward)
        self._forward = model.forward
        self._tables = DeviceTables(cache, pages.spare_slots, model.device)
        most = cache.config.max_sequences
        self.sizes = sorted({*(size for size in FIRST_SIZES if size < most), *range(EVERY, most, EVERY), most})
        self._steps = {size: FixedStep(model, pages, self._tables, size) for size in self.sizes}
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        self._cuda = model.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._cuda else None
        self._last = torch.empty(0, device=model.device)
        self.num_replays = 0

    def takes(self, decodes: Decodes, segments: Sequence[Segment]) -> bool:
        """Each computes one token and wants its logits; and the model has no hooks: a graph would not call them."""
        few = len(decodes) + len(segments) <= self.sizes[-1]
        return few and all(map(is_decode, segments)) and not self._forward.has_hooks

    def pack(self, decodes: Decodes, segments: Sequence[Segment]) -> PackedRows:
        """Such decodes and segments; what has changed in the cache's tables goes along."""
        some = np.array([(one.tokens[0], one.start, one.row) for one in segments], np.int32).reshape(-1, 3).T
        both = np.concatenate([(decodes.tokens, decodes.starts, decodes.rows), some], axis=1)
        ids, starts, rows = np.ascontiguousarray(both)
        step = self._steps[next(size for size in self.sizes if size >= len(rows))]
        self._fill(step, step.numbers_of(ids, starts, rows, self._tables.changes(step.room)))
        return PackedRows(step, rows, starts.astype(np.int64))

    def _fill(self, step: FixedStep, numbers: Int32) -> None:
        """One copy, queued behind the step before; its pinned memory is not used again before it has run."""
        some = torch.from_numpy(numbers)
        step.numbers.copy_(some.pin_memory() if self._cuda else some, non_blocking=True)

    def run(self, packed: PackedRows) -> torch.Tensor:
        """Logits of its rows, [rows, vocabulary]; in memory that the next step uses again."""
        step = packed.step
        if self._cuda and step.size not in self._graphs:
            self._graphs[step.size] = self._captured(step)
        graph = self._graphs.get(step.size)
        if graph is None:
            self._last.fill_(torch.nan)  # as a graph writes there again
            step.compute()
            self._last = step.logits
        else:
            graph.replay()
        self.num_replays += 1
        return step.logits[: packed.num_tokens]

    def capture(self) -> None:
        """All sizes, the largest first, since smaller ones fit into its memory."""
        began = time.perf_counter()
        sizes = [size for size in reversed(self.sizes) if self._cuda and size not in self._graphs]
        with progress_bar("capturing decoding steps", len(sizes), "sizes") as done:
            for size in sizes:
                self._graphs[size] = self._captured(self._steps[size])
                done(1)
        _log.info("captured decoding steps of %s rows in %.1f s", self.sizes, time.perf_counter() - began)

    def _captured(self, step: FixedStep) -> torch.cuda.CUDAGraph | None:
        """None: it could not be captured, and is computed without. Its numbers may be those of a step: computing that
        more than once changes nothing."""
        with torch.inference_mode():
            for _ in range(WARM_UPS):
                step.compute()
            torch.cuda.synchronize(step.numbers.device)
            graph = torch.cuda.CUDAGraph()
            try:
                with _no_garbage(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                    step.compute()
            except RuntimeError as wrong:
                _log.warning("decoding steps of %d rows run without a CUDA graph: %s", step.size, first_line(wrong))
                self._pool = torch.cuda.graph_pool_handle()  # nothing can be captured into the other any more
                return None
        return graph


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Nothing is collected meanwhile: what another engine left behind would give memory back, which ends a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
