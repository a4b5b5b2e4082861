"""Recurrent layers that write states on the way: long prompts in few steps, and starts at every snapshot inside."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ..steps import assert_exact, finish, open_engine, plain, words  # noqa: E402

NAME = "qwen3_next"


def test_a_long_prompt_is_one_step_and_leaves_every_snapshot() -> None:
    """200 tokens, a snapshot every 8: one step. Whoever shares n of them starts at the last edge before."""
    with open_engine(NAME, (200, 80), max_num_tokens=256, snapshot_every=8) as engine:
        first = engine.submit(words(0, 200), plain(1))
        assert finish(engine) == 1
        assert engine.cache.stats(1).copied == 0 and engine.cache.usage(0, 1).idle == 25
        runs = [engine.submit((*words(0, shared), *words(70, 5)), plain(3)) for shared in (7, 8, 50, 96, 199)]
        finish(engine)
        assert [run.reused for run in runs] == [0, 8, 48, 96, 192]
        assert_exact(NAME, [first, *runs])


def test_a_budget_is_used_in_one_step() -> None:
    """480 tokens with a snapshot every 16 would be 30 steps; the answer takes the other two."""
    with open_engine(NAME, (80, 80), max_length=500, max_num_tokens=480, max_sequences=2, block_size=16) as engine:
        run = engine.submit(words(0, 480), plain(3))
        assert finish(engine) == 3
        again = engine.submit((*words(0, 290), *words(9, 3)), plain(2))
        finish(engine)
        assert again.reused == 288
        assert_exact(NAME, [run, again])


@pytest.mark.parametrize("chunk", [1, 3, 8, 20])
def test_parts_that_end_anywhere(chunk: int) -> None:
    """Prompts in parts, beside decoding ones: a part of one token may have a state to write too."""
    with open_engine(NAME, (60, 40), max_num_tokens=24, max_chunk=chunk, snapshot_every=8, max_sequences=6) as engine:
        runs = [engine.submit(words(start, 37), plain(6)) for start in (0, 60)]
        for _ in range(5):
            engine.step()
        runs += [engine.submit((*words(0, 33), *words(start, 9)), plain(4)) for start in (90, 120)]
        finish(engine)
        later = engine.submit((*words(60, 25), *words(5, 4)), plain(4))
        finish(engine)
        assert later.reused == 24
        assert_exact(NAME, [*runs, later])


def test_few_slots_keep_the_last_snapshots() -> None:
    """Three state slots: of eight snapshots the last two are there, and nobody waits for the others."""
    with open_engine(NAME, (60, 3), max_num_tokens=128, snapshot_every=8) as engine:
        first = engine.submit(words(0, 66), plain(1))
        assert finish(engine) == 1
        early = engine.submit((*words(0, 44), *words(70, 5)), plain(3))
        finish(engine)
        late = engine.submit((*words(0, 44), *words(70, 9)), plain(3))
        finish(engine)
        assert (early.reused, late.reused) == (0, 48), "the early one has left its own"
        assert_exact(NAME, [first, early, late])


def test_a_state_that_was_not_written_is_seen() -> None:
    """The same with one snapshot inside overwritten: the answer is another one."""
    with open_engine(NAME, (60, 20), max_num_tokens=128, snapshot_every=8) as engine:
        first = engine.submit(words(0, 66), plain(1))
        finish(engine)
        dump = engine.cache._setup.store.dump()
        (slot,) = [page.slots[0] for page in dump.groups[1].pages.values() if dump.text_to(page.node) == words(0, 40)]
        arena = engine.pages.arenas[1]
        arena[slot] = torch.randn(arena.shape[1] // 4, generator=torch.Generator().manual_seed(1)).view(torch.uint8)
        wrong = engine.submit((*words(0, 44), *words(70, 5)), plain(8))
        finish(engine)
        assert wrong.reused == 40
        assert_exact(NAME, [first])
        with pytest.raises(AssertionError, match="no rounding"):
            assert_exact(NAME, [wrong])


@pytest.mark.parametrize(("decoding", "reused"), [(None, 64), (20, 48), (0, 40)])
def test_answers_have_a_cadence_of_their_own(decoding: int | None, reused: int) -> None:
    """41 tokens and 30 sampled, every 16: a question about the middle of the answer starts at 64, 48 or 40."""
    with open_engine(NAME, (60, 20), max_num_tokens=128, snapshot_decoding=decoding) as engine:
        first = engine.submit(words(0, 41), plain(30))
        finish(engine)
        said = (*words(0, 41), *first.answers[0].tokens)
        second = engine.submit((*said[:66], *words(70, 5)), plain(3))
        finish(engine)
        assert second.reused == reused
        assert_exact(NAME, [first, second])
