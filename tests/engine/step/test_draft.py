"""Drafts by prompt lookup, against a plain search."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.records.request import Int32
from quire.engine.step.draft import lookup


def plain(tokens: list[int], count: int, ngram: int) -> list[int]:
    """The same by trying every place, the longest n-gram first and from the end."""
    for size in range(min(ngram, len(tokens) - 1), 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                draft = list(tokens)
                for place in range(start + size, start + size + count):
                    draft.append(draft[place])  # as a copy that may run into what it writes
                return draft[len(tokens) :]
    return []


@pytest.mark.parametrize(
    ("tokens", "ngram", "draft"),
    [
        ([1, 2, 3, 4, 5, 1, 2], 2, [3, 4, 5]),
        ([1, 2, 3, 9, 2, 7, 7, 1, 2], 2, [3, 9, 2]),  # the longer match, although an older one
        ([1, 2, 3, 9, 2, 7, 7, 1, 2], 1, [7, 7, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, [4, 1, 2]),  # the most recent of two
        ([8, 2, 3, 4, 5, 1, 2], 2, [3, 4, 5]),  # no bigram: a single token
        ([1, 2, 1, 2, 1], 3, [2, 1, 2]),  # a context that repeats goes on repeating
        ([7, 7], 2, [7, 7, 7]),
        ([1, 2, 3, 4], 2, []),
        ([1], 2, []),
        ([], 2, []),
    ],
)
def test_cases(tokens: list[int], ngram: int, draft: list[int]) -> None:
    found = lookup(np.array(tokens, np.int32), 3, ngram)
    assert found.dtype == np.int32
    assert found.tolist() == draft


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 8), st.integers(1, 5))
def test_equal_to_a_plain_search(tokens: list[int], count: int, ngram: int) -> None:
    assert lookup(np.array(tokens, np.int32), count, ngram).tolist() == plain(tokens, count, ngram)


def test_it_leaves_the_context_alone() -> None:
    tokens = np.array([1, 2, 3, 1, 2], np.int32)
    tokens.flags.writeable = False
    assert lookup(tokens, 2, 2).tolist() == [3, 1]


def lines_run(tokens: Int32) -> int:
    """Lines of Python that one lookup takes."""
    before, lines = sys.gettrace(), 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        lookup(tokens, 8, 2)
    finally:
        sys.settrace(before)
    return lines


def test_no_python_per_token() -> None:
    """A long context is searched by NumPy: as many lines run as for a short one."""
    rng = np.random.default_rng(0)
    counts = []
    for length in (256, 1 << 16):
        tokens = rng.integers(0, 100, length).astype(np.int32)
        tokens[-2:] = tokens[100:102]
        counts.append(lines_run(tokens))
    assert counts[0] == counts[1] < 30
