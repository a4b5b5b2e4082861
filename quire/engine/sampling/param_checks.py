"""Sampling checks: bounds of what a user may ask of an answer, and errors that name them. Knows fields, not the record.

The bounds are there so that no request can make a step slow for the others: each is what one row may cost.
"""

from __future__ import annotations

import math
from typing import Any

from quire.core.records.errors import InputError, check_text, say, shown

SEEDS = 1 << 64
MOST = 1024  # answers to one prompt
LARGEST = (1 << 31) - 1  # other whole numbers
STEEPEST = 16.0  # length penalties beyond it say nothing, and could overflow
MOST_STOPS = 16  # stop strings
LONGEST_STOP = 256  # characters of one
MOST_STOP_IDS = 256
LONGEST_NGRAM = 64
MOST_BIASES = 300
STRONGEST_BIAS = 100.0
MOST_ALLOWED = 4096  # token ids
MOST_BAD_WORDS = 128
LONGEST_BAD_WORD = 64  # characters
MOST_LOGPROBS = 20
STRONGEST_PENALTY = 2.0  # of presence and frequency, up and down
STRONGEST_REPETITION = 100.0


def check_whole(name: str, number: Any, least: int, most: int = LARGEST) -> None:
    """A whole number within its bounds."""
    if type(number) is not int or number < least:
        raise wrong(name, number, f"a whole number >= {least}")
    if number > most:
        raise wrong(name, number, f"at most {most}")


def check_between(name: str, number: Any, least: float, most: float) -> None:
    """A number within its bounds, which belong to it."""
    if not is_real(number) or not least <= number <= most:
        raise wrong(name, number, f"a number between {least:g} and {most:g}")


def check_switch(name: str, value: object) -> None:
    """True or False, and nothing like it."""
    if type(value) is not bool:
        raise wrong(name, value, "True or False")


def check_strings(name: str, strings: Any, most: int, longest: int) -> None:
    """A few short strings, none of them empty."""
    if not is_tuple_of(str, strings) or "" in strings:
        raise wrong(name, strings, "a string or a list of strings, none of them empty")
    for one in strings:
        check_text(one, f"sampling: a {'stop string' if name == 'stop' else f'string of {name}'}")
    if len(strings) > most:
        raise InputError(say("sampling", f"{name} has {len(strings)} strings", f"give at most {most}"))
    if (length := max(map(len, strings), default=0)) > longest:
        fact = f"a {'stop string' if name == 'stop' else f'string of {name}'} has {length} characters"
        raise InputError(say("sampling", fact, f"give strings of at most {longest}"))


def check_ids(name: str, ids: Any, most: int) -> None:
    """A list of token ids, not too many; the engine knows which of them the model has."""
    if not is_tuple_of(int, ids) or not 0 <= min(ids, default=0) <= max(ids, default=0) <= LARGEST:
        raise wrong(name, ids, "a list of token ids")
    if len(ids) > most:
        raise InputError(say("sampling", f"{name} has {len(ids)} ids", f"give at most {most}"))


def bias_pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    """`logit_bias` as a frozen record keeps it: pairs by token id."""
    try:
        pairs = dict(bias)  # a mapping, or pairs
    except (TypeError, ValueError):
        raise wrong("logit_bias", bias, "token ids with what is added to their logits: {42: -100}") from None
    if len(pairs) > MOST_BIASES:
        raise InputError(say("sampling", f"logit_bias has {len(pairs)} tokens", f"give at most {MOST_BIASES}"))
    for token, amount in pairs.items():
        if type(token) is not int or not 0 <= token <= LARGEST or not is_real(amount):
            raise wrong("logit_bias", bias, "token ids with what is added to their logits: {42: -100}")
        if abs(amount) > STRONGEST_BIAS:
            raise wrong("logit_bias", bias, f"numbers between {-STRONGEST_BIAS:g} and {STRONGEST_BIAS:g}")
    return tuple(sorted((token, float(amount)) for token, amount in pairs.items()))


def is_real(number: object) -> bool:
    """A finite number, and no bool."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        return False
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False


def is_tuple_of(kind: type, things: object) -> bool:
    """Nothing but things of that very kind."""
    return isinstance(things, tuple) and all(type(thing) is kind for thing in things)


def wrong(name: str, value: object, cure: str) -> InputError:
    """One field that cannot be."""
    return InputError(say("sampling", f"{name} is {shown(value)}", f"give {cure}"))
