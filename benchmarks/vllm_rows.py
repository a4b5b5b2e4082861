"""The rows of floor.c, measured on vLLM's own KVCacheManager: which see for what each row is.

vLLM needs an environment of its own, on the CPU and without a model (2.6 GB, some minutes):

    python3 -m venv vllm-env
    export VLLM_TARGET_DEVICE=cpu
    vllm-env/bin/pip install torch==2.13.0
    vllm-env/bin/pip install --no-deps -r benchmarks/vllm-requirements.txt
    vllm-env/bin/pip install --no-deps vllm==0.32.0
    vllm-env/bin/python benchmarks/vllm_rows.py

Nothing of vLLM is stood in for. It runs as its scheduler configures it by default: SHA-256 block hashes, no
events, no statistics; one full-attention group, blocks of 16 tokens, 100,000 usable blocks. A row that admits
prompts includes making the Request, which hashes the blocks; allocate_slots publishes them. The decode row is,
per sequence, append_output_token_ids, allocate_slots and, for a new block, the write in the worker's table;
the copy of that table to the device is left out. Prompts are lists of ints made before the clock starts.

`--rounds N` waits for a line on stdin before each of N rounds and answers it with one line of JSON, so that
rounds of several programs can be interleaved. Figures are minima over the repeats of a round, in microseconds.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
from collections.abc import Iterator
from time import perf_counter_ns

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.worker.block_table import MultiGroupBlockTable

BLOCK = 16
POOL = 100_000
PROMPT = 8192
DOCUMENT_BLOCKS = (57, 460, 7372)  # 90 % of 1,024, 8,192 and 131,072 tokens
NUM_REQUESTS = 64
NUM_SEQUENCES = 1024
REPEATS = 61
ADMIT_REPEATS = 4  # as many as evict conversations only
STEPS = 96

numbers = itertools.count()
hasher = get_request_block_hasher(BLOCK, sha256)
sampling = SamplingParams(max_tokens=256)


def text(seed: int, length: int) -> list[int]:
    """Text number `seed`: the same tokens each time."""
    tokens: list[int] = np.random.default_rng(seed).integers(10, 128_000, length).tolist()
    return tokens


def conversation(number: int) -> list[int]:
    """One of 2,000: a system prompt shared by 40 of them, then a part of its own."""
    return text(1000 + number // 40, 32 * BLOCK) + text(10_000 + number, 40 * BLOCK)


def new_request(tokens: list[int]) -> Request:
    return Request(str(next(numbers)), tokens, sampling, None, block_hasher=hasher)


class Pool:
    """A manager and what the rows do with it."""

    def __init__(self) -> None:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float16)
        config = KVCacheConfig(POOL + 1, [], [KVCacheGroupSpec(["layer"], spec)])  # one block is vLLM's null block
        self.manager = KVCacheManager(config, 1 << 18, BLOCK, BLOCK)
        self.blocks = self.manager.block_pool
        for number in range(2000):
            self.cache(conversation(number))
        for number, num_blocks in enumerate(DOCUMENT_BLOCKS):
            self.cache(text(777_000 + number, num_blocks * BLOCK))
        assert self.num_cached() == 89_489, self.num_cached()

    def num_cached(self) -> int:
        return len(self.blocks.cached_block_hash_to_block)

    def match(self, request: Request) -> tuple[KVCacheBlocks, int]:
        computed, num_computed, _ = self.manager.get_computed_blocks(request)
        return computed, num_computed

    def fill(self, request: Request, hit: tuple[KVCacheBlocks, int]) -> KVCacheBlocks:
        computed, num_computed = hit
        new = self.manager.allocate_slots(request, request.num_tokens - num_computed, num_computed, computed)
        assert new is not None
        return new

    def cache(self, tokens: list[int]) -> None:
        request = new_request(tokens)
        self.fill(request, self.match(request))
        self.manager.free(request)

    def take_back(self, new: KVCacheBlocks) -> None:
        """Makes the blocks a freed request allocated unused again, in the order they were taken."""
        queue = self.blocks.free_block_queue
        for block in new.blocks[0]:
            self.blocks._maybe_evict_cached_block(block)
            queue.remove(block)
        queue.prepend_n(new.blocks[0])

    def admit_one(self, tokens: list[int], hit_blocks: int) -> tuple[int, int, KVCacheBlocks]:
        """Nanoseconds to admit and to free one prompt, and the blocks it allocated."""
        started = perf_counter_ns()
        request = new_request(tokens)
        hit = self.match(request)
        new = self.fill(request, hit)
        admitted = perf_counter_ns()
        self.manager.free(request)
        released = perf_counter_ns()
        assert hit[1] == hit_blocks * BLOCK, hit[1]
        assert len(new.blocks[0]) == PROMPT // BLOCK - hit_blocks
        return admitted - started, released - admitted, new


def run_single() -> Iterator[tuple[str, int]]:
    pool = Pool()
    for repeat in range(REPEATS):
        admitted, released, new = pool.admit_one(text(900_000 + repeat, PROMPT), hit_blocks=0)
        yield "cold_8k", admitted
        yield "release_8k", released
        pool.take_back(new)
    known = DOCUMENT_BLOCKS[1]
    for repeat in range(REPEATS):
        tokens = text(777_001, known * BLOCK) + text(950_000 + repeat, PROMPT - known * BLOCK)
        admitted, _, new = pool.admit_one(tokens, hit_blocks=known)
        yield "hit90_8k", admitted
        pool.take_back(new)
    assert pool.num_cached() == 89_489


def run_full() -> Iterator[tuple[str, int]]:
    pool = Pool()
    for filler in itertools.count():
        if pool.blocks.free_block_queue.fake_free_list_head.next_free_block.block_hash is not None:
            break
        pool.cache(text(2_000_000 + filler, PROMPT // 2))
    assert pool.num_cached() == POOL
    for repeat in range(REPEATS):
        admitted, _, _ = pool.admit_one(text(3_000_000 + repeat, PROMPT), hit_blocks=0)
        yield "full_8k", admitted
    assert pool.num_cached() == POOL


def run_admit() -> Iterator[tuple[str, int]]:
    pool = Pool()
    halves = [text(4_000_000 + i, PROMPT // 2) for i in range(NUM_REQUESTS)]
    for half in halves:
        pool.cache(half)
    assert pool.num_cached() == POOL
    for repeat in range(ADMIT_REPEATS):
        first = 5_000_000 + repeat * NUM_REQUESTS
        prompts = [half + text(first + i, PROMPT // 2) for i, half in enumerate(halves)]
        started = perf_counter_ns()
        requests = [new_request(prompt) for prompt in prompts]
        hits = [pool.match(request) for request in requests]
        for request, hit in zip(requests, hits, strict=True):
            pool.fill(request, hit)
        yield "admit_64x8k", perf_counter_ns() - started
        assert all(hit[1] == PROMPT // 2 for hit in hits)
        for request in requests:
            pool.manager.free(request)
    assert pool.num_cached() == POOL


def run_decode() -> Iterator[tuple[str, int]]:
    pool = Pool()
    table = MultiGroupBlockTable(NUM_SEQUENCES, NUM_SEQUENCES, False, torch.device("cpu"), [BLOCK], [80])
    requests = []
    for number in range(NUM_SEQUENCES):
        request = new_request(conversation(number) + text(6_000_000 + number, 1 + number % BLOCK))
        hit = pool.match(request)
        assert hit[1] == 72 * BLOCK
        pool.fill(request, hit)
        request.num_computed_tokens = request.num_tokens
        table.add_row(pool.manager.get_block_ids(request.request_id), number)
        requests.append(request)
    for step in range(STEPS):
        sampled = text(7_000_000 + step, NUM_SEQUENCES)
        before = int(table[0].num_blocks_per_row.sum())
        started = perf_counter_ns()
        decode_step(pool.manager, table, requests, sampled)
        yield "decode_1024", perf_counter_ns() - started
        assert int(table[0].num_blocks_per_row.sum()) - before == NUM_SEQUENCES // BLOCK


def decode_step(
    manager: KVCacheManager, table: MultiGroupBlockTable, requests: list[Request], sampled: list[int]
) -> None:
    manager.new_step_starts()
    for row, (request, token) in enumerate(zip(requests, sampled, strict=True)):
        request.append_output_token_ids(token)
        new = manager.allocate_slots(request, 1)
        block_ids = new.get_block_ids(allow_none=True)
        if block_ids is not None:
            table.append_row(block_ids, row)
        request.num_computed_tokens += 1


def run_round() -> dict[str, float]:
    """The least of each row; garbage is collected between the parts, never inside."""
    least: dict[str, int] = {}
    for part in (run_single, run_full, run_admit, run_decode):
        gc.collect()
        gc.disable()
        for row, spent in part():
            least[row] = min(spent, least.get(row, spent))
        gc.enable()
    return {f"vllm_{row}_us": spent / 1000 for row, spent in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM's KV cache manager on the rows of floor.c")
    parser.add_argument("--rounds", type=int, help="wait for a line on stdin before each of so many rounds")
    asked = parser.parse_args().rounds
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    init_none_hash(sha256)
    for _ in range(1) if asked is None else itertools.islice(sys.stdin, asked):
        print(json.dumps(run_round()), file=answers, flush=True)


if __name__ == "__main__":
    main()
