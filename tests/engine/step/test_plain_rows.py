"""Plain rows: what decodes and needs nothing but its last token goes through a step in arrays, with the same answers.

That the arrays say what the branches do is checked behind every step of every test (`steps.check_plain`), and whole
random worlds are in `tests.engine.test_exact`. Here is what a step costs, who is plain, and what rows share.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine.model.packing import Decodes, Packed, Segment, pack  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402

from ..steps import assert_exact, finish, open_engine, plain, reference_of, step, tokens_of, words  # noqa: E402


class Hears:
    """A listener that counts."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        self.heard += tokens
        return False

    def over(self, run: Run) -> None:
        pass


def calls_of(engine: Engine) -> Counter[str]:
    """Function calls of one step, but for those of the model."""
    calls: Counter[str] = Counter()
    inside = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal inside
        model = event in ("call", "return") and frame.f_code.co_qualname == "Engine._run"
        inside += (event == "call") - (event == "return") if model else 0
        if not inside and event in ("call", "c_call"):
            calls[frame.f_code.co_qualname if event == "call" else str(argument)] += 1

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7, "top_k": 5, "seed": 1}])
def test_a_step_calls_hardly_more_functions_for_more_rows(overlap: bool, fields: dict[str, Any]) -> None:
    """One for the token of an answer and two for who hears it, and nothing else: the rest is done in arrays."""
    total = []
    for rows in (8, 40):
        engine = open_engine("llama", 300, overlap=overlap, max_sequences=40, max_num_tokens=512)
        listeners = [Hears() for _ in range(rows)]
        for nth, listener in enumerate(listeners):
            engine.submit(words(nth, 9), plain(40, **fields), listener=listener)
        for _ in range(5):
            step(engine)
        heard = len(listeners[-1].heard)
        total.append(calls_of(engine).total())
        assert [len(one.heard) for one in listeners] == [heard + 1] * rows
    assert total[1] - total[0] <= 5 * 32, total


def test_who_is_plain() -> None:
    engine = open_engine("llama", 200, max_num_tokens=256, max_sequences=16)
    kinds: list[tuple[dict[str, Any], bool]] = [
        ({}, True), ({"temperature": 1.0, "top_p": 0.9, "min_p": 0.01}, True), ({"n": 2}, True),
        ({"stop_ids": (3,)}, True), ({"drafts": 2}, False), ({"beams": 2}, False), ({"logprobs": 1}, False),
        ({"presence_penalty": 0.5}, False), ({"min_tokens": 2}, False),
    ]  # fmt: skip
    runs = [engine.submit(words(20 * nth, 9), plain(6, **fields)) for nth, (fields, _) in enumerate(kinds)]
    step(engine)
    queues = engine.scheduler.queues
    found = queues.plain.branches_in(queues.plain.ready)
    assert set(found) == {branch for run, (_, is_plain) in zip(runs, kinds, strict=True) if is_plain
                          for branch in run.branches}  # fmt: skip
    finish(engine)
    assert_exact("llama", runs)


@pytest.mark.parametrize("overlap", [False, True])
def test_rows_come_and_go(overlap: bool) -> None:
    """A batch is shared by steps until a row ends or another comes; ends by eos, stop, length, listener."""
    engine = open_engine("llama", 200, overlap=overlap, max_num_tokens=256, max_sequences=6)
    whole = [tuple(reference_of("llama").answers(list(words(40 * nth, 9)), plain(12))[0]) for nth in range(3)]
    third = next(token for token in whole[1][2:] if whole[1].index(token) >= 2)
    runs = [
        engine.submit(words(0, 9), Sampling(max_tokens=40)),
        engine.submit(words(40, 9), plain(12, stop_ids=(third, 255))),
        engine.submit(words(80, 9), plain(3)),
    ]
    while not runs[2].done:
        step(engine)
    runs.append(engine.submit(words(120, 30), plain(5, n=3, temperature=1.0)))
    while step(engine) is not None:
        queues = engine.scheduler.queues
        batch = queues.plain.batch(queues.plain.ready)
        assert batch is queues.plain.batch(batch.rows.copy()) and batch.rows.tolist() == sorted(
            set(batch.rows.tolist())
        )
    assert runs[1].answers[0].finish == "stop" and tokens_of(runs[1])[0] == list(whole[1][: whole[1].index(third) + 1])
    assert runs[2].answers[0].finish == "length" and not len(engine.scheduler.queues.plain.ready)
    assert_exact("llama", runs)


def packed(engine: Engine, segments: list[Segment], decodes: Decodes) -> Packed:
    return pack(engine.cache, [0], segments, torch.device("cpu"), decodes)


def test_a_step_of_decodes_is_packed_as_segments_are() -> None:
    engine = open_engine("llama", 60)
    for nth in range(4):
        engine.submit(words(30 * nth, 9 + nth), plain(8))
    step(engine)
    at, rows = engine.cache.progress(), engine.scheduler.queues.plain.ready
    starts, tokens = at.ran[rows] - 1, np.arange(20, 20 + len(rows), dtype=np.int32)
    each = [Segment(row, start, tokens[nth : nth + 1], 1)
            for nth, (row, start) in enumerate(zip(rows.tolist(), starts.tolist(), strict=True))]  # fmt: skip
    whole = packed(engine, each, Decodes(rows[:0], rows[:0], rows[:0]))
    for count in (0, 1, 4):
        other = packed(engine, each[count:], Decodes(rows[:count], starts[:count], tokens[:count]))
        for name in ("ids", "positions", "offsets", "starts", "wanted", "rows"):
            assert np.array_equal(getattr(other, name), getattr(whole, name)), name
        assert np.array_equal(other.lanes[0].table, whole.lanes[0].table) and other.only_decodes
        assert torch.equal(other.lanes[0].slot, whole.lanes[0].slot)
    longer = each[3]._replace(start=each[3].start - 1, tokens=tokens[:2])
    for segment in (longer, longer._replace(num_logits=2), each[3]._replace(num_logits=0)):
        assert not packed(engine, [segment], Decodes(rows[:3], starts[:3], tokens[:3])).only_decodes


def test_tokens_of_an_answer_are_there_once_they_are_asked_for() -> None:
    """The array behind `tokens` follows the answer, beyond what was set aside for it too."""
    engine = open_engine("llama", 60)
    run = engine.submit(words(0, 9), plain(3))
    (branch,) = run.branches
    made = list(range(100, 150))
    for token in made:
        branch.append([token])
        if token % 7 == 0:
            assert branch.answer.tolist() == run.answers[0].tokens and branch.last_token == token
    assert branch.tokens.tolist() == [*words(0, 9), *made] and branch.length == 59
    engine.cancel(run)
