"""What layer groups cost: the same work with one full group and with three kinds. One call, one sample in ns."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from cachebench import workload as load
from cachebench.rows import DECODE, advance
from cachebench.workload import BLOCK, PROMPT, SLOTS
from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig

CHUNK = 2048
ONE = (LayerGroup("full"),)
THREE = (LayerGroup("full"), LayerGroup("local", window=1024), LayerGroup("state", snapshot_every=CHUNK))


class Mix:
    """One cache with a few cached documents: a long prompt in chunks, and 1,024 sequences that decode."""

    def __init__(self, groups: tuple[LayerGroup, ...]) -> None:
        config = CacheConfig(
            (TierConfig("device", 4 * SLOTS),), BLOCK, groups, max_sequences=1100, max_length=16384, max_chunk=CHUNK,
            **load.chosen(),
        )  # fmt: skip
        self.cache = Cache(config)
        self.seed = 700_000
        self.document = load.text(777, PROMPT)
        self._prompt(self.document)
        requests = [Request(n, load.text(n, 1200 + n % BLOCK)) for n in range(DECODE)]
        batch = self.cache.add_sequence_batch(requests)
        self.cache.finish(batch.plan)
        self.cache.commit(batch.sequences)
        while waiting := [one for one in batch.sequences if one.computed < one.length]:
            self.cache.finish(self.cache.admit(self.cache.claim([]), continuing=waiting).plan)
            self.cache.commit(waiting)
        self.rows = np.array([sequence.row for sequence in batch.sequences], np.int32)
        self.tokens = load.text(99, DECODE)
        self.cache.grow(self.rows, self.tokens)

    def _prompt(self, tokens: load.Int32) -> int:
        """Admit, hand out chunk by chunk, finish its plan and commit each; then release."""
        cache = self.cache
        began = perf_counter_ns()
        batch = cache.add_sequence_batch([Request("r", tokens)])
        (sequence,) = batch.sequences
        cache.finish(batch.plan)
        cache.commit(sequence)
        while sequence.computed < PROMPT:
            cache.finish(cache.admit(cache.claim([]), continuing=[sequence]).plan)
            cache.commit(sequence)
        took = perf_counter_ns() - began
        cache.release(sequence)
        return took

    def cold_8k_us(self) -> int:
        """Nothing cached."""
        self.seed += 1
        tokens = load.text(self.seed, PROMPT)
        took = self._prompt(tokens)
        self.cache.truncate(Request("t", tokens))
        return took

    def hit75_8k_us(self) -> int:
        """Three quarters cached, up to a snapshot."""
        self.seed += 1
        tokens = np.concatenate([self.document[: 3 * CHUNK], load.text(self.seed, PROMPT - 3 * CHUNK)])
        took = self._prompt(tokens)
        self.cache.truncate(Request("t", tokens), 3 * CHUNK)
        return took

    def decode_1024_us(self) -> int:
        """One token for every running sequence."""
        return advance(self.cache, self.rows, self.tokens)
