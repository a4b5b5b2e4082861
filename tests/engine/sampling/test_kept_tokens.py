"""What top-k and top-p keep is found by sorting and by bits alike; how often tokens stand in an answer, as it grows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quire.engine.sampling import kept_tokens  # noqa: E402
from quire.engine.sampling.answer_counts import AnswerCounts  # noqa: E402
from quire.engine.sampling.kept_tokens import Cuts, kept_by_bits, kept_by_head  # noqa: E402

VOCAB = 700
ROWS = 40


def logits_of(kind: str) -> Any:
    made = 3 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(len(kind)))
    if kind == "few values":
        made = made.round()
    if kind == "zeros of both signs":
        made[:, ::3], made[:, 1::3] = 0.0, -0.0
    if kind == "forbidden":
        made[:, 5:] = -torch.inf
        made[1::2, 5:90] = 1.5
    if kind == "huge":
        made *= 1e37
    if kind == "equal":
        made[:] = 2.0
    return made


@pytest.mark.parametrize("kind", ["normal", "few values", "zeros of both signs", "forbidden", "huge", "equal"])
def test_bits_find_what_sorting_does(kind: str) -> None:
    logits = logits_of(kind)
    shares = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    weights = (shares * 2.0**52).long()
    weights[::4].masked_fill_(shares[::4] < 0.01, 0)  # below min-p
    most = torch.tensor([(1, 2, 300, VOCAB - 1, VOCAB)[row % 5] for row in range(ROWS)])[:, None]
    share = torch.tensor([(1.0, 1e-9, 0.5, 0.97, 1 - 1e-12)[row // 5 % 5] for row in range(ROWS)]).double()[:, None]
    cuts = Cuts(most, share)
    wanted = kept_by_head(logits, weights, cuts, float("inf"))
    assert torch.equal(kept_by_bits(logits, weights, cuts), wanted)
    assert wanted.any(dim=-1).all() and not wanted[0, 1:].all()


def test_a_gpu_is_not_asked_whether_the_head_was_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without bytes has nothing to wait for: whoever looks at one raises."""
    blank = torch.empty(ROWS, VOCAB, device="meta")
    whole = torch.empty(ROWS, VOCAB, dtype=torch.int64, device="meta")
    most = torch.empty(ROWS, 1, dtype=torch.int64, device="meta")
    cuts = Cuts(most, torch.empty(ROWS, 1, dtype=torch.float64, device="meta"))
    for most_asked in (float("inf"), 700.0, 100.0):
        assert kept_tokens.kept(blank, whole, cuts, most_asked).shape == blank.shape
    monkeypatch.setattr(kept_tokens, "HEAD", 100)
    with pytest.raises((NotImplementedError, RuntimeError)):
        kept_by_head(blank, whole, cuts, 700.0)


def counted(counts: tuple[np.ndarray, np.ndarray]) -> dict[int, int]:
    return dict(zip(counts[0].tolist(), counts[1].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_counts_grow_with_the_answer(seed: int) -> None:
    dice, counts, text = random.Random(seed), AnswerCounts(), list[int]()
    for _ in range(120):
        text = text[: len(text) - 5] if dice.random() < 0.03 else text + dice.choices(range(60), k=dice.randint(0, 3))
        drafts = dice.choices(range(70), k=dice.choice([0, 0, 1, 4]))
        found = counts.behind(np.array(text, np.int32), np.array(drafts, np.int32))
        ids, numbers = np.unique(np.array(text + drafts, np.int32), return_counts=True)
        assert counted(found) == dict(zip(ids.tolist(), numbers.tolist(), strict=True))


def test_only_new_tokens_are_counted() -> None:
    counts, none = AnswerCounts(), np.empty(0, np.int32)
    counts.behind(np.array([1, 2, 2], np.int32), none)
    found = counts.behind(np.array([9, 9, 9, 2], np.int32), none)  # those before were counted when they came
    assert counted(found) == {1: 1, 2: 3}
