"""Sampling: what a user asks of an answer. Owns the record and its checks; knows no model, no logits and no text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from quire.core.records.errors import InputError, say, shown
from quire.core.records.tuples import keep_tuples

SEEDS = 1 << 64
MOST = 1024  # answers to one prompt
LARGEST = (1 << 31) - 1  # other whole numbers
STEEPEST = 16.0  # length penalties beyond it say nothing, and could overflow
MOST_STOPS = 16  # stop strings
LONGEST_STOP = 256  # characters of one
MOST_STOP_IDS = 256
LONGEST_NGRAM = 64

_LEAST = {"max_tokens": 1, "top_k": 0, "n": 1, "beams": 1, "drafts": 0, "ngram": 1}
_MOST = {"n": MOST, "beams": MOST, "ngram": LONGEST_NGRAM}


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

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        keep_tuples(self, "stop", "stop_ids")
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise _wrong(name, number, f"a whole number >= {least}")
            if number > (most := _MOST.get(name, LARGEST)):
                raise _wrong(name, number, f"at most {most}")
        _check_numbers(self)
        _check_stops(self)
        if type(self.ignore_eos) is not bool:
            raise _wrong("ignore_eos", self.ignore_eos, "True or False")
        if self.beams > 1:
            _check_beams(self)

    def __repr__(self) -> str:
        """What differs from a plain one; stop strings are a user's words, and only counted."""
        return brief(self, stop=f"<{len(self.stop)}>", stop_ids=f"<{len(self.stop_ids)}>")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop`, as it is kept."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without chance."""
        return self.temperature == 0


def _check_numbers(sampling: Sampling) -> None:
    """Temperature, top_p, length_penalty and seed are numbers within their bounds."""
    if not _real(sampling.temperature) or sampling.temperature < 0:
        raise _wrong("temperature", sampling.temperature, "a number >= 0; 0 is greedy")
    if not _real(sampling.top_p) or not 0 < sampling.top_p <= 1:
        raise _wrong("top_p", sampling.top_p, "a number with 0 < top_p <= 1")
    if not _real(sampling.length_penalty) or abs(sampling.length_penalty) > STEEPEST:
        raise _wrong("length_penalty", sampling.length_penalty, f"a number between {-STEEPEST:g} and {STEEPEST:g}")
    if sampling.seed is not None and (type(sampling.seed) is not int or not 0 <= sampling.seed < SEEDS):
        raise _wrong("seed", sampling.seed, "a whole number with 0 <= seed < 2**64, or None")


def _check_stops(sampling: Sampling) -> None:
    """Stop strings and stop ids, as many as every token of every answer may be compared with."""
    stops, ids = sampling.stop, sampling.stop_ids
    if not _tuple_of(str, stops) or "" in stops:
        raise _wrong("stop", stops, "a string or a list of strings, none of them empty")
    if len(stops) > MOST_STOPS:
        raise InputError(say("sampling", f"stop has {len(stops)} strings", f"give at most {MOST_STOPS}"))
    if (longest := max(map(len, stops), default=0)) > LONGEST_STOP:
        fact = f"a stop string has {longest} characters"
        raise InputError(say("sampling", fact, f"give strings of at most {LONGEST_STOP}"))
    if not _tuple_of(int, ids) or not 0 <= min(ids, default=0) <= max(ids, default=0) <= LARGEST:
        raise _wrong("stop_ids", ids, "a list of token ids")
    if len(ids) > MOST_STOP_IDS:
        raise InputError(say("sampling", f"stop_ids has {len(ids)} ids", f"give at most {MOST_STOP_IDS}"))


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


def _real(number: object) -> bool:
    if not isinstance(number, int | float) or isinstance(number, bool):
        return False
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False


def _tuple_of(kind: type, things: object) -> bool:
    return isinstance(things, tuple) and all(type(thing) is kind for thing in things)


def _wrong(name: str, value: object, cure: str) -> InputError:
    return InputError(say("sampling", f"{name} is {shown(value)}", f"give {cure}"))


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
