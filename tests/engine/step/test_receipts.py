"""Receipts of runs: with `EngineConfig(receipts=True)` a run says what of its prompt was reused, and why not more."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ..steps import finish, open_engine, plain, words


def test_a_run_has_the_receipt_of_its_first_admission() -> None:
    with open_engine("llama", 40, receipts=True) as engine:
        first = engine.submit(words(0, 40), plain(4))
        finish(engine)
        again = engine.submit(words(0, 40), plain(4))
        finish(engine)
    assert first.receipt is not None and first.receipt.missed("new") > 0 and first.receipt.reused == 0
    assert again.receipt is not None and again.receipt.reused == again.reused > 0
    assert again.receipt.missed("new") == 0


def test_a_preempted_run_keeps_its_first_one() -> None:
    """What it reuses when it comes back is its own work: that says nothing of its prompt."""
    with open_engine("llama", 12, receipts=True) as engine:
        runs = [engine.submit(words(60 * start, 30), plain(40)) for start in range(3)]
        finish(engine)
    assert sum(run.num_preemptions for run in runs) > 0
    assert all(run.receipt is not None and run.receipt.reused == run.reused == 0 for run in runs)


def test_without_the_switch_there_is_none() -> None:
    with open_engine("llama", 40) as engine:
        run = engine.submit(words(0, 40), plain(2))
        finish(engine)
    assert run.receipt is None
