"""Stop strings: the automaton against a plain search, and how much it works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine.loop import stops as stops_file
from quire.engine.loop import text as text_file
from quire.engine.loop.stops import ROOT, Stops
from quire.engine.loop.text import Transcript
from quire.engine.sampling.param_checks import LONGEST_STOP, MOST_STOPS
from quire.engine.sampling.params import Sampling
from tests.effort import cases

from ..words import byte_tokenizer

LETTERS = "ab🙂é\n"
TEXTS = st.text(LETTERS, max_size=40)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=6).map(tuple)


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, int] | None:
    """End and length of the stop that is complete first, of several the longest."""
    for end in range(len(text) + 1):
        if found := [len(stop) for stop in stops if text[:end].endswith(stop)]:
            return end, max(found)
    return None


def may_begin(text: str, stops: tuple[str, ...]) -> int:
    """Characters at the end that a stop begins with."""
    return max(size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size]))


@pytest.mark.long
@settings(deadline=None, max_examples=cases(35, 100))
@given(st.text("ab", max_size=20), STOPS, st.integers(0, 12), st.booleans())
def test_stops_count_behind_the_first_tokens(text: str, stops: tuple[str, ...], least: int, shows: bool) -> None:
    """One that is complete with a later token counts, wherever it begins."""
    words = byte_tokenizer()
    transcript = Transcript(words, stops, min_tokens=least, shows_stop=shows)
    transcript.add(words(text)["input_ids"])
    ends = range(least + 1, len(text) + 1)
    found = next((end for end in ends if text[:end].endswith(stops)), None)
    assert transcript.stopped == (found is not None)
    if found is None:
        assert transcript.text + transcript.end() == text
    else:
        length = max(len(stop) for stop in stops if text[:found].endswith(stop))
        assert transcript.text == text[: found if shows else found - length] and transcript.count == found


@pytest.mark.long
@settings(deadline=None, max_examples=cases(100, 300))
@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=6))
def test_equal_to_a_plain_search(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    """In whatever parts the text comes: the same stop, and until then the same characters are held back."""
    automaton, node, read = Stops(stops), ROOT, ""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in pairwise(edges):
        node, found = automaton.read(node, text[start:end])
        wanted = first_stop(text[:end], stops)
        if wanted is None:
            assert found is None and automaton.depth(node) == may_begin(text[:end], stops)
            read = text[:end]
        else:
            assert found is not None and (len(read) + found[0], found[1]) == wanted
            return


@pytest.mark.parametrize(
    ("stops", "text", "found"),
    [
        (("she", "he"), "ushers", (4, 3)),
        (("he", "hers"), "ushers", (4, 2)),
        (("abab", "bac"), "ababac", (4, 4)),
        (("abac", "bab"), "ababac", (4, 3)),  # behind "aba" comes no c: "ba" goes on
        (("aab", "ab"), "aaab", (4, 3)),
        (("ab", "ab"), "ab", (2, 2)),
        (("abc", "abd", "b"), "abd", (2, 1)),
        (("👩‍👧",), "👩‍👩‍👧", (5, 3)),
    ],
)
def test_overlaps(stops: tuple[str, ...], text: str, found: tuple[int, int]) -> None:
    assert Stops(stops).read(ROOT, text).found == found == first_stop(text, stops)


def lines_run(act: Callable[[], Any]) -> int:
    """Lines of the stops' and the transcript's code that run meanwhile: work, counted."""
    files, count = {stops_file.__file__, text_file.__file__}, 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def hostile(length: int) -> tuple[str, ...]:
    """Stops that an answer of only a's nearly completes, with every token again."""
    return tuple("a" * (length - 2) + end for end in ("bc", "cb", "b", "c"))


def work(stops: tuple[str, ...], text: str) -> int:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode(text)
    transcript = Transcript(tokenizer, stops)

    def read() -> None:
        for token in tokens:
            transcript.add([token])

    return lines_run(read)


@pytest.mark.parametrize("text", ["a" * 600, ("a" * 97 + "d") * 6, "é" * 300], ids=["a", "ad", "bytes"])
def test_a_token_costs_the_same_however_long_the_stops_are(text: str) -> None:
    short, long = work(hostile(8), text), work(hostile(LONGEST_STOP), text)
    assert 0 < long <= 1.2 * short


def test_the_automaton_grows_with_the_stops_and_no_faster() -> None:
    most = lines_run(lambda: Stops(tuple(chr(97 + nth) * LONGEST_STOP for nth in range(MOST_STOPS))))
    alike = lines_run(lambda: Stops(tuple("a" * (LONGEST_STOP - nth) for nth in range(MOST_STOPS))))
    assert max(most, alike) <= 24 * MOST_STOPS * LONGEST_STOP


def test_what_is_asked_is_bounded() -> None:
    most = tuple(str(nth).rjust(LONGEST_STOP, "x") for nth in range(MOST_STOPS))
    assert Sampling(stop=most).stop == most


def test_a_character_that_falls_apart_is_not_shown_before_it_cannot_be_a_stop() -> None:
    """The stop's last character comes byte by byte; so does one that only begins like it."""
    tokenizer = byte_tokenizer()
    for last, rest in (("🙂", ""), ("🙃", "x🙃")):
        transcript = Transcript(tokenizer, ("x🙂",))
        pieces = [transcript.add([token]) for token in tokenizer.encode("ax" + last)]
        assert pieces == ["a", "", "", "", "", rest] and transcript.stopped == (not rest)
