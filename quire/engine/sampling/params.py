"""Sampling: what a user asks of an answer. Owns the record; bounds are in `param_checks.py`. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from quire.core.records.caller_arguments import keep_tuples
from quire.core.records.errors import InputError, say, shown
from quire.engine.sampling import param_checks as checks
from quire.engine.sampling.param_checks import LARGEST, wrong
from quire.engine.structured_outputs.structured_outputs import StructuredOutputs

_WHOLE = {  # least and most
    "max_tokens": (1, LARGEST), "top_k": (0, LARGEST), "n": (1, checks.MOST), "beams": (1, checks.MOST),
    "drafts": (0, LARGEST), "ngram": (1, checks.LONGEST_NGRAM), "min_tokens": (0, LARGEST),
    "priority": (-LARGEST, LARGEST),
}  # fmt: skip
_SWITCHES = ("ignore_eos", "include_stop_str_in_output")
_EDITS = (  # fields that change logits before a token is chosen
    "min_tokens", "logit_bias", "allowed_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "bad_words",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, and when an answer ends. By default greedy, one answer, 128 tokens at most."""

    max_tokens: int = 128
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # the most likely tokens that together have this mass; 1: all
    top_k: int = 0  # so many of the most likely tokens; 0: all
    seed: int | None = None  # None: drawn by the engine when temperature > 0
    stop: str | Sequence[str] = ()  # the answer ends before the first of them; at most 16, of 256 characters each
    stop_ids: Sequence[int] = ()  # they end the answer, as the model's eos does, and are its last token; at most 256
    ignore_eos: bool = False
    n: int = 1  # answers, by fork; with beams: the n best
    beams: int = 1  # > 1: beam search
    length_penalty: float = 1.0  # beam search: scores are divided by length ** length_penalty
    drafts: int = 0  # prompt-lookup speculation: at most so many draft tokens per step
    ngram: int = 2  # longest n-gram looked up; at most 64
    min_tokens: int = 0  # before so many tokens nothing ends the answer: no eos, no stop id, no stop string
    min_p: float = 0.0  # tokens at least so likely, relative to the most likely one; 0: all
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()  # added to logits; at most 300, -100 to 100
    allowed_token_ids: Sequence[int] | None = None  # no other tokens; at most 4096. None: all
    presence_penalty: float = 0.0  # -2 to 2, taken from the logits of tokens that the answer has
    frequency_penalty: float = 0.0  # -2 to 2, as often as it has them
    repetition_penalty: float = 1.0  # logits of tokens in prompt or answer are divided by it, negative ones multiplied
    bad_words: Sequence[str] = ()  # an answer has none of them; at most 128, of 64 characters each
    logprobs: int | None = None  # log-probabilities of the tokens, and of so many of the most likely; at most 20
    include_stop_str_in_output: bool = False  # the answer ends behind its stop string, not before it
    structured_outputs: StructuredOutputs | None = None  # the form of the answer: a JSON schema, a regex, a choice
    priority: int = 0  # which of a tenant's requests is scheduled first: lower numbers, then first come, first served

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words", "allowed_token_ids"):
            if isinstance(given := getattr(self, name), str | range):
                object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        keep_tuples(self, "stop", "stop_ids", "bad_words", "allowed_token_ids")
        for name, (least, most) in _WHOLE.items():
            checks.check_whole(name, getattr(self, name), least, most)
        for name in _SWITCHES:
            checks.check_switch(name, getattr(self, name))
        _check_numbers(self)
        _check_tokens(self)
        if self.beams > 1:
            _check_beams(self)

    def __repr__(self) -> str:
        """What differs from a plain one; strings are a user's words, and only counted."""
        counted = ("stop", "stop_ids", "logit_bias", "bad_words", "allowed_token_ids")
        return brief(self, **{name: f"<{len(getattr(self, name) or ())}>" for name in counted})

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop`, as it is kept."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias`, as it is kept: by token id."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without chance."""
        return self.temperature == 0

    @property
    def edits_logits(self) -> bool:
        """Whether some field changes logits before a token is chosen."""
        return any(getattr(self, name) != _PLAIN[name] for name in _EDITS)


_PLAIN: dict[str, Any] = {one.name: one.default for one in fields(Sampling)}


def _check_numbers(sampling: Sampling) -> None:
    """Numbers within their bounds."""
    if not checks.is_real(sampling.temperature) or sampling.temperature < 0:
        raise wrong("temperature", sampling.temperature, "a number >= 0; 0 is greedy")
    if not checks.is_real(sampling.top_p) or not 0 < sampling.top_p <= 1:
        raise wrong("top_p", sampling.top_p, "a number with 0 < top_p <= 1")
    checks.check_between("length_penalty", sampling.length_penalty, -checks.STEEPEST, checks.STEEPEST)
    checks.check_between("min_p", sampling.min_p, 0, 1)
    for name in ("presence_penalty", "frequency_penalty"):
        checks.check_between(name, getattr(sampling, name), -checks.STRONGEST_PENALTY, checks.STRONGEST_PENALTY)
    repetition, most = sampling.repetition_penalty, checks.STRONGEST_REPETITION
    if not checks.is_real(repetition) or not 0.01 <= repetition <= most:
        raise wrong("repetition_penalty", repetition, f"a number between 0.01 and {most:g}; 1 is none")
    if sampling.seed is not None and (type(sampling.seed) is not int or not 0 <= sampling.seed < checks.SEEDS):
        raise wrong("seed", sampling.seed, "a whole number with 0 <= seed < 2**64, or None")
    if sampling.logprobs is not None:
        checks.check_whole("logprobs", sampling.logprobs, 0, checks.MOST_LOGPROBS)
    if sampling.min_tokens > sampling.max_tokens:
        raise wrong("min_tokens", sampling.min_tokens, f"at most max_tokens, which is {sampling.max_tokens}")


def _check_tokens(sampling: Sampling) -> None:
    """Strings and token ids: as many as every token of every answer may be compared with."""
    checks.check_strings("stop", sampling.stop, checks.MOST_STOPS, checks.LONGEST_STOP)
    checks.check_ids("stop_ids", sampling.stop_ids, checks.MOST_STOP_IDS)
    checks.check_strings("bad_words", sampling.bad_words, checks.MOST_BAD_WORDS, checks.LONGEST_BAD_WORD)
    if any(not word.strip() for word in sampling.bad_words):
        raise wrong("bad_words", sampling.bad_words, "words, not only spaces")
    object.__setattr__(sampling, "logit_bias", checks.bias_pairs(sampling.logit_bias))
    if not isinstance(sampling.structured_outputs, StructuredOutputs | None):
        cure = 'StructuredOutputs(json=...), or regex=, or choice=["yes", "no"]'
        raise wrong("structured_outputs", sampling.structured_outputs, cure)
    if sampling.allowed_token_ids is not None:
        checks.check_ids("allowed_token_ids", sampling.allowed_token_ids, checks.MOST_ALLOWED)
        if not sampling.allowed_token_ids:
            raise wrong("allowed_token_ids", (), "at least one token id, or None for all")


def _check_beams(sampling: Sampling) -> None:
    """Beam search leaves nothing to chance and drafts nothing; its answers are beams."""
    ask = f"sampling with beams {sampling.beams}"
    if not sampling.greedy:
        raise InputError(say(ask, f"temperature is {sampling.temperature}", "beam search needs temperature 0"))
    if sampling.n > sampling.beams:
        raise InputError(say(ask, f"n is {sampling.n}", "ask for at most as many answers as beams"))
    if sampling.stop:
        raise InputError(say(ask, f"stop is {shown(sampling.stop)}", "beam search ends on tokens: use stop_ids"))
    if sampling.drafts:
        raise InputError(say(ask, f"drafts is {sampling.drafts}", "beam search needs drafts 0"))
    for name in (*_EDITS, "min_p", "logprobs", "structured_outputs"):
        if (value := getattr(sampling, name)) != _PLAIN[name]:
            cure = f"beams are weighed by the model's own numbers: leave {name} out"
            raise InputError(say(ask, f"{name} is {shown(value)}", cure))


def checked_sampling(sampling: object) -> Sampling:
    """The Sampling itself; anything else is refused before something is queued."""
    if not isinstance(sampling, Sampling):
        raise InputError(
            say("submit", f"sampling is {shown(sampling)}", "pass a Sampling, or its fields as keywords: max_tokens=64")
        )
    return sampling


def brief(record: Any, **instead: str) -> str:
    """A record by the fields that differ from their default; `instead` shows some in other words."""
    changed = {one.name: getattr(record, one.name) for one in fields(record)}
    changed = {one.name: changed[one.name] for one in fields(record) if changed[one.name] != one.default}
    parts = [f"{name}={instead.get(name, repr(value))}" for name, value in changed.items()]
    return f"{type(record).__name__}({', '.join(parts)})"
