"""The checker of fields agrees with a real JSON schema validator, and says what is wrong with the nearest choice."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serve.protocol.fields import Fields
from quire.serve.protocol.schema import fault_of
from quire.serve.protocol.tables import CHAT, COMPLETION, DETOKENIZE, TOKENIZE

LEAVES = (
    st.none() | st.booleans() | st.integers(-5, 150) | st.floats(-3, 3) | st.sampled_from(["", "a", "function", "text"])
)
NAMES = st.sampled_from(["type", "function", "name", "json_schema", "schema", "role", "content", "seconds", "65"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
SCHEMAS = [
    (name, field.schema)
    for table in (CHAT, COMPLETION, TOKENIZE, DETOKENIZE)
    for name, field in table.items()
    if field.use == "works"
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=VALUES)
def test_it_agrees_with_a_real_validator(value: Any) -> None:
    real = pytest.importorskip("jsonschema_rs")
    for name, schema in SCHEMAS:
        assert (fault_of(value, schema, name) is None) == real.is_valid(schema, value), (name, value)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("prompt", ["x"] * 129, ("prompt", "it has 129 entries", "give at most 128")),
        ("prompt", 5, ("prompt", "it is 5", "give a string; or give a list")),
        ("prompt", [[1], [-2]], ("prompt[1][0]", "it is -2", "give at least 0")),
        ("stop", ["a", ""], ("stop[1]", "it has 0 characters", "give at least 1")),
        ("tool_choice", "never", ("tool_choice", "it is 'never'", "give one of none, auto, required")),
        ("response_format", {"type": "json_schema"}, ("response_format.json_schema", "it is missing", "give it")),
        ("n", 129, ("n", "it is 129", "give at most 128")),
        ("n", 0, ("n", "it is 0", "give at least 1")),
        ("top_p", 0, ("top_p", "it is 0", "give more than 0")),
        ("temperature", True, ("temperature", "it is True", "give a number")),
    ],
)
def test_it_says_what_is_wrong_with_the_nearest_choice(name: str, value: Any, told: tuple[str, str, str]) -> None:
    fault = fault_of(value, (CHAT.get(name) or COMPLETION[name]).schema, name)
    assert fault is not None and fault[:3] == told


def test_numbers_without_end_are_none() -> None:
    for value in (float("inf"), float("nan")):
        assert fault_of(value, CHAT["temperature"].schema, "temperature") is not None


def _value(dice: random.Random, depth: int = 0) -> Any:
    """Some JSON, near to what fields take."""
    plain = (
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        1.0,
        0.5,
        2.5,
        -0.0,
        1e300,
        math.nan,
        math.inf,
        2**63,
        "",
        "a",
        "text",
        "function",
        "x" * 300,
    )
    kind = dice.randrange(4 if depth < 4 else 2)
    if kind == 2:
        return [_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 3:
        names = ("type", "text", "role", "content", "function", "name", "json_schema", "schema", "seconds", "other")
        return {dice.choice(names): _value(dice, depth + 1) for _ in range(dice.randrange(4))}
    return dice.choice(plain)


@pytest.mark.parametrize("fields", [CHAT, COMPLETION, TOKENIZE, DETOKENIZE])
def test_a_value_fits_exactly_where_no_fault_is_found(fields: Fields) -> None:
    dice, both = random.Random(0), Counter[bool]()
    for name, field in fields.items():
        if field.use == "refused":
            continue
        for _ in range(400):
            value = _value(dice)
            said = fault_of(value, field.schema, name) is None
            assert fields.fits[name](value) is said, (name, value)
            both[said] += 1
    assert min(both[True], both[False]) > 20
