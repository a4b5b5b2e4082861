"""What a user may ask of an answer."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from quire.core.records.errors import InputError, shown
from quire.engine.sampling.param_checks import LONGEST_STOP, MOST_STOP_IDS, MOST_STOPS
from quire.engine.sampling.params import Sampling


def test_by_default_greedy() -> None:
    sampling = Sampling()
    assert sampling.greedy
    assert (sampling.max_tokens, sampling.n, sampling.beams, sampling.drafts) == (128, 1, 1, 0)
    assert not Sampling(temperature=0.01).greedy


def test_it_is_frozen_and_compares_by_value() -> None:
    assert Sampling(temperature=1) == Sampling(temperature=1.0)
    assert hash(Sampling(stop=("a",))) == hash(Sampling(stop=("a",)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().n = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 1},
        {"temperature": 0.7, "top_p": 0.95, "top_k": 50, "seed": 0},
        {"temperature": 1, "top_p": 1, "seed": 2**64 - 1},
        {"stop": ("\n", "END"), "stop_ids": (0, 7), "ignore_eos": True},
        {"n": 4, "temperature": 2.5},
        {"beams": 4, "n": 4, "length_penalty": -2},
        {"drafts": 8, "ngram": 3, "temperature": 1.0},
        {"min_tokens": 128, "min_p": 1, "logprobs": 0, "include_stop_str_in_output": True, "priority": -5},
        {"allowed_token_ids": tuple(range(4096)), "logit_bias": ((3, -100.0), (7, 100.0)), "logprobs": 20},
        {"presence_penalty": -2, "frequency_penalty": 2.0, "repetition_penalty": 0.01},
        {"bad_words": ("x" * 64,) * 128},
    ],
)
def test_what_can_be_asked(values: dict[str, Any]) -> None:
    assert dataclasses.asdict(Sampling(**values)).items() >= values.items()


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"max_tokens": 3.0},
        {"max_tokens": True},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.0001},
        {"top_p": math.nan},
        {"top_k": -1},
        {"top_k": 2.5},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.0},
        {"stop": ""},
        {"stop": [""]},
        {"stop": {"END"}},
        {"stop": ("",)},
        {"stop": (7,)},
        {"stop_ids": 7},
        {"stop_ids": "7"},
        {"stop_ids": [1.5]},
        {"stop_ids": (-1,)},
        {"stop_ids": ("a",)},
        {"ignore_eos": 1},
        {"n": 0},
        {"beams": 0},
        {"length_penalty": math.inf},
        {"length_penalty": 17.0},
        {"drafts": -1},
        {"ngram": 0},
        {"temperature": 10**400},
        {"temperature": -(10**5000)},
        {"temperature": None},
        {"temperature": True},
        {"temperature": 1j},
        {"top_p": 10**400},
        {"length_penalty": 10**400},
        {"max_tokens": 10**5000},
        {"max_tokens": None},
        {"top_k": 1 << 31},
        {"n": 1025},
        {"beams": 10**400},
        {"drafts": 1 << 40},
        {"ngram": 65},
        {"seed": 10**5000},
        {"stop": None},
        {"stop": b"END"},
        {"stop_ids": (1 << 70,)},
        {"stop_ids": (True,)},
        {"min_tokens": -1},
        {"min_tokens": 129},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
        {"logit_bias": 7},
        {"logit_bias": {"7": 1.0}},
        {"logit_bias": {7: "much"}},
        {"logit_bias": {7: 101}},
        {"logit_bias": {-1: 1}},
        {"logit_bias": {True: 1}},
        {"logit_bias": [7, 8]},
        {"logit_bias": {7: math.nan}},
        {"allowed_token_ids": ()},
        {"allowed_token_ids": 7},
        {"allowed_token_ids": (-1,)},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": None},
        {"repetition_penalty": 0},
        {"repetition_penalty": 101},
        {"repetition_penalty": 10**400},
        {"bad_words": ("",)},
        {"bad_words": (" ",)},
        {"bad_words": (7,)},
        {"logprobs": -1},
        {"logprobs": 21},
        {"logprobs": True},
        {"include_stop_str_in_output": 1},
        {"priority": 1.0},
        {"priority": 1 << 31},
    ],
    ids=lambda values: next(f"{name}-{shown(value)[:20]}" for name, value in values.items()),
)
def test_what_cannot_be_asked(values: dict[str, Any]) -> None:
    [name] = values
    with pytest.raises(InputError, match=f"sampling: {name} is .*; give ") as told:
        Sampling(**values)
    assert len(str(told.value)) < 200


def test_stops_are_few_and_short() -> None:
    """Every token of every answer is compared with them, in the engine's thread."""
    Sampling(stop=("x" * LONGEST_STOP,) * MOST_STOPS, stop_ids=tuple(range(MOST_STOP_IDS)))
    with pytest.raises(InputError, match="a stop string has 200000 characters; give strings of at most 256"):
        Sampling(stop=("a", "x" * 200_000))
    with pytest.raises(InputError, match="stop has 17 strings; give at most 16"):
        Sampling(stop=("x",) * (MOST_STOPS + 1))
    with pytest.raises(InputError, match="stop_ids has 257 ids; give at most 256"):
        Sampling(stop_ids=tuple(range(MOST_STOP_IDS + 1)))
    with pytest.raises(InputError, match="logit_bias has 301 tokens; give at most 300"):
        Sampling(logit_bias=dict.fromkeys(range(301), 1.0))
    with pytest.raises(InputError, match="allowed_token_ids has 4097 ids; give at most 4096"):
        Sampling(allowed_token_ids=range(4097))
    with pytest.raises(InputError, match="bad_words has 129 strings; give at most 128"):
        Sampling(bad_words=["x"] * 129)
    with pytest.raises(InputError, match="a string of bad_words has 65 characters; give strings of at most 64"):
        Sampling(bad_words=["x" * 65])
    with pytest.raises(InputError, match="sampling: a stop string: character 1 of it is half of a pair"):
        Sampling(stop="x\ud800")
    with pytest.raises(InputError, match="sampling: a string of bad_words: character 0 of it is half of a pair"):
        Sampling(bad_words=["\ud800"])
    with pytest.raises(InputError, match="beam search ends on tokens") as told:
        Sampling(beams=2, stop=("x" * LONGEST_STOP,) * MOST_STOPS)
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"temperature": 0.5}, "temperature is 0.5"),
        ({"n": 3}, "n is 3"),
        ({"drafts": 2}, "drafts is 2"),
        ({"min_tokens": 2}, "min_tokens is 2; beams are weighed by the model's own numbers: leave min_tokens out"),
        ({"min_p": 0.5}, "min_p is 0.5"),
        ({"logit_bias": {3: 1}}, "logit_bias is"),
        ({"allowed_token_ids": [3]}, "allowed_token_ids is"),
        ({"presence_penalty": 1}, "presence_penalty is 1"),
        ({"frequency_penalty": 1}, "frequency_penalty is 1"),
        ({"repetition_penalty": 2}, "repetition_penalty is 2"),
        ({"bad_words": "no"}, "bad_words is"),
        ({"logprobs": 0}, "logprobs is 0"),
    ],
)
def test_what_beam_search_leaves_out(values: dict[str, Any], fact: str) -> None:
    with pytest.raises(InputError, match=f"sampling with beams 2: {fact}"):
        Sampling(beams=2, **values)


def test_one_stop_string_and_lists() -> None:
    """They become what a frozen record keeps: tuples, so that it can be hashed and compared."""
    one = Sampling(stop="END", stop_ids=[3, 4])
    assert (one.stop, one.stop_strings, one.stop_ids) == (("END",), ("END",), (3, 4))
    assert one == Sampling(stop=["END"], stop_ids=(3, 4)) and len({one, Sampling(stop=("END",), stop_ids=[3, 4])}) == 1
    assert dataclasses.replace(one, stop="x").stop == ("x",) and repr(one) == "Sampling(stop=<1>, stop_ids=<2>)"


def test_token_fields_as_they_are_kept() -> None:
    one = Sampling(logit_bias={9: 1, 3: -2.5}, bad_words="no", allowed_token_ids=range(3))
    assert one.biases == one.logit_bias == ((3, -2.5), (9, 1.0))
    assert (one.bad_words, one.allowed_token_ids) == (("no",), (0, 1, 2))
    same = Sampling(logit_bias=[(3, -2.5), (9, 1.0)], bad_words=["no"], allowed_token_ids=[0, 1, 2])
    assert one == same and len({one, same}) == 1 and dataclasses.replace(one, n=2).biases == one.biases
    assert repr(one) == "Sampling(logit_bias=<2>, allowed_token_ids=<3>, bad_words=<1>)"
    assert one.edits_logits and not Sampling(min_p=0.5, logprobs=3, priority=2, temperature=1.0).edits_logits


def test_the_page_about_sampling_has_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sampling.md").read_text(encoding="utf-8")
    first_cells = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    told = re.findall(r"`(\w+)`", first_cells)
    assert sorted(told) == sorted(one.name for one in dataclasses.fields(Sampling))
