"""Token rules: what a Sampling says about particular tokens, as ids of one model. Owns bad words; changes no logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, say
from quire.core.records.request import Int32
from quire.engine.sampling.params import Sampling

NO_IDS: Int32 = np.empty(0, np.int32)
Ids = tuple[int, ...]


class TokenRules:
    """Those of one run; nothing of it changes, so all its answers share it."""

    __slots__ = ("_bad", "_bad_behind", "_ends", "allowed", "bias", "bias_ids", "prompt_ids", "sampling")

    def __init__(self, sampling: Sampling, prompt: Int32, ends: Iterable[int], bad_words: Iterable[Ids] = ()) -> None:
        self.sampling = sampling
        repeats = sampling.repetition_penalty != 1
        self.prompt_ids = np.unique(prompt) if repeats else NO_IDS  # what the answer shall not repeat
        allowed = sampling.allowed_token_ids
        self.allowed = None if allowed is None else np.unique(np.array(allowed, np.int32))
        self.bias_ids = np.array([token for token, _ in sampling.biases], np.int32)
        self.bias = np.array([amount for _, amount in sampling.biases], np.float32)
        self._ends = list(ends) if sampling.min_tokens else []
        self._bad: list[int] = []  # bad words of one token
        self._bad_behind: dict[int, list[Ids]] = {}  # longer ones, by their last token but one
        for word in bad_words:
            if len(word) == 1:
                self._bad.append(word[0])
            else:
                self._bad_behind.setdefault(word[-2], []).append(word)

    @property
    def count(self) -> bool:
        """Whether they ask how often tokens stand in an answer."""
        sampling = self.sampling
        return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)

    def forbidden(self, answer: Int32) -> list[int]:
        """What may not come behind this answer: it would end it too early, or complete a bad word."""
        banned = self._bad + self._ends if len(answer) < self.sampling.min_tokens else self._bad
        if self._bad_behind and len(answer):
            words = self._bad_behind.get(int(answer[-1]), ())
            banned = banned + [word[-1] for word in words if tuple(answer[1 - len(word) :].tolist()) == word[:-1]]
        return banned


def rules_of(sampling: Sampling, prompt: Int32, eos_ids: frozenset[int], tokenizer: Any) -> TokenRules | None:
    """Rules of a run; None when it has none."""
    if not sampling.edits_logits:
        return None
    ends = {*sampling.stop_ids, *(() if sampling.ignore_eos else eos_ids)}
    return TokenRules(sampling, prompt, sorted(ends), bad_word_ids(sampling.bad_words, tokenizer))


def bad_word_ids(words: Sequence[str], tokenizer: Any) -> list[Ids]:
    """Each word as token ids, at the beginning of a text and, where that is another token, behind a space."""
    if words and tokenizer is None:
        raise InputError(say("bad_words", "the model has no tokenizer", "give their ids a logit_bias of -100"))
    encodings: list[Ids] = []
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InputError(say("bad_words", "one of them has half a character", "give whole ones"))
        plain = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        if plain:
            encodings.append(plain)
        if spaced and spaced[:1] != plain[:1] and len(spaced) == len(plain):
            encodings.append(spaced)
    return encodings


def check_ids(sampling: Sampling, vocabulary: int) -> None:
    """Token ids that a Sampling names are ids of the model."""
    for name, ids in (
        ("logit_bias", [token for token, _ in sampling.biases]),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):
        if ids and max(ids) >= vocabulary:
            fact = f"one of them is {max(ids)}, the model knows 0 to {vocabulary - 1}"
            raise InputError(say(f"token ids of {name}", fact, "use the model's own tokenizer"))
