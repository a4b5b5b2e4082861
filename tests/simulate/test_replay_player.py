"""The player: hits to the digit, promises, decoding in strides, preemption, refusals; decisions are the cache's."""

from __future__ import annotations

import gzip
import json
import os
import resource
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import InputError, RetainRange, Sequence, check
from quire.core.sequences.release import tokens_of
from quire.simulate.play.tally import ReplayResult
from quire.simulate.play.trace_player import Player, play
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.trace.read.trace import SAMPLE, Trace, read_trace
from tests.trace.test_replay_trace import written

ROOMY = (Memory("device", blocks=(8000,)),)
LARGE = ReplaySettings(block_size=512, tiers=ROOMY, batch=1, token_budget=None, max_chunk=None)
SMALL = ReplaySettings(block_size=16, tiers=(Memory("device", blocks=(24,)), Memory("host", blocks=(40,))), batch=8)
TIMED = {"requests_per_second", "wall_requests_per_second", "cache_seconds", "wall_seconds"}


def ideal(lines: list[dict[str, Any]]) -> tuple[int, int, int, int]:
    """Of a Mooncake trace with unlimited memory: blocks hit and asked, prompts seen before, tokens not computed."""
    seen: set[int] = set()
    hit = asked = whole = saved = 0
    for line in lines:
        ids, length = line["hash_ids"], line["input_length"]
        found = next((n for n, name in enumerate(ids) if name not in seen), len(ids))
        hit, asked, whole = hit + found, asked + len(ids), whole + (found == len(ids))
        saved += min(found * 512, length - 1)  # the last prompt token is always computed
        seen.update(ids)
    return hit, asked, whole, saved


def lru(lines: list[dict[str, Any]], capacity: int) -> tuple[int, int]:
    """The same with so many blocks, least recently used first, the deepest of a prompt before the others."""
    cache: OrderedDict[int, None] = OrderedDict()
    hit = saved = 0
    for line in lines:
        ids, length = line["hash_ids"], line["input_length"]
        found = next((n for n, name in enumerate(ids) if name not in cache), len(ids))
        hit, saved = hit + found - (found == len(ids)), saved + min(found * 512, length - 1)
        for name in reversed(ids):
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hit, saved


def lines_of(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()[:limit]]


def explained(result: ReplayResult, lines: list[dict[str, Any]]) -> None:
    """The trace's own rate counts last blocks that are not full, and repeated prompts to their last token."""
    hit, asked, whole, saved = ideal(lines)
    partial = sum(line["input_length"] % 512 > 0 for line in lines)
    assert result.tokens_saved == saved
    assert result.trace_blocks_hit == hit - whole  # of a prompt seen before the last block is never reused whole
    assert result.trace_blocks == asked - partial


def counted(result: ReplayResult) -> dict[str, Any]:
    """What must be the same every time."""
    return {name: value for name, value in result.to_json().items() if name not in TIMED}


def talk(folder: Path, *asks: tuple[Any, ...], **more: Any) -> Trace:
    """A trace of (time_ms, prompt, output)."""
    lines = ({"time_ms": time, "prompt": prompt, "output_tokens": output, **more} for time, prompt, output in asks)
    return read_trace(written(folder, *lines))


@pytest.mark.parametrize("block_size", [16, 512])
def test_with_unlimited_memory_the_hits_are_the_traces_own(block_size: int) -> None:
    trace = read_trace("sample", limit=40)
    slots = (8000 * 512 // block_size,) if block_size == 512 else (36_000,)
    result = play(trace, replace(LARGE, block_size=block_size, tiers=(Memory("device", blocks=slots),)))
    explained(result, lines_of(SAMPLE, 40))
    assert result.requests == 40 and result.prompt_tokens == trace.num_tokens
    assert result.tokens_saved + result.tokens_computed == result.prompt_tokens
    assert result.hit_rate == result.hit_rate_by_tier["device"] == result.tokens_saved / result.prompt_tokens
    assert result.evictions == result.dropped == result.broken_promises == result.preemptions == 0


@pytest.mark.parametrize("capacity", [250, 400, 1000])
def test_under_pressure_one_tier_hits_what_an_independent_lru_hits(capacity: int) -> None:
    trace = read_trace("sample", limit=150)
    settings = replace(LARGE, tiers=(Memory("device", blocks=(capacity,)),), prefill_only=True, eviction="lru")
    result = play(trace, settings)
    assert (result.trace_blocks_hit, result.tokens_saved) == lru(lines_of(SAMPLE, 150), capacity)
    assert result.evictions > 0 and result.refused == 0


class AnswersSeen:
    """The generated tokens of every sequence that ends."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        """Nothing to see yet."""

    def ending(self, sequence: Sequence, store: bool) -> None:
        """It is about to be released."""
        self.tokens += [one for one in tokens_of(sequence._setup, sequence)[: sequence.computed].tolist() if one < 0]


@pytest.mark.parametrize("arrivals", ["trace", "at-once"])
def test_every_generated_token_is_used_once(tmp_path: Path, arrivals: Any) -> None:
    lines = [{"time_ms": 5000 * nth, "prompt": [[nth, 20]], "output_tokens": 70} for nth in range(3)]
    player = Player(read_trace(written(tmp_path, *lines)), replace(SMALL, arrivals=arrivals), None)
    seen = AnswersSeen()
    player.cache.inner.watch(seen)
    player.run()
    assert len(seen.tokens) >= 3 * 69 and len(set(seen.tokens)) == len(seen.tokens)


def test_a_repeated_prompt_is_reused_but_for_its_last_token(tmp_path: Path) -> None:
    trace = talk(tmp_path, *[(time, [["a", 40]], 1) for time in (0, 1000, 2000)])
    result = play(trace, replace(SMALL, tiers=(Memory("device", blocks=(24,)),)))
    assert result.tokens_saved == 2 * 39 and result.trace_blocks == 3 * 2 and result.trace_blocks_hit == 2 * 2
    result = play(trace, replace(SMALL, partial_reuse=False))
    assert result.tokens_saved == 2 * 32


def crossing(folder: Path) -> Trace:
    """Two talks that were pushed down to the host, and their follow-ups in one batch: the story of `quire demo`."""
    own = [(0, [["a", 128]], 1), (100, [["b", 128]], 1), (200, [["c", 384]], 1)]
    follow = [(9000, [["a", 128], [None, 64]], 1), (9000, [["b", 128], [None, 64]], 1)]
    return talk(folder, *own, *follow)


def test_one_at_a_time_breaks_what_two_phases_keep(tmp_path: Path) -> None:
    settings = replace(SMALL, tiers=(Memory("device", blocks=(24,)), Memory("host", blocks=(16,))), token_budget=None)
    settings = replace(settings, max_chunk=None)
    trace = crossing(tmp_path)
    two, one = play(trace, settings), play(trace, replace(settings, two_phase=False))
    assert (two.broken_promises, two.worst_overshoot_tokens, two.tokens_saved) == (0, 0, 256)
    assert (one.broken_promises, one.worst_overshoot_tokens) == (1, 256 - one.tokens_saved)
    assert one.lost_reuse_tokens == one.worst_overshoot_tokens > 0 and one.over_budget == 0
    budget = replace(settings, token_budget=384)
    two, one = play(trace, budget), play(trace, replace(budget, two_phase=False))
    assert two.broken_promises == two.over_budget == 0 and one.broken_promises == 1
    assert sum(one.series["promises_broken"]) == 1 and max(one.series["worst_overshoot_tokens"]) > 0


def test_both_ways_keep_and_break_promises_on_the_public_sample() -> None:
    trace = read_trace("sample")
    settings = replace(
        LARGE, tiers=(Memory("device", blocks=(600,)), Memory("host", blocks=(2400,))), batch=32, prefill_only=True,
        arrivals="at-once", eviction="lru",
    )  # fmt: skip
    two, one = play(trace, settings), play(trace, replace(settings, two_phase=False))
    assert two.broken_promises == two.worst_overshoot_tokens == two.lost_reuse_tokens == 0
    assert two.requests == one.requests == 1000 and two.tokens_saved > one.tokens_saved
    assert (one.broken_promises, one.worst_overshoot_tokens) == (6, 6144) and one.lost_reuse_tokens > 6144


def test_the_same_settings_give_the_same_result() -> None:
    trace = read_trace("sample", limit=25)
    settings = replace(LARGE, tiers=(Memory("device", blocks=(300,)), Memory("host", blocks=(300,))), batch=4)
    first = counted(play(trace, settings))
    assert first == counted(play(trace, settings)) and json.loads(json.dumps(first)) == first
    other = counted(play(trace, replace(settings, seed=5)))
    assert {**other, "settings": 0} == {**first, "settings": 0}  # other token ids, same decisions
    poisson = replace(settings, arrivals="poisson")
    assert counted(play(trace, poisson)) == counted(play(trace, poisson))
    assert counted(play(trace, poisson))["model"] != counted(play(trace, replace(poisson, seed=1)))["model"]


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("max_chunk", [None, 128])
@pytest.mark.parametrize("shape", ["llama-3-8b", "gemma-3-like", "gpt-oss-like", "qwen3-next-like"])
def test_every_shape_runs_to_the_end_under_pressure(
    tmp_path: Path, shape: str, max_chunk: int | None, two_phase: bool
) -> None:
    """Chunks, decoding, preemption and moves; the cache's invariants hold in the end, and promises all the way."""
    rng = np.random.default_rng(7)
    asks = []
    for number in range(60):
        parts = [["system", 64], [f"user {number % 5}", int(rng.integers(16, 400))], [None, int(rng.integers(1, 60))]]
        asks.append((number * 15, parts, int(rng.integers(0, 150))))
    trace = talk(tmp_path, *asks)
    blocks = {"qwen3-next-like": (64, 24)}.get(shape, (64,))
    tiers = (Memory("device", blocks=blocks), Memory("host", blocks=(80,)))
    settings = ReplaySettings(
        shape=shape, tiers=tiers, batch=8, token_budget=256 if max_chunk else 600, max_chunk=max_chunk,
        two_phase=two_phase,
        pace=Pace(prefill_tokens_per_second=5000, decode_ms=2),
    )  # fmt: skip
    player = Player(trace, settings, None)
    player.run()
    result = player.tally.result(player.cache, 1.0)
    check(player.cache.inner)
    assert player.cache.inner.num_sequences == 0 and result.requests + result.refused == 60
    assert result.refused == 0 and result.generated_tokens == sum(ask.output for ask in trace)
    assert result.hit_rate > 0.05 and abs(sum(result.hit_rate_by_tier.values()) - result.hit_rate) < 1e-9
    assert not two_phase or result.broken_promises == result.lost_reuse_tokens == result.over_budget == 0
    assert sum(result.series["onboarded_bytes"]) == result.onboarded_bytes
    if shape == "llama-3-8b":
        assert result.preemptions > 0 and result.recomputed_tokens > 0


def test_strides_end_in_the_turn_that_single_tokens_end_in(tmp_path: Path) -> None:
    """Without pressure the stride changes nothing that can be counted."""
    trace = talk(tmp_path, *[(n * 40, [["s", 50], [n % 3, 40 + n]], (n * 37) % 90) for n in range(30)])
    settings = replace(SMALL, tiers=(Memory("device", blocks=(600,)),), pace=Pace(decode_ms=1))
    results = [play(trace, replace(settings, decode_stride=stride)) for stride in (1, 4, 16, 64)]
    facts = [(item.model["seconds"], item.tokens_saved, item.model["ttft_ms"]["p99"]) for item in results]
    assert all(fact == pytest.approx(facts[0], abs=0.0015) for fact in facts)  # rounded to milliseconds


def test_generated_tokens_take_slots_and_are_cached(tmp_path: Path) -> None:
    """40 prompt tokens and 25 generated: the last one is never run, so 64 tokens have KV, in 4 blocks."""
    trace = talk(tmp_path, (0, [["a", 40]], 25))
    player = Player(trace, SMALL, None)
    player.run()
    usage = player.cache.inner.usage()
    assert usage.idle == 4 and player.cache.inner.stats().grown == 1
    player = Player(trace, replace(SMALL, prefill_only=True), None)
    player.run()
    assert player.cache.inner.usage().idle == 3 and player.tally.result(player.cache, 1.0).generated_tokens == 0


def test_larger_priorities_are_served_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"time_ms": 0, "prompt": [[None, 300]], "output_tokens": 1, "priority": rank} for rank in (0, 0, 5, 9)]
    player = Player(read_trace(written(tmp_path, *lines)), replace(SMALL, batch=1), None)
    served: list[tuple[int, int]] = []
    monkeypatch.setattr(
        player.tally, "end", lambda now, run: served.append((run.waiting.request.priority, run.waiting.request.number))
    )
    player.run()
    assert served == [(9, 3), (5, 2), (0, 0), (0, 1)]


def test_scopes_and_requests_without_reuse_share_nothing(tmp_path: Path) -> None:
    one = {"time_ms": 0, "prompt": [["a", 64]], "output_tokens": 1}
    lines = [one, {**one, "time_ms": 9, "scope": {"salt": "x"}}, {**one, "time_ms": 18, "reuse": False}]
    assert play(read_trace(written(tmp_path, *lines)), SMALL).tokens_saved == 0
    assert play(read_trace(written(tmp_path, one, {**one, "time_ms": 9})), SMALL).tokens_saved == 63


def test_retention_keeps_what_it_names(tmp_path: Path) -> None:
    """A system prompt outlives what would push it out."""
    flood = [{"time_ms": 1000 * n, "prompt": [[None, 320]], "output_tokens": 1} for n in range(1, 6)]
    asks = [{"time_ms": time, "prompt": [["s", 64], [None, 32]], "output_tokens": 1} for time in (0, 9000)]

    def saved(settings: ReplaySettings, *rule: Any) -> int:
        first, last = ({**ask, "retain": [rule]} if rule else ask for ask in asks)
        return play(read_trace(written(tmp_path, first, *flood, last)), settings).tokens_saved

    alone = replace(SMALL, tiers=(Memory("device", blocks=(24,)),), eviction="lru")  # which keeps nothing by itself
    assert saved(alone) == 0 and saved(alone, 0, 64, 90) == 64
    assert saved(alone, 0, 64, 90, 2.0) == 0  # for two seconds after its release
    everybody = replace(alone, retain=(RetainRange(0, 64, 90), RetainRange(64, None, 10)))
    assert saved(everybody) == 0 and saved(everybody, 0, 64, 100) == 64  # a request's own rules come first


def test_what_can_never_fit_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    trace = talk(tmp_path, (0, [[None, 5000]], 5), (0, [[None, 100]], 5), (0, [[None, 300]], 5))
    for two_phase in (True, False):
        result = play(trace, replace(SMALL, two_phase=two_phase))
        assert (result.refused, result.requests) == (1, 2)
        whole = replace(SMALL, token_budget=200, max_chunk=None, two_phase=two_phase)  # 300 tokens fit no step
        result = play(trace, whole)
        assert (result.refused, result.requests, result.over_budget) == (2, 1, 0)


def test_rows_may_be_what_is_short(tmp_path: Path) -> None:
    trace = talk(tmp_path, *[(0, [[None, 30]], 40)] * 9)
    for two_phase in (True, False):
        player = Player(trace, replace(SMALL, max_sequences=2, two_phase=two_phase), None)
        player.run()
        assert player.tally._counts["served"] == 9 and player.tally._counts["batches"] >= 5


def test_settings_that_cannot_work() -> None:
    trace = read_trace("sample", limit=2)
    for wrong, words in (
        ({"batch": 0}, "batch 0"),
        ({"block_size": 0}, "block_size 0"),
        ({"seed": -1}, "seed -1"),
        ({"speed": 0}, "speed 0"),
        ({"token_budget": 0}, "token_budget 0"),
        ({"decode_stride": 0}, "decode_stride 0"),
        ({"max_chunk": 0}, "max_chunk 0"),
        ({"arrivals": "soon"}, "arrivals 'soon'"),
        ({"tiers": (Memory("device", 1000),)}, "it holds no page of group 'full'"),
        ({"tiers": (Memory("device", blocks=(3, 4)),)}, "2 numbers for the 1 layer groups"),
        ({"shape": "gpt-9"}, "the presets are"),
    ):
        with pytest.raises(InputError, match=words):
            play(trace, replace(SMALL, **wrong))


def full_trace(name: str) -> Path:
    folder = os.environ.get("QUIRE_TRACES")
    if not folder:
        pytest.skip("QUIRE_TRACES names no folder with the public Mooncake traces")
    path = Path(folder) / f"mooncake_{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate"), [("conversation", (105_710, 288_500)), ("synthetic", (77_953, 121_877))])
def test_full_traces_hit_their_own_rate(name: str, rate: tuple[int, int]) -> None:
    """0.3664 and 0.6396 of all blocks, as the traces have it; less what is explained."""
    path = full_trace(name)
    lines = lines_of(path)
    assert ideal(lines)[:2] == rate
    settings = replace(LARGE, tiers=(Memory("device", blocks=(200_000,)),), prefill_only=True)
    explained(play(read_trace(path), settings), lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_full_traces_hit_what_an_independent_lru_hits(name: str) -> None:
    path = full_trace(name)
    trace, lines = read_trace(path), lines_of(path)
    for capacity in (500, 2000, 8000, 30_000):
        tiers = (Memory("device", blocks=(capacity,)),)
        result = play(trace, replace(LARGE, tiers=tiers, prefill_only=True, eviction="lru"))
        assert (result.trace_blocks_hit, result.tokens_saved) == lru(lines, capacity)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
@pytest.mark.parametrize("blocks", [(400, 800), (600, 2400), (1000, 4000)])
def test_full_traces_break_no_promise_in_two_phases(name: str, blocks: tuple[int, int]) -> None:
    trace = read_trace(full_trace(name))
    tiers = (Memory("device", blocks=blocks[:1]), Memory("host", blocks=blocks[1:]))
    for batch in (8, 16, 32):
        settings = replace(LARGE, tiers=tiers, batch=batch, prefill_only=True, arrivals="at-once")
        two, one = play(trace, settings), play(trace, replace(settings, two_phase=False))
        assert two.broken_promises == two.worst_overshoot_tokens == two.lost_reuse_tokens == 0
        assert two.requests == one.requests == len(trace)
        assert one.broken_promises > 0


@pytest.mark.slow
def test_the_full_conversation_trace_is_fast() -> None:
    """145 million prompt tokens in blocks of 16, with room for all of them; docs/replay.md has more numbers."""
    if os.environ.get("QUIRE_STORE") == "twin":
        pytest.skip("the reference store is the specification, not the fast one")
    trace = read_trace(full_trace("conversation"))
    result = play(trace, replace(ReplaySettings(), tiers=(Memory("device", blocks=(6_500_000,)),)))
    assert result.requests == 12_031 and result.broken_promises == 0
    assert result.requests_per_second > 3000 and result.wall_requests_per_second > 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000  # kB


def test_the_order_of_a_shape_is_that_of_its_cache() -> None:
    shapes = {"llama-3-8b": "adaptive", "gemma-3-like": "lru", "qwen3-next-like": "lru", "gpt-9": "auto"}
    assert {shape: ReplaySettings(shape).order for shape in shapes} == shapes
    assert ReplaySettings("gemma-3-like", eviction="adaptive").to_json()["eviction"] == "adaptive"
