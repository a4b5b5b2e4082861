"""Beam search equals transformers' own, token by token and score by score."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from quire.core.records.errors import InputError, StateError  # noqa: E402
from quire.engine.sampling.sample import log_probs  # noqa: E402
from quire.engine.step.runs.beam import Beams, Hypothesis  # noqa: E402

from ...effort import cases  # noqa: E402

VOCAB = 24


def tiny(seed: int, eos: tuple[int, ...], pull: float) -> Any:
    """A random model in float64, whose log-probabilities do not depend on how it is run; `pull` makes eos likelier."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=list(eos),
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    head = torch.nn.Linear(16, VOCAB, bias=True).double()
    head.weight = model.lm_head.weight
    head.bias.data.zero_()
    head.bias.data[list(eos)] = pull
    model.lm_head = head
    return model


def searched(model: Any, prompt: list[int], beams: Beams) -> Beams:
    """Runs a search to its end, computing each live beam from its first token."""
    while not beams.done:
        rows = torch.tensor([prompt + answer for answer in beams.live])
        before = beams.live
        parents = beams.advance(log_probs(model(rows).logits[:, -1]))
        assert beams.live == [[*before[parent], token] for parent, token in parents]
    return beams


def expected(model: Any, prompt: list[int], n: int, **options: Any) -> list[Hypothesis]:
    """What transformers finds, without its padding."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_return_sequences=n,
        pad_token_id=0,
        do_sample=False,
        early_stopping=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    eos = model.config.eos_token_id
    answers = []
    for row, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True):
        end = next((place + 1 for place, token in enumerate(row) if token in eos), options["max_new_tokens"])
        answers.append(Hypothesis(row[:end], score))
    return answers


CASES = list(itertools.product((2, 3, 4, 5), (1, 4, 12), (1.0, 0.0, -1.5)))


@pytest.mark.long
@pytest.mark.parametrize("pull", [0.0, 1.5, 4.0], ids=["eos-rare", "eos-often", "eos-soon"])
@pytest.mark.parametrize("eos", [(3,), (3, 7, 11)], ids=["one-eos", "three-eos"])
def test_equal_to_transformers(eos: tuple[int, ...], pull: float) -> None:
    for seed, (width, max_tokens, penalty) in list(enumerate(CASES))[:: cases(4, 1)]:
        model = tiny(seed, eos, pull)
        prompt = torch.randint(VOCAB, (1 + seed % 5,)).tolist()
        n = 1 + seed % width
        found = searched(model, prompt, Beams(width, max_tokens, frozenset(eos), penalty)).best(n)
        wanted = expected(model, prompt, n, num_beams=width, max_new_tokens=max_tokens, length_penalty=penalty)
        assert [one.tokens for one in found] == [one.tokens for one in wanted], seed
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-4), seed


def test_one_beam_is_greedy() -> None:
    model = tiny(5, (3,), 0.0)
    beams = searched(model, [1, 2], Beams(1, 10, frozenset({3}), 1.0))
    ids = torch.tensor([[1, 2]])
    greedy = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, pad_token_id=0
    )
    assert beams.best(1)[0].tokens == greedy[0, 2:].tolist()


def probs(*rows: list[float]) -> Any:
    """Log-probabilities from probabilities, one row per live beam."""
    return torch.tensor(rows).log()


EOS = frozenset({0})


def test_an_eos_counts_only_among_the_best() -> None:
    beams = Beams(2, 8, EOS, 1.0)
    assert beams.advance(probs([0.2, 0.5, 0.3])) == [(0, 1), (0, 2)]  # eos is third of two
    assert beams.advance(probs([0.1, 0.8, 0.1], [0.1, 0.1, 0.8])) == [(0, 1), (1, 2)]  # third or worse again
    assert [one.tokens for one in beams.best(4)] == [[1, 1], [2, 2]]  # none is finished: these still run
    assert beams.advance(probs([0.5, 0.5, 0.0], [0.5, 0.1, 0.4])) == [(0, 1), (1, 2)]
    assert [one.tokens for one in beams.best(1)] == [[1, 1, 0]]


def test_it_ends_when_no_running_beam_can_get_better() -> None:
    beams = Beams(2, 100, EOS, 0.0)
    assert beams.advance(probs([0.6, 0.3, 0.1])) == [(0, 1), (0, 2)]
    assert not beams.done
    assert beams.advance(probs([0.9, 0.05, 0.05], [0.9, 0.05, 0.05])) == []
    assert beams.done
    assert beams.live == []
    assert [(one.tokens, round(math.exp(one.score), 6)) for one in beams.best(2)] == [([0], 0.6), ([1, 0], 0.27)]
    with pytest.raises(StateError, match="it is done"):
        beams.advance(probs([1.0, 0.0, 0.0]))


def test_at_the_last_token_running_beams_are_answers() -> None:
    beams = Beams(2, 2, EOS, 1.0)
    beams.advance(probs([0.1, 0.6, 0.3]))
    assert beams.advance(probs([0.0, 0.5, 0.5], [0.0, 0.0, 1.0])) == []
    assert beams.done
    assert sorted(one.tokens for one in beams.best(5)) in ([[1, 1], [2, 2]], [[1, 2], [2, 2]], [[1, 1], [1, 2]])


def test_fewer_tokens_than_beams() -> None:
    """Transformers fills up with impossible beams; here there are fewer."""
    beams = Beams(4, 2, frozenset(), 1.0)
    assert beams.advance(probs([0.4, 0.6])) == [(0, 1), (0, 0)]
    beams.advance(probs([0.9, 0.1], [1.0, 0.0]))
    assert [one.tokens for one in beams.best(4)] == [[1, 0], [0, 0], [1, 1]]  # [0, 1] is impossible


def test_no_token_but_eos_is_the_end() -> None:
    beams = Beams(2, 8, EOS, 1.0)
    assert beams.advance(probs([1.0, 0.0])) == []
    assert beams.done
    assert beams.best(2) == [Hypothesis([0], 0.0)]


def test_best_before_the_first_token() -> None:
    assert Beams(2, 8, EOS, 1.0).best(2) == [Hypothesis([], 0.0)]


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, 4), torch.zeros(4), torch.zeros(1, 4).double(), torch.tensor([[0.0, math.nan]])]
)
def test_wrong_log_probabilities(wrong: Any) -> None:
    with pytest.raises(InputError):
        Beams(2, 8, EOS, 1.0).advance(wrong)


@pytest.mark.parametrize(("width", "max_tokens"), [(0, 8), (2, 0)])
def test_nothing_to_search(width: int, max_tokens: int) -> None:
    with pytest.raises(InputError, match="nothing to search"):
        Beams(width, max_tokens, EOS, 1.0)


def test_a_beam_that_could_only_draw_level_ends_the_search() -> None:
    """The best running beam is exactly as good as the worst finished one: that is no improvement."""
    beams = Beams(2, 100, EOS, 0.0)
    assert beams.advance(probs([0.5, 0.25, 0.15, 0.1])) == [(0, 1), (0, 2)]
    rows = probs([0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25])  # [1, 0] ends with 1/8, [1, 1] would go on with it
    assert beams.advance(rows) == [] and beams.done
    assert [one.tokens for one in beams.best(2)] == [[0], [1, 0]]
    assert beams.best(2)[1].score == pytest.approx(math.log(1 / 8))
