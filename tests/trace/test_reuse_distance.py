"""How much a cache must keep, as `quire trace stats` says it, beside an LRU cache that is played."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cli.main import main
from quire.trace.read.trace import read_trace
from quire.trace.stats import seen_blocks
from quire.trace.stats.seen_blocks import SeenBlocks
from quire.trace.stats.trace_stats import read_stats
from quire.trace.stats.use_stack import UseStack
from tests.effort import cases

from .logs import sample_stats, write_log

Prompt = tuple[list[int], list[int], int]  # ids, sizes, tokens of the answer

# A prompt is a way down a tree: a block is named by the way to it, and its size follows from its name, except that a
# last one may be cut, as those of a trace are.
STEPS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
PROMPTS = st.lists(st.tuples(STEPS, st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=25)


def made(steps: list[int], cut: int, output: int) -> Prompt:
    ids, name = [], 1
    for step in steps:
        name = 4 * name + step
        ids.append(name)
    sizes = [3 + name % 5 for name in ids]
    sizes[-1] -= min(cut, sizes[-1] - 1)
    return ids, sizes, output


class PlayedLru:
    """A cache of so many tokens that drops what was used longest ago; the end of a text before its beginning."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._pages = capacity, OrderedDict[int, int]()
        self._sizes: dict[int, int] = {}  # of a block that was cut, and is used again whole: the whole one
        self.reused = self._answers = 0

    def serve(self, ids: list[int], sizes: list[int], output: int) -> None:
        self.reused += sum(min(size, self._pages.get(name, 0)) for name, size in zip(ids, sizes, strict=True))
        self._answers -= 1
        self._touch(self._answers, output)
        for name, size in zip(reversed(ids), reversed(sizes), strict=True):
            self._sizes[name] = max(size, self._sizes.get(name, 0))
            self._touch(name, self._sizes[name])

    def _touch(self, name: int, size: int) -> None:
        self._pages.pop(name, None)
        self._pages[name] = size
        while sum(self._pages.values()) > self._capacity:
            self._pages.popitem(last=False)


@pytest.mark.parametrize("most_slots", [5, 1 << 21])
@given(PROMPTS, st.lists(st.integers(1, 250), min_size=1, max_size=6))
@pytest.mark.long
@settings(max_examples=cases(35, 80), deadline=None)
def test_an_lru_cache_reuses_what_the_distances_say(
    most_slots: int, drawn: list[tuple[list[int], int, int]], capacities: list[int]
) -> None:
    prompts = [made(*one) for one in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen_blocks, "MOST_SLOTS", most_slots)
        seen = SeenBlocks()
        for ids, sizes, output in prompts:
            seen.add(ids, sizes, 0.0, output)
    for capacity in capacities:
        cache = PlayedLru(capacity)
        for ids, sizes, output in prompts:
            cache.serve(ids, sizes, output)
        assert seen.reused_within(capacity) == cache.reused
    enough = seen.tokens_for(0.9)
    total = seen.reused_within(10**9)
    if enough is None:
        assert total == 0
    else:
        assert seen.reused_within(enough) >= 0.9 * total > seen.reused_within(enough - 1)


def cycle(prompts: int, rounds: int) -> list[dict[str, Any]]:
    """The same prompts over and over, 1,000 tokens and an answer of 10 each."""
    lines = []
    for turn in range(prompts * rounds):
        ids = [1000 * (turn % prompts) + block for block in range(63)]
        lines.append({"timestamp": 2000 * turn, "input_length": 1000, "output_length": 10, "hash_ids": ids})
    return lines


def test_what_is_used_again_and_again_in_turn_needs_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No token is new after the first round, and yet each is used last when all others have been."""
    path = write_log(tmp_path / "t.jsonl", cycle(35, 4))
    assert main(["trace", "stats", str(path), "--trace-block", "16"]) == 0
    assert "an LRU cache must keep about 35,300 tokens" in capsys.readouterr().out
    hits = {}
    for tokens in (10_240, 30_000, 36_000):
        words = f"--trace-block 16 --block-size 16 --device-blocks {tokens // 16} --host-blocks 0 --batch 1"
        assert main(["replay", str(path), *words.split(), "--eviction", "lru", "--json"]) == 0
        hits[tokens] = '"trace_blocks_hit": 0,' not in capsys.readouterr().out
    assert hits == {10_240: False, 30_000: False, 36_000: True}


@pytest.mark.parametrize("most", [4096, 512])
def test_a_sample_of_blocks_tells_about_the_same_distance(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    whole = sample_stats()["reuse"]
    monkeypatch.setattr(seen_blocks, "MOST", most)
    stats = read_stats("sample")
    told = stats.to_json()["reuse"]
    assert told["sampled_one_block_in"] >= 4
    assert abs(told["tokens_for_90_percent"] / whole["tokens_for_90_percent"] - 1) < 0.15
    stack, seen = stats.seen._stack, stats.seen
    sampled = sum(size << seen._bits for size in seen._sizes)
    answers = sum(request.output for request in read_trace("sample"))
    assert stack.since(-1) - sampled == answers, "nothing else is in the stack"


def test_a_stack_of_uses_adds_up_whatever_is_left_out() -> None:
    stack, plain = UseStack(), list[int]()
    for number in range(40):
        assert stack.push() == number
        plain.append(0)
        for slot in (number, number // 2, number // 3):
            stack.add(slot, slot + 1)
            plain[slot] += slot + 1
        assert [stack.since(slot) for slot in range(-1, number + 1)] == [
            sum(plain[slot + 1 :]) for slot in range(-1, number + 1)
        ]
    used = np.array([30, 4, 4, 17])
    before = [stack.since(slot) for slot in used.tolist()]
    now = stack.squeeze(used)
    assert len(stack) == 4 and [stack.since(slot) for slot in now.tolist()] == before
    stack.add(stack.push(), 5)
    assert [stack.since(slot) for slot in now.tolist()] == [tokens + 5 for tokens in before]
