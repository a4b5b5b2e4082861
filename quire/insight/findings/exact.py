"""Exact: pairs of prompts token by token: where they stop being equal, and what stands there instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from statistics import median

import numpy as np

from quire.insight.findings.alignment import start_of
from quire.insight.findings.finding import Fetch
from quire.insight.findings.pairs import Pair
from quire.insight.findings.short_pieces import reordered
from quire.trace.units import Int32

MOST_EXAMPLES = 24  # pairs of a group
SAME = 0.8  # of the places: then it is one
WIDEST = 256  # tokens that are compared


@dataclass(frozen=True, slots=True)
class Difference:
    """The first of a pair."""

    place: int  # tokens that are equal before it
    mine: int  # tokens that stand there
    other: int  # in the earlier prompt
    text: bytes  # what stands there
    moved: int  # tokens that stand there in another order
    left_out: int  # tokens at the end of the earlier prompt that are not here
    alike: float  # of what stands there: the same tokens in the same order in both


@dataclass(frozen=True, slots=True)
class Differences:
    """Of some pairs of a group."""

    places: tuple[int, ...]
    width: int  # the median
    other_width: int
    variants: float  # different texts there, of all pairs
    moved: float  # of the pairs have the same tokens there, in another order
    moved_in: slice  # where
    left_out: int  # the median
    alike: float  # the same

    @property
    def place(self) -> int | None:
        """Where, if it is one place."""
        place, count = Counter(self.places).most_common(1)[0]
        return place if count >= SAME * len(self.places) else None

    @property
    def middle(self) -> int:
        """About where."""
        return round(median(self.places))


def examples_of(pairs: Sequence[Pair]) -> list[Pair]:
    """Some of them, evenly."""
    places = np.linspace(0, len(pairs) - 1, min(len(pairs), MOST_EXAMPLES)).astype(int)
    return [pairs[place] for place in places.tolist()]


def differences_of(pairs: Sequence[Pair], fetch: Fetch) -> Differences:
    """Looks at the tokens of some pairs."""
    chosen = examples_of(pairs)
    tokens = fetch([request for pair in chosen for request in (pair.request, pair.other)])
    found = [_difference(pair, tokens[pair.request], tokens[pair.other]) for pair in chosen]
    width, other = (round(median(values)) for values in zip(*((one.mine, one.other) for one in found), strict=True))
    variants = len({one.text for one in found}) / len(found)
    pieces = [one for one in found if one.moved]
    first, end = (
        min((one.place for one in pieces), default=0),
        max((one.place + one.moved for one in pieces), default=0),
    )
    places = tuple(one.place for one in found)
    return Differences(
        places, width, other, variants, len(pieces) / len(found), slice(first, end),
        round(median(one.left_out for one in found)), median(one.alike for one in found),
    )  # fmt: skip


def _difference(pair: Pair, mine: Int32, other: Int32) -> Difference:
    place = equal_tokens(mine, other)
    run = pair.aligned.kept[0]
    end, other_end = start_of(pair.aligned.mine_ends, run.mine), start_of(pair.aligned.other_ends, run.other)
    back = equal_tokens(mine[place:end][::-1], other[place:other_end][::-1])
    return Difference(
        place, end - back - place, other_end - back - place, mine[place : end - back].tobytes(),
        reordered(mine[place:], other[place:]), _left_out(pair, mine, other),
        _alike(mine[place : end - back], other[place : other_end - back]),
    )  # fmt: skip


def _alike(one: Int32, other: Int32) -> float:
    if max(len(one), len(other)) > WIDEST:
        return 0.0
    return SequenceMatcher(None, one.tolist(), other.tolist(), autojunk=False).ratio()


def _left_out(pair: Pair, mine: Int32, other: Int32) -> int:
    """Tokens behind the last equal run that the earlier prompt has alone; what all prompts end with does not count."""
    run = pair.aligned.kept[-1]
    mine = mine[start_of(pair.aligned.mine_ends, run.mine + run.chunks) :]
    other = other[start_of(pair.aligned.other_ends, run.other + run.chunks) :]
    equal = equal_tokens(mine, other)
    return len(other) - equal - equal_tokens(mine[equal:][::-1], other[equal:][::-1])


def equal_tokens(one: Int32, other: Int32) -> int:
    """Tokens that both begin with."""
    count = min(len(one), len(other))
    same = one[:count] == other[:count]
    return count if same.all() else int(same.argmin())
