"""One way of writing and one order, learned from pairs; applications told apart by their text. On rows of chunks."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np

from quire.insight.findings.alignment import EqualRun, align
from quire.insight.findings.applications import Applications
from quire.insight.findings.one_way import PieceOrder, Row, Spellings
from quire.insight.findings.prompt_rows.prompt_log import LogReader
from quire.trace.prompts.logged_prompts import LoggedPrompt
from tests.insight.prompt_worlds import PLAIN, Writer

SIZE = 8  # tokens of a chunk


def row(*chunks: int) -> Row:
    return np.array(chunks, np.int32), np.full(len(chunks), SIZE, np.int32)


def learned(way: type[Spellings] | type[PieceOrder], rows: list[Row]) -> Spellings | PieceOrder:
    """From each row beside the one before."""
    return way([align(*mine, *other) for other, mine in pairwise(rows)], 4 * SIZE)


def equal_chunks(one: Row, other: Row) -> int:
    return next((n for n, (a, b) in enumerate(zip(one[0], other[0], strict=False)) if a != b), len(one[0]))


RULES, LATER = tuple(range(10, 20)), tuple(range(30, 40))


def test_spellings_of_one_text_become_one() -> None:
    rows = [row(*RULES, 100 + n % 3, *LATER, 200 + n % 2, *RULES[::-1], 1000 + n) for n in range(12)]
    one_way = learned(Spellings, rows)
    mended = [one_way.row(one) for one in rows]
    assert equal_chunks(rows[0], rows[1]) == 10
    for one in mended:
        assert equal_chunks(mended[0], one) >= 32 and one[1].sum() == 33 * SIZE


def test_a_text_that_is_new_each_time_is_no_spelling() -> None:
    rows = [row(*RULES, 1000 + n, *LATER) for n in range(40)]
    one_way = learned(Spellings, rows)
    assert all((one_way.row(one)[0] == one[0]).all() for one in rows)


def test_a_text_that_is_there_or_not_is_written_in_one_way() -> None:
    rows = [row(*RULES, *[99] * (n % 2), *LATER, 1000 + n) for n in range(8)]
    one_way = learned(Spellings, rows)
    mended = [one_way.row(one) for one in rows]
    assert all(equal_chunks(mended[0], one) >= len(one[0]) - 1 for one in mended)


def test_pieces_come_in_one_order_whatever_stands_between_them() -> None:
    """A seam has tokens of both its pieces: its chunk is another for each two."""
    pieces = {name: tuple(range(100 * name, 100 * name + 6)) for name in (1, 2, 3, 4)}
    rows = []
    for n, order in enumerate(list(permutations(pieces))[::2]):
        seams = [10_000 + 10 * before + after for before, after in zip((0, *order), order, strict=False)]
        middle = [chunk for seam, name in zip(seams, order, strict=True) for chunk in (seam, *pieces[name])]
        rows.append(row(*RULES, *middle, 9000 + order[-1], *LATER, 5000 + n))
    one_way = learned(PieceOrder, rows)
    mended = [one_way.row(one) for one in rows]
    assert max(equal_chunks(rows[0], one) for one in rows[1:]) < 35
    for one in mended:  # all but what is new
        assert equal_chunks(mended[0], one) >= len(one[0]) - 1 and one[1].sum() == rows[0][1].sum()


def test_a_phrase_that_everybody_writes_makes_no_application_of_everybody() -> None:
    write = Writer(1)
    phrase, rules = write.words(40), [write.words(300) for _ in range(3)]
    log = LogReader()
    for n in range(90):
        text = rules[n % 3] + write.words(30) + phrase + write.words(20)
        log.add(LoggedPrompt(np.array(text, np.int32), float(n), PLAIN, None, n + 1))
    found = Applications(log.finish()).of(np.arange(90))
    assert sorted(one.tolist() for one in found) == [list(range(n, 90, 3)) for n in range(3)]


def test_a_long_talk_is_a_part_of_its_application() -> None:
    write = Writer(2)
    rules, talk, log = write.words(120), list[int](), LogReader()
    for n in range(80):
        if n % 2:
            talk += write.words(100)
        text = rules + (talk if n % 2 else write.words(40))
        log.add(LoggedPrompt(np.array(text, np.int32), float(n), PLAIN, None, n + 1))
    (found,) = Applications(log.finish()).of(np.arange(80))
    assert found.tolist() == list(range(80))


def test_spellings_of_other_lengths_begin_alike() -> None:
    """The longest that is there counts."""
    pairs = []
    for mine, other in (([3], [9]), ([3, 100], [9]), ([3], [3, 100])):
        one, two = (np.array([1, 2, *text, 4, 5, 6], np.int32) for text in (mine, other))
        aligned = align(one, np.full(len(one), 20, np.int32), two, np.full(len(two), 20, np.int32))
        aligned.common, aligned.kept = 2, [EqualRun(2 + len(mine), 2 + len(other), 3, 60)]
        pairs.append(aligned)
    spellings = Spellings(pairs, 64)
    for text in ([9], [3], [3, 100]):
        row = np.array([1, 2, *text, 4, 5, 6], np.int32)
        assert spellings.row((row, np.full(len(row), 20, np.int32)))[0].tolist() == [1, 2, 9, 4, 5, 6]
