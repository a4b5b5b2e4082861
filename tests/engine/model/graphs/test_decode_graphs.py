"""Decoding steps of fixed sizes: the tokens of steps that are packed anew; on CUDA they are captured."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, Request  # noqa: E402
from quire.core.check import check  # noqa: E402
from quire.engine import Engine, EngineConfig, Sampling, from_module  # noqa: E402

from ... import families  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAMILIES = [name for name in (*families.NAMES, *families.POOLED) if name not in families.RECURRENT]


def ints(*numbers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


def make(name: str, *, graphs: Literal["on", "off"], overlap: bool = False, **more: Any) -> Engine:
    model = from_module(families.build(name).to(DEVICE), share_pool=name in families.POOLED)
    config: dict[str, Any] = {"device_pages": 60, "block_size": 4, "max_num_tokens": 64, "max_sequences": 8}
    return Engine(model, EngineConfig(**config | {"max_length": 128} | more, graphs=graphs, overlap=overlap))


def answers(engine: Engine, count: int = 12) -> list[list[int]]:
    """Prompts of 3 to 30 tokens, greedy and sampled by turns; more than fit at once, so that some lose their pages."""
    dice = np.random.default_rng(0)
    runs = []
    for nth in range(count):
        prompt = dice.integers(3, 50, int(dice.integers(3, 30))).tolist()
        sampling = Sampling(max_tokens=20, ignore_eos=True, temperature=0.7 * (nth % 2), seed=nth)
        runs.append(engine.submit(prompt, sampling))
    engine.drain()
    check(engine.cache)
    return [run.answers[0].tokens for run in runs]


@cache
def packed_anew(name: str) -> list[list[int]]:
    """The answers of an engine without graphs."""
    with make(name, graphs="off") as packed:
        assert packed.graphs is None
        return answers(packed)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_steps_packed_anew(name: str, overlap: bool) -> None:
    with make(name, graphs="on", overlap=overlap) as fixed:
        assert answers(fixed) == packed_anew(name)
        assert fixed.graphs is not None
        assert fixed.graphs.num_replays > 20 and fixed.scheduler.num_preemptions


@pytest.mark.parametrize("name", FAMILIES)
def test_tables_on_the_device_are_those_of_the_cache(name: str) -> None:
    """After preemptions, windows, a prompt of more new cells than travel with a step, and rows used again."""
    with make(name, graphs="on") as engine:
        assert engine.graphs is not None
        answers(engine)
        tables = engine.graphs._tables
        tables.changes(0)  # brings the rest up to date
        for group, table in tables.by_group.items():
            assert (table[:-1].cpu().numpy() == engine.cache.table(group)).all()
            assert (table[-1] == tables.spare_slots[group]).all()


def test_tensorrt_llm_15546_the_numbers_of_a_step_are_not_written_over_before_its_copy_ran() -> None:
    """The case of the museum, of a step that is replayed: it reads its numbers and the tables' changed cells from one
    copy, of memory that is its alone. The next step is packed, and the tables change, before that copy has run."""
    with make("llama", graphs="on") as engine:
        cache, graphs = engine.cache, engine.graphs
        assert graphs is not None
        (one,) = cache.add_sequence_batch([Request("a", ints(*range(8)))]).sequences
        cache.commit(one)
        graphs._tables.changes(0)  # the prompt's are written
        step, numbers = graphs._steps[1], []
        for token in range(8, 10):
            assert cache.grow(one, ints(token)) is not None
            changes = graphs._tables.changes(step.room)
            numbers.append(step.numbers_of(ints(token), ints(token), ints(one.row), changes))
            if token == 8:
                told = numbers[0].copy()
                assert one.slots()[2] in told, "a new cell travels with it"
            cache.commit(one)
        first, second = numbers
        assert np.array_equal(first, told) and not np.array_equal(first, second)
        kept = (second, cache.table(), step.numbers.cpu().numpy(), step._padding)
        assert not any(np.shares_memory(first, other) for other in kept)


def test_rows_to_spare_touch_no_page_of_the_cache() -> None:
    """Three rows in a step of four: the fourth writes on the spare page, which the cache does not know."""
    with make("llama", graphs="on") as engine:
        assert engine.graphs is not None
        for nth in range(3):
            engine.submit([5 + nth, 9, 7], Sampling(max_tokens=4, ignore_eos=True))
        engine.step()
        spare = engine.graphs._tables.spare_slots[0]
        unused = [slot for slot in range(spare) if slot not in np.unique(engine.cache.table())]
        engine.pages.kv[0][spare] = float("nan")
        before = engine.pages.kv[0].clone()
        engine.step()
        after = engine.pages.kv[0]
        assert engine.graphs.num_replays == 1 and not after[spare, :, :, 0].isnan().any()
        assert after[spare, :, :, 1:].isnan().all() and torch.equal(before[unused], after[unused])
        assert len(engine.pages.arenas[0]) == spare


def test_a_step_that_needs_more_than_a_token_is_packed_anew() -> None:
    with make("llama", graphs="on") as engine:
        assert engine.graphs is not None
        engine.submit([5, 9, 7, 5, 9, 7, 5, 9], Sampling(max_tokens=12, drafts=3, ignore_eos=True))
        engine.drain()
        assert engine.graphs.num_replays < engine.stats.num_steps - 1


def test_a_model_with_hooks_runs_without_graphs() -> None:
    """A captured step would not call them."""
    calls: list[int] = []
    with make("llama", graphs="on") as engine:
        assert engine.graphs is not None
        engine.model.module.register_forward_hook(lambda *_: calls.append(1))
        engine.submit([5, 9, 7], Sampling(max_tokens=4, ignore_eos=True))
        engine.drain()
        assert len(calls) == engine.stats.num_steps and not engine.graphs.num_replays


@pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA: nothing is captured on a CPU")
def test_a_size_that_cannot_be_captured_leaves_the_others_their_graphs() -> None:
    with make("llama", graphs="off") as packed, make("llama", graphs="on") as engine:
        assert engine.graphs is not None
        largest = engine.graphs._steps[engine.graphs.sizes[-1]]
        compute, calls = largest.compute, list[int]()

        def synchronizing() -> None:
            compute()
            calls.append(1)
            if torch.cuda.is_current_stream_capturing():
                largest.logits.cpu()  # no capture takes this

        largest.compute = synchronizing  # type: ignore[method-assign]
        engine.graphs.capture()
        without = [size for size, graph in engine.graphs._graphs.items() if graph is None]
        assert calls and without == [largest.size] and len(engine.graphs._graphs) > 1
        assert answers(engine) == answers(packed)


def test_which_models_have_graphs() -> None:
    with make("qwen3_next", graphs="on", device_pages=[60, 20]) as recurrent, make("llama", graphs="off") as off:
        assert recurrent.graphs is None and off.graphs is None
    with pytest.raises(InputError, match="graphs 'always': it is not a known mode; use one of auto, on, off"):
        EngineConfig(10, graphs="always")  # type: ignore[arg-type]


def test_sizes_cover_every_number_of_rows() -> None:
    with make("llama", graphs="on", max_sequences=50, max_num_tokens=64, device_pages=200) as engine:
        assert engine.graphs is not None
        assert engine.graphs.sizes == [1, 2, 4, 8, 16, 24, 32, 50]
