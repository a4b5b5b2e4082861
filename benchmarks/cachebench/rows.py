"""The measured rows: each does the same work every time and puts the state back. One call, one sample in ns."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from cachebench import workload as load
from cachebench.workload import BATCH, BLOCK, HALF, HIT, PROMPT, Int32
from quire import Cache, Request, Sequence

DECODE = 1024


class Rows:
    """Samples over one warmed cache."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.seed = 900_000
        self.document = load.document()
        self.halves = [load.half(number) for number in range(BATCH)]

    def fresh(self, num_tokens: int) -> Int32:
        """Tokens never seen before."""
        self.seed += 1
        return load.text(self.seed, num_tokens)

    def _admit(self, tokens: Int32, start: int) -> tuple[int, Sequence]:
        cache = self.cache
        began = perf_counter_ns()
        batch = cache.add_sequence_batch([Request("r", tokens)])
        sequence = batch.sequences[0]
        cache.commit(sequence, PROMPT)
        took = perf_counter_ns() - began
        cache.finish(batch.plan)
        if sequence.start != start:
            raise RuntimeError(f"hit {sequence.start}, expected {start}")
        return took, sequence

    def cold_8k_us(self) -> int:
        """Key, match, allocate and commit a prompt that shares nothing."""
        tokens = self.fresh(PROMPT)
        took, sequence = self._admit(tokens, 0)
        self._forget(sequence, tokens, 0)
        return took

    def rich_cold_8k_us(self) -> int:
        """The cold row in a cache that records events; taking them is not in the time."""
        took = self.cold_8k_us()
        self.cache.take_events()
        return took

    def hit90_8k_us(self) -> int:
        """The same with nine tenths cached."""
        tokens = np.concatenate([self.document, self.fresh(PROMPT - HIT)])
        took, sequence = self._admit(tokens, HIT)
        self._forget(sequence, tokens, HIT)
        return took

    def _forget(self, sequence: Sequence, tokens: Int32, keep: int) -> None:
        self.cache.release(sequence)
        self.cache.truncate(Request("t", tokens), keep)

    def release_8k_us(self) -> int:
        """Give up 512 committed pages."""
        tokens = self.fresh(PROMPT)
        _, sequence = self._admit(tokens, 0)
        began = perf_counter_ns()
        self.cache.release(sequence)
        took = perf_counter_ns() - began
        self.cache.truncate(Request("t", tokens))
        return took

    def life_1k_us(self) -> int:
        """Claim, admit, commit and release a prompt of 1,024 tokens of which half is cached."""
        tokens, cache = np.concatenate([self.halves[0][:512], self.fresh(512)]), self.cache
        began = perf_counter_ns()
        with cache.claim([Request("r", tokens)]) as claims:
            batch = cache.admit(claims)
        sequence = batch.sequences[0]
        cache.commit(sequence)
        cache.release(sequence)
        took = perf_counter_ns() - began
        if sequence.start != 512:
            raise RuntimeError(f"hit {sequence.start}, expected 512")
        cache.finish(batch.plan)
        cache.truncate(Request("t", tokens), 512)
        return took

    def admit_64x8k_us(self) -> int:
        """Two phases and the commit for 64 requests whose first half is cached; run after `fill`: the rest evicts."""
        tokens = [np.concatenate([half, self.fresh(HALF)]) for half in self.halves]
        cache = self.cache
        for half, found in zip(self.halves, cache.probe([Request("p", part) for part in tokens]), strict=True):
            if found.start < HALF:
                load.run_through(cache, half)  # an order that learns has found better use for its room
        began = perf_counter_ns()
        requests = [Request(number, part) for number, part in enumerate(tokens)]
        with cache.claim(requests) as claims:
            batch = cache.admit(claims)
        cache.commit(batch.sequences, PROMPT)
        took = perf_counter_ns() - began
        if [sequence.start for sequence in batch.sequences] != [HALF] * BATCH:
            raise RuntimeError("not every request found its half")
        cache.finish(batch.plan)
        for sequence in batch.sequences:
            cache.release(sequence)
        return took

    def full_8k_us(self) -> int:
        """Cold, with every slot evicting another block; run after `fill`."""
        tokens = self.fresh(PROMPT)
        took, sequence = self._admit(tokens, 0)
        self.cache.release(sequence)
        return took

    def full_host_8k_us(self) -> int:
        """The same over a full host: every slot's page goes down, and one is dropped for it; run after `fill_host`."""
        before = self.cache.stats()
        took = self.full_8k_us()
        after = self.cache.stats()
        moved, dropped = after.offloaded - before.offloaded, after.dropped - before.dropped
        if moved != PROMPT // BLOCK or dropped != moved:
            raise RuntimeError(f"{moved} pages went down and {dropped} out, expected {PROMPT // BLOCK}")
        return took

    def claim_drop_8k_us(self) -> int:
        """Claim 7k cached tokens of an 8k prompt and give them back."""
        request = Request("r", self.document)
        began = perf_counter_ns()
        self.cache.claim([request]).drop()
        return perf_counter_ns() - began

    def find_8k_us(self) -> int:
        """Find the same and close."""
        request = Request("r", self.document)
        began = perf_counter_ns()
        self.cache.find(request).close()
        return perf_counter_ns() - began

    def probe_8k_us(self) -> int:
        """Probe for the same."""
        request = Request("r", self.document)
        began = perf_counter_ns()
        self.cache.probe([request])
        return perf_counter_ns() - began

    def fill(self) -> None:
        """Leave no slot empty."""
        while self.cache.usage().empty:
            load.run_through(self.cache, self.fresh(min(self.cache.usage().empty * BLOCK, PROMPT)))

    def fill_host(self) -> None:
        """And none in the host: what is put in goes down again."""
        for _ in range((load.DEVICE + load.HOST) * BLOCK // PROMPT + 2):
            load.run_through(self.cache, self.fresh(PROMPT))


class Decode:
    """1,024 running sequences at every place inside a block, one token each per step."""

    def __init__(self) -> None:
        self.cache = load.make_cache()
        requests = [Request(n, load.text(n, 160 + n % BLOCK)) for n in range(DECODE)]
        sequences = self.cache.add_sequence_batch(requests).sequences
        self.rows = np.array([sequence.row for sequence in sequences], np.int32)
        self.tokens = load.text(99, DECODE)
        self.cache.commit(self.rows)
        self.cache.grow(self.rows, self.tokens)

    def decode_1024_us(self) -> int:
        """One token for every running sequence."""
        return advance(self.cache, self.rows, self.tokens)


def advance(cache: Cache, rows: Int32, tokens: Int32) -> int:
    """What was computed is committed, the next token appended, the table extended."""
    began = perf_counter_ns()
    cache.commit(rows)
    plan = cache.grow(rows, tokens)
    took = perf_counter_ns() - began
    if plan is None:
        raise RuntimeError("no room to decode")
    cache.finish(plan)
    return took
