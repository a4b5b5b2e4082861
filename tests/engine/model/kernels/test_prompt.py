"""The paged kernel against attention in its plainest form; on CUDA, or on the CPU in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

from quire.core.records.errors import InputError
from quire.engine.model.kernels import in_triton, prompt
from quire.engine.model.kernels.prompt import attend
from quire.engine.model.kernels.rules import Rule
from tests.effort import LONG, cases

CUDA = torch.cuda.is_available()
RUNS = CUDA or os.environ.get("TRITON_INTERPRET") == "1"  # which tests/conftest.py sets, before anybody imports Triton
DEVICE = "cuda" if CUDA else "cpu"
MISSING = "Triton is not installed" if importlib.util.find_spec("triton") is None else "" if RUNS else "no CUDA here"
needs_triton = pytest.mark.skipif(bool(MISSING), reason=MISSING)

NAN = float("nan")
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """Segments as (position of the first query, number of queries), and what they read."""

    segments: tuple[tuple[int, int], ...]
    rule: Rule
    heads: tuple[int, int] = (4, 2)  # of queries, of keys and values
    dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass
class Inputs:
    """What the kernel is given; q, k and v are parts of larger tensors, already on the device.

    Every cell that no query reads is NaN: slot 0, the last one, holes, ends of pages, other layers.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    offsets: torch.Tensor
    starts: torch.Tensor

    def attend(self, rule: Rule, max_query: int) -> torch.Tensor:
        index = [numbers.to(DEVICE) for numbers in (self.table, self.offsets, self.starts)]
        return attend(self.q, self.k, self.v, *index, rule=rule, max_query=max_query).cpu()


def reads(rule: Rule, start: int, count: int) -> torch.Tensor:
    """Which keys the queries of a segment read: bool [count, start + count]."""
    position, key = torch.arange(start, start + count)[:, None], torch.arange(start + count)[None, :]
    window, sinks = rule.window or start + count, rule.sinks
    return (key <= position) & ((key > position - window) | (key < sinks))


def inputs_of(case: Case, seed: int = 0) -> Inputs:
    """Random numbers for a case; the pool is one layer of pages that hold three."""
    dice = torch.Generator().manual_seed(seed)
    heads, kv_heads = case.heads
    counts = [count for _, count in case.segments]
    columns = [-(-(start + count) // case.block_size) for start, count in case.segments]
    slots = torch.randperm(sum(columns), generator=dice) + 1
    cells = (3, 2, case.block_size, kv_heads, case.dim)
    pages = torch.full((len(slots) + 2, *cells), NAN, dtype=case.dtype)
    k, v = pages[:, 1, 0], pages[:, 1, 1]
    table = torch.full((len(counts), max(columns) + 1), -1, dtype=torch.int32)
    for row, ((start, count), mine) in enumerate(zip(case.segments, slots.split(columns), strict=True)):
        used = reads(case.rule, start, count).any(0).nonzero()[:, 0]
        table[row, used // case.block_size] = mine[used // case.block_size].int()
        for pool in (k, v):
            fresh = torch.randn((len(used), *cells[3:]), generator=dice).to(case.dtype)
            pool[mine[used // case.block_size], used % case.block_size] = fresh
    packed = torch.randn((sum(counts), heads + 3, case.dim), generator=dice).to(case.dtype)
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    starts = torch.tensor([start for start, _ in case.segments], dtype=torch.int32)
    pages, packed = pages.to(DEVICE), packed.to(DEVICE)
    return Inputs(packed[:, 2 : heads + 2], pages[:, 1, 0], pages[:, 1, 1], table, offsets, starts)


def plain(case: Case, inputs: Inputs) -> torch.Tensor:
    """Attention in float64, one segment at a time, over gathered keys."""
    answers = []
    shared = case.heads[0] // case.heads[1]
    for row, (start, count) in enumerate(case.segments):
        first = int(inputs.offsets[row])
        q = inputs.q[first : first + count].cpu().double()
        key = torch.arange(start + count)
        slots = inputs.table[row, key // case.block_size].long()
        k, v = (
            pool.cpu()[slots, key % case.block_size].double().nan_to_num().repeat_interleave(shared, 1)
            for pool in (inputs.k, inputs.v)
        )
        scores = torch.einsum("qhd,khd->hqk", q, k) * case.rule.scale
        if cap := case.rule.softcap:
            scores = cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(~reads(case.rule, start, count), -torch.inf)
        answers.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.cat(answers)


def check(case: Case, atol: float | None = None) -> None:
    inputs = inputs_of(case)
    answer = inputs.attend(case.rule, max(count for _, count in case.segments))
    assert (answer.shape, answer.dtype) == (inputs.q.shape, case.dtype)
    torch.testing.assert_close(answer.double(), plain(case, inputs), rtol=0, atol=atol or CLOSE[case.dtype])


def spared(quick: bool) -> list[pytest.MarkDecorator]:
    """The interpreter takes its time: the suite has every rule and size once, `make slow` all of them together."""
    return [] if quick else [pytest.mark.slow]


DECODE = ((0, 1), (5, 1), (15, 1), (16, 1), (130, 1))
PREFILL = ((0, 70), (0, 1), (0, 33)) if CUDA or LONG else ((0, 35), (0, 1), (0, 17))  # an interpreter takes its time
MIXED = ((200, 1), (0, 40), (64, 17), (3, 1), (95, 50)) if CUDA or LONG else ((130, 1), (0, 19), (64, 9), (3, 1))
FULL = Rule(scale=0.3)
RULES = {
    "full": FULL,
    "window": Rule(scale=0.3, window=20),
    "window of one": Rule(scale=0.3, window=1),
    "window and sinks": Rule(scale=0.3, window=9, sinks=4),
    "many sinks": Rule(scale=0.3, window=33, sinks=70),
    "softcap": Rule(scale=0.8, softcap=2.0),
    "all": Rule(scale=0.8, window=40, sinks=3, softcap=5.0),
}


@needs_triton
@pytest.mark.parametrize(
    ("segments", "rule"),
    [
        pytest.param(segments, rule, id=f"{what}-{name}", marks=spared(what == "mixed" or name in ("full", "all")))
        for what, segments in (("decode", DECODE), ("prefill", PREFILL), ("mixed", MIXED))
        for name, rule in RULES.items()
    ],
)
def test_segments_read_what_the_rule_says_and_nothing_else(segments: tuple[tuple[int, int], ...], rule: Rule) -> None:
    check(Case(segments, rule))


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize(
    "heads", [(1, 1), (9, 3), (20, 1), *(pytest.param(heads, marks=pytest.mark.slow) for heads in ((3, 3), (14, 2)))]
)
def test_heads_share_keys(heads: tuple[int, int]) -> None:
    for segments in cases((MIXED,), (DECODE, MIXED)):
        check(Case(segments, FULL, heads=heads))


@needs_triton
@pytest.mark.parametrize("dim", [8, 24, 160, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (64, 80, 128))])
def test_heads_of_any_width(dim: int) -> None:
    check(Case(MIXED, RULES["window and sinks"]._replace(scale=dim**-0.5), dim=dim))


@needs_triton
@pytest.mark.parametrize(
    ("block_size", "rule"),
    [
        pytest.param(size, rule, marks=spared((rule == "full") == (size in (2, 16))))
        for size in (1, 2, 16, 24, 100)
        for rule in ("full", "window and sinks")
    ],
)
def test_blocks_of_any_size(block_size: int, rule: str) -> None:
    check(Case(MIXED, RULES[rule], block_size=block_size))


@needs_triton
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize(
    ("segments", "dim"),
    [
        pytest.param(segments, dim, id=f"{dim}-{what}", marks=spared((what == "mixed") == (dim == 64)))
        for what, segments in (("decode", DECODE), ("mixed", MIXED))
        for dim in (64, 128)
    ],
)
def test_numbers_of_any_kind(dtype: torch.dtype, segments: tuple[tuple[int, int], ...], dim: int) -> None:
    check(Case(segments, Rule(scale=dim**-0.5), heads=(8, 2), dim=dim, dtype=dtype))


@needs_triton
@pytest.mark.parametrize("rule", [pytest.param(name, marks=spared(name in ("full", "all"))) for name in RULES])
@pytest.mark.parametrize("splits", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_programs_share_the_keys_of_few_queries(rule: str, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have no keys of a tile, or none that a query of it reads."""
    monkeypatch.setattr(prompt, "processors", lambda device: 1000)
    monkeypatch.setattr(prompt, "LEAST_KEYS", 1)
    monkeypatch.setattr(prompt, "MOST_SPLITS", splits)
    check(Case(((250, 5), (0, 1), (100, 9)), RULES[rule], heads=(3, 1)))


@needs_triton
def test_keys_are_split_where_processors_would_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noted(*asked: Any) -> int:
        seen.append(number(*asked))
        return seen[-1]

    number = prompt._num_splits
    monkeypatch.setattr(prompt, "_num_splits", noted)
    monkeypatch.setattr(prompt, "processors", lambda device: 4)
    check(Case(((1100, 3),), FULL, heads=(2, 1)))
    check(Case(((1100, 3),), RULES["window"], heads=(2, 1)))
    check(Case(((1100, 3), (0, 2), (5, 2), (3, 4)), FULL, heads=(2, 1)))
    check(Case(((0, 40),), FULL, heads=(2, 1)))
    assert seen == [2, 1, 1, 1]


@needs_triton
def test_large_scores_do_not_overflow() -> None:
    check(Case(MIXED, Rule(scale=40.0)), atol=1e-3)  # a float32 score of 800 is off by 5e-5, and so are the weights
    check(Case(MIXED, Rule(scale=4e4, softcap=30.0)), atol=1e-3)


@needs_triton
def test_pools_may_have_heads_before_tokens() -> None:
    case = Case(MIXED, RULES["window and sinks"])
    inputs = inputs_of(case)
    turned = [pool.transpose(1, 2).contiguous().transpose(1, 2) for pool in (inputs.k, inputs.v)]
    assert turned[0].stride() != inputs.k.stride()
    inputs.k, inputs.v = turned
    torch.testing.assert_close(
        inputs.attend(case.rule, max(count for _, count in MIXED)).double(), plain(case, inputs), rtol=0, atol=1e-5
    )


@needs_triton
def test_a_prompt_in_chunks_gives_what_it_gives_whole() -> None:
    whole = inputs_of(Case(((0, 60),), FULL))
    answer = whole.attend(FULL, 60)
    for first, last in ((0, 37), (37, 38), (38, 60)):
        starts, offsets = torch.tensor([first], dtype=torch.int32), torch.tensor([0, last - first], dtype=torch.int32)
        part = replace(whole, q=whole.q[first:last], starts=starts, offsets=offsets)
        torch.testing.assert_close(part.attend(FULL, last - first), answer[first:last], rtol=0, atol=1e-6)


@needs_triton
def test_segments_may_be_empty() -> None:
    inputs = inputs_of(Case(((4, 3), (9, 1)), FULL))
    some = replace(inputs, table=inputs.table[[0, 0, 1]], starts=inputs.starts[[0, 0, 1]])
    some.offsets = torch.tensor([0, 3, 3, 4], dtype=torch.int32)
    assert torch.equal(some.attend(FULL, 3), inputs.attend(FULL, 3))
    none = replace(inputs, q=inputs.q[:0], table=inputs.table[:0], starts=inputs.starts[:0], offsets=inputs.offsets[:1])
    assert none.attend(FULL, 0).shape == (0, 4, 32)


def wrong_inputs() -> dict[str, Inputs]:
    good = inputs_of(Case(DECODE, FULL))
    return {
        "KV heads": replace(good, q=good.q[:, :3]),
        "dim": replace(good, q=good.q[:, :, :16]),
        "one dtype": replace(good, q=good.q.half()),
        "unit last strides": replace(good, q=good.q.transpose(1, 2).contiguous().transpose(1, 2)),
        "int32": replace(good, table=good.table.long()),
    }


@pytest.mark.parametrize("word", ["KV heads", "dim", "one dtype", "unit last strides", "int32"])
def test_what_would_be_read_wrongly_is_refused(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # no launch is reached, so any device will do
    with pytest.raises(InputError, match=word):
        wrong_inputs()[word].attend(FULL, 1)


def test_tensors_on_the_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    good = inputs_of(Case(DECODE, FULL))
    with pytest.raises(InputError, match="CPU path"):
        attend(good.q.cpu(), good.k, good.v, good.table, good.offsets, good.starts, rule=FULL, max_query=1)


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not there
    with pytest.raises(ImportError, match="install triton"):
        in_triton._shared.__wrapped__()  # another test's is kept
