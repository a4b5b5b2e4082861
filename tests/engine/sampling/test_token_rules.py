"""Fields about particular tokens, against what they mean, written plainly; and an engine that obeys them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.core.records.errors import InputError  # noqa: E402
from quire.engine import LLM, EngineConfig, Model, from_module  # noqa: E402
from quire.engine.sampling.edit_logits import edit  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.sampling.sample import NO_TOKEN, sample  # noqa: E402
from quire.engine.sampling.sample_row import SampleRow  # noqa: E402
from quire.engine.sampling.token_logprobs import logprobs_of  # noqa: E402
from quire.engine.sampling.token_rules import TokenRules, bad_word_ids  # noqa: E402

from .. import families  # noqa: E402
from ..steps import assert_exact, finish, open_engine, words  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402
from .test_sample import assert_fits, cut, draws, softmax  # noqa: E402

VOCAB = 24
ENDS = (1, 2)
BAD = [(3,), (4, 5), (4, 4, 6), (7, 7)]


def row_of(fields: dict[str, Any], prompt: list[int], answer: list[int], bad: Any = BAD) -> SampleRow:
    sampling = Sampling(**fields)
    rules = TokenRules(sampling, np.array(prompt, np.int32), ENDS, bad)
    return SampleRow(sampling, 5, 0, len(answer), rules, np.array(answer, np.int32))


def plain(logits: list[float], row: SampleRow, prompt: list[int], bad: Any = BAD) -> list[float]:
    """What vLLM's documentation says of each field, token by token."""
    sampling, answer = row.sampling, row.answer.tolist()
    found = list(logits)
    for token in range(len(found)):
        if sampling.allowed_token_ids is not None and token not in sampling.allowed_token_ids:
            found[token] = -math.inf
        if len(answer) < sampling.min_tokens and token in ENDS:
            found[token] = -math.inf
        for word in bad:
            text = (*answer, token)
            if text[len(text) - len(word) :] == word and len(text) >= len(word):
                found[token] = -math.inf
        found[token] += dict(sampling.biases).get(token, 0.0)
        if token in prompt or token in answer:
            factor = sampling.repetition_penalty
            found[token] = found[token] / factor if found[token] > 0 else found[token] * factor
        found[token] -= sampling.frequency_penalty * answer.count(token)
        found[token] -= sampling.presence_penalty * (token in answer)
    return found


FIELDS: list[dict[str, Any]] = [
    {"min_tokens": 4},
    {"allowed_token_ids": (2, 9, 11)},
    {"logit_bias": {0: 2.5, 11: -100, 23: 1}},
    {"presence_penalty": 1.5},
    {"presence_penalty": -2},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 2, "logit_bias": {4: 3, 9: -3}},
    {"allowed_token_ids": (1, 3, 4, 5, 6), "min_tokens": 9, "logit_bias": {4: -50}, "repetition_penalty": 3},
]
TEXTS: list[tuple[list[int], list[int]]] = [
    ([8, 9, 9, 23], []),
    ([8, 9], [4]),
    ([11, 12, 4, 4], [9, 4, 4]),
    ([4], [9, 9, 9, 9, 7, 7, 10]),
    ([20, 21], list(range(VOCAB))),
]


def test_fields_do_what_they_mean_all_in_one_batch() -> None:
    """Every field behind every text, together: each row is what it would be alone, token by token."""
    rows: list[SampleRow] = []
    wanted = []
    logits = 2 * torch.randn(len(FIELDS) * len(TEXTS), VOCAB, generator=torch.Generator().manual_seed(1))
    for fields in FIELDS:
        for prompt, answer in TEXTS:
            row = row_of(fields, prompt, answer)
            wanted.append(plain(logits[len(rows)].tolist(), row, prompt))
            rows.append(row)
    before = logits.clone()
    edit(logits, list(enumerate(rows)))
    assert torch.allclose(logits, torch.tensor(wanted), atol=1e-5)
    changed = [not torch.equal(one, other) for one, other in zip(logits, before, strict=True)]
    assert sum(changed) > len(rows) // 2
    alone = before.clone()
    for nth, row in enumerate(rows):
        edit(alone[nth : nth + 1], [(0, row)])
    assert torch.equal(alone, logits)


def test_the_most_likely_of_what_is_left() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, 3], logits[:, 9] = 5.0, 4.0
    greedy = row_of({"logit_bias": {10: 1.0}}, [8], [])
    hot = row_of({"logit_bias": {10: 1.0}, "temperature": 1e-4}, [8], [])
    free = SampleRow(Sampling(), 5, 0, 0)
    assert sample(logits, [greedy, free, hot]) == [9, 3, 9]  # 3 is a bad word
    assert logits[0, 3] == 5.0  # the caller's are left alone


def test_fields_that_leave_no_token() -> None:
    nothing = {"allowed_token_ids": ENDS, "min_tokens": 2}
    rows = [row_of(nothing | more, [8], []) for more in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5})]
    assert sample(torch.randn(3, VOCAB), rows) == [NO_TOKEN] * 3
    assert sample(torch.randn(1, VOCAB), [row_of(nothing, [8], [9, 9])])[0] in ENDS


def test_penalties_of_huge_logits_stay_numbers() -> None:
    logits = torch.full((2, VOCAB), 3e38)
    rows = [row_of({"repetition_penalty": 0.01, "temperature": heat}, [8, 9], []) for heat in (0.0, 1.0)]
    assert sample(logits, rows) == [8, sample(logits[1:], rows[1:])[0]] and sample(logits, rows)[1] in (8, 9)


def test_min_p_keeps_what_is_likely_beside_the_most_likely() -> None:
    row = [math.log(prob) for prob in (0.4, 0.3, 0.15, 0.1, 0.05)]
    probs = softmax(row, 1.0)
    assert_fits(draws(row, Sampling(temperature=1.0, min_p=0.3), 5_000), cut(probs, {0, 1, 2}))
    assert set(draws(row, Sampling(temperature=1.0, min_p=1.0), 200)) == {0}
    # of what it left, top_p counts the mass: 0.4 of 0.85 is not half of it
    assert_fits(draws(row, Sampling(temperature=1.0, min_p=0.3, top_p=0.5), 5_000), cut(probs, {0, 1}))
    assert_fits(draws(row, Sampling(temperature=2.0, min_p=0.7), 5_000), cut(softmax(row, 2.0), {0, 1}))
    assert draws(row, Sampling(temperature=1.0, min_p=0.0), 50) == draws(row, Sampling(temperature=1.0), 50)


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2)).bfloat16()
    table = torch.log_softmax(logits.float(), dim=-1)
    found = logprobs_of(logits, [4, int(logits[1].argmax()), 7], [0, 3, VOCAB + 5])
    assert [len(one.top) for one in found] == [0, 3, VOCAB]
    for nth, one in enumerate(found):
        assert one.logprob == table[nth, one.token].item()
        assert one.rank == 1 + int((table[nth] > table[nth, one.token]).sum())
        assert [value for _, value in one.top] == sorted((value for _, value in one.top), reverse=True)
        assert all(value == table[nth, token].item() for token, value in one.top)
    assert found[1].rank == 1 and found[1].top[0] == (found[1].token, found[1].logprob)


# -- bad words as tokens -----------------------------------------------------------------------------------------------


class Words:
    """A tokenizer of a few words."""

    known: ClassVar = {
        "cat": [5],
        " cat": [6],
        "catfish": [5, 8],
        " catfish": [6, 8],
        "dog": [9],
        " dog": [10, 9],
        "": [],
    }

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return self.known[text]


def test_bad_words_stand_at_the_beginning_and_behind_a_space() -> None:
    assert bad_word_ids(["cat"], Words()) == [(5,), (6,)]
    assert bad_word_ids([" catfish", "dog"], Words()) == [(5, 8), (6, 8), (9,)]
    assert bad_word_ids([], None) == []
    with pytest.raises(InputError, match="bad_words: the model has no tokenizer; give their ids a logit_bias of -100"):
        bad_word_ids(["cat"], None)
    with pytest.raises(InputError, match="bad_words: one of them has half a character"):
        bad_word_ids(["cat\ud800"], byte_tokenizer())


# -- an engine ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Model:
    return from_module(families.build("llama"), byte_tokenizer())


RULED: dict[str, dict[str, Any]] = {
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "loose": {"frequency_penalty": -1.0, "repetition_penalty": 0.7, "drafts": 4},  # it repeats itself: drafts hit
    "worn": {"logit_bias": {50: 14.0}, "frequency_penalty": 2.0, "drafts": 4},  # the same token, until it is worn out
    "biased": {"logit_bias": dict.fromkeys(range(20, 40), 3.0), "drafts": 3},
    "several": {"n": 3, "temperature": 0.9, "seed": 4, "min_p": 0.1, "frequency_penalty": 1.0, "logprobs": 2},
    "allowed": {"allowed_token_ids": range(16, 60), "temperature": 1.0, "seed": 1},
    "patient": {"min_tokens": 20},
}


@pytest.mark.parametrize("pages", [16, 60])
@pytest.mark.parametrize("reuse", [True, False])
def test_answers_are_the_same_with_preemption_and_reuse_on_and_off(pages: int, reuse: bool) -> None:
    samplings = [Sampling(max_tokens=24, **_listed(fields)) for fields in RULED.values()]
    scheduling = "fair" if pages == 16 else "fcfs"  # in turns, several answers give way to other requests
    engine = open_engine("llama", pages, reuse=reuse, scheduling=scheduling)
    runs = [engine.submit(words(place % 3, 24), sampling) for place, sampling in enumerate(samplings * 2)]
    finish(engine)
    assert engine.scheduler.num_preemptions or pages > 16  # turns take some seats back in any case
    assert engine.advance.num_accepted
    assert_exact("llama", runs)
    engine.close()


def _listed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, range) else value for name, value in fields.items()}


def test_a_run_without_a_token_left_fails_alone() -> None:
    with open_engine("llama", 60) as engine:
        stuck = engine.submit(words(0, 20), Sampling(allowed_token_ids=list(families.EOS), min_tokens=3, max_tokens=8))
        fine = engine.submit(words(0, 20), Sampling(max_tokens=8))
        finish(engine)
        assert stuck.error == "its fields leave no token to go on with: allow more, or forbid less"
        assert stuck.answers[0].finish == "error" and stuck.answers[0].tokens == []
        assert_exact("llama", [fine])


@pytest.mark.parametrize(
    ("fields", "name"), [({"logit_bias": {256: 1.0}}, "logit_bias"), ({"allowed_token_ids": [4, 256]}, "allowed_token")]
)
def test_token_ids_that_the_model_has_not(fields: dict[str, Any], name: str) -> None:
    with open_engine("llama", 60) as engine:
        with pytest.raises(InputError, match=f"token ids of {name}.*: one of them is 256, the model knows 0 to 255"):
            engine.submit(words(0, 20), Sampling(**fields))
        with pytest.raises(InputError, match="bad_words: the model has no tokenizer"):
            engine.submit(words(0, 20), Sampling(bad_words=["a"]))
        assert engine.step() is None


def test_priority_is_the_order_of_admission() -> None:
    """Lower numbers first, and first come, first served among equals."""
    with open_engine("llama", 60, max_sequences=1) as engine:
        runs = [
            engine.submit(words(40 * nth, 20), Sampling(max_tokens=3, ignore_eos=True, priority=priority))
            for nth, priority in enumerate([5, 0, 5, -1, 0])
        ]
        finish(engine)
        ended = sorted(range(5), key=lambda nth: runs[nth].times.finished)
    assert ended == [3, 1, 4, 0, 2]


def test_who_is_least_urgent_is_preempted() -> None:
    with open_engine("llama", 14) as engine:
        late = Sampling(max_tokens=40, ignore_eos=True, priority=1)
        first = engine.submit(words(0, 30), late)
        second = engine.submit(words(100, 30), Sampling(max_tokens=40, ignore_eos=True))
        finish(engine)
        assert first.num_preemptions and not second.num_preemptions
        assert_exact("llama", [first, second])


def test_an_llm_takes_words_and_gives_logprobs(model: Model) -> None:
    config = EngineConfig(80, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)
    with LLM(model, config=config) as llm:
        (free,) = llm.generate("abc", max_tokens=30, ignore_eos=True)
        word = free.text[12:14]
        assert word.isascii() and len(word.strip()) == 2
        (clean,) = llm.generate("abc", max_tokens=30, ignore_eos=True, bad_words=[word])
        assert word in free.text and word not in clean.text
        (told,) = llm.generate("abc", max_tokens=5, ignore_eos=True, n=2, temperature=1.0, seed=3, logprobs=2)
        assert [[one.token for one in answer] for answer in told.logprobs] == [list(tokens) for tokens in told.tokens]
        assert all(len(one.top) == 2 and one.logprob <= one.top[0][1] for answer in told.logprobs for one in answer)
        assert free.logprobs == ()
        pieces = list(llm.stream("abc", max_tokens=5, ignore_eos=True, n=2, temperature=1.0, seed=3, logprobs=2))
        for nth, answer in enumerate(told.logprobs):
            heard = [one for piece in pieces if piece.answer == nth for one in piece.logprobs]
            assert [(one.token, one.rank) for one in heard] == [(one.token, one.rank) for one in answer]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_changes_no_logit_and_no_token() -> None:
    rows = [row_of(fields | {"temperature": heat}, *text) for fields in FIELDS for text in TEXTS for heat in (0.0, 0.8)]
    rows[3] = rows[3]._replace(mask=np.array([0x00FF0FF0], np.int32))
    logits = 3 * torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(4))
    here, there = logits.clone(), logits.cuda()
    assert sample(there, rows) == sample(here, rows)
    edit(here, list(enumerate(rows)))
    edit(there, list(enumerate(rows)))
    assert torch.allclose(here, there.cpu(), atol=1e-5)
    tokens = [row % VOCAB for row in range(len(rows))]
    both = [logprobs_of(table, tokens, [3] * len(rows)) for table in (logits, logits.cuda())]
    assert [(one.token, one.rank) for one in both[0]] == [(one.token, one.rank) for one in both[1]]
