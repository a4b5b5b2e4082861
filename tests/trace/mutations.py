"""Valid input, made wrong: values at every limit, deep nesting, and bytes that are lost, doubled or changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

POWERS = (15, 16, 24, 31, 32, 48, 53, 62, 63, 64, 70)
WHOLE = [0, 1, 3, 16, 4096, 10**18, *(1 << power for power in POWERS), 10**400]
FRACTIONS = [0.5, 1.0, -0.0, 1e15, 1.0000001e15, 1e16, 5e-324, 1.7e308, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "x", "x" * 300, "\0", "\ud800", "\xe4\U0001f600", "1", "Infinity"]
LIMITS: list[Any] = [
    *(sign * number + more for number in WHOLE for sign in (1, -1) for more in (-1, 0, 1)),
    *FRACTIONS, *TEXTS, None, True, False, [], {}, [[]], {"": {}}, [None] * 50,
]  # fmt: skip
NUMBERS = [b"0", b"-1", b"1e999", b"-1e-999", b"0x" + b"f" * 40, b"9" * 30, b"9" * 5000, b"NaN", b"Infinity", b"1_0"]
DEPTHS = (3, 60, 300, 900, 960, 990, 1000, 1100, 3000, 100_000)


def deep(draw: Random) -> bytes:
    """Brackets, closed or not, about as deep as readers go and much deeper."""
    depth = draw.choice(DEPTHS)
    opened, closed = draw.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"[{", b"}]")])
    return opened * depth + draw.choice([b"", b"1"]) + closed * draw.choice([depth, depth, 0, depth - 1])


def changed(draw: Random, value: Any) -> Any:
    """The same with one place in it changed; what it was made from stays as it is."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        copy = dict(value)
        name = draw.choice(list(copy))
        act = draw.random()
        if act < 0.7:
            copy[name] = changed(draw, copy[name])
        elif act < 0.8:
            del copy[name]
        elif act < 0.9:
            copy[draw.choice(["", "x", "hash_ids", "prompt", "\ud800", name.upper()])] = draw.choice(LIMITS)
        else:
            copy[name] = copy[draw.choice(list(copy))]
        return copy
    if isinstance(value, list) and value and draw.random() < 0.85:
        items = list(value)
        place = draw.randrange(len(items))
        act = draw.random()
        if act < 0.7:
            items[place] = changed(draw, items[place])
        elif act < 0.8:
            del items[place]
        elif act < 0.9:
            items.insert(place, draw.choice([items[place], draw.choice(LIMITS)]))
        else:
            items *= draw.choice([0, 2, 3, 40])
        return items
    return draw.choice(LIMITS)


def damaged(draw: Random, text: bytes, words: list[bytes]) -> bytes:
    """Bytes lost, doubled, changed, or others in their place; `words` mean something to the reader."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 1, 1, 2, 8, 50]))
        put: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: draw.randbytes(draw.choice([1, 2, 9])),
            lambda: draw.choice(words),
            lambda: draw.choice(NUMBERS),
            lambda: text[start:end] * draw.choice([2, 30]),  # noqa: B023
            lambda: deep(draw),
        ]
        text = text[:start] + draw.choices(put, weights=[4, 4, 6, 3, 2, 0.3])[0]() + text[end:]
    return text if draw.random() < 0.95 else text[: draw.randrange(len(text) + 1)]


def as_json(value: Any) -> bytes:
    """One line of it, numbers of any size."""
    return json.dumps(value, ensure_ascii=True).encode()
