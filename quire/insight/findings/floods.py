"""floods: prompts that are used once and push out what others would have used again: of a tenant, or of a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.insight.findings.finding import Finding, at_least
from quire.insight.findings.prompt_rows.lost_text import LostText
from quire.insight.findings.prompt_rows.prompt_log import PromptLog
from quire.insight.findings.prompt_rows.window import Window
from quire.insight.findings.traffic_faults import name_of
from quire.trace.units import Int32, Int64

LEAST_GAIN = 0.1  # of the prompt tokens of others that come again
LEAST_STORED = 0.15  # of all tokens that are stored
MOST_REUSED = 0.1  # of the group's own tokens
MOST_KNOWN = 0.5  # of a one-off prompt's text, at any place: one that is mostly known has another fault
MOST_TRIED = 5
ALMOST = 0.8  # of the largest gain: then the fewest requests are those that push others out
SLICES, BURST = 50, 4  # of time; so many times the usual is a burst
FLOOD_TIME, FLOOD_SHARE = 0.3, 0.8  # of the time, in which a flood has so much of its tokens
LEAST_OTHERS = 20  # requests
Members = NDArray[np.bool_]


class _Flush(NamedTuple):
    """A group that is not stored, and what others find then."""

    members: Members
    others: Members  # all of them; beside a flood: while it lasts and as long again
    before: float  # their hit rate
    after: float
    is_flood: bool
    gained: int  # tokens that the others find then


def floods(log: PromptLog, window: Window, lost: LostText) -> list[Finding]:
    """Groups without which others would find more."""
    reused = lost.used_tokens[window.requests]
    computed = int((window.lengths - reused).sum())
    if computed <= window.capacity:  # everything fits
        return []
    plain = window.hits()
    known = lost.known_tokens[window.requests] > MOST_KNOWN * window.lengths
    alone = (reused <= MOST_REUSED * window.lengths) & ~known
    again = reused > MOST_REUSED * window.lengths
    tried = [_tried(window, plain, members, again & ~members) for members in _candidates(window, plain, alone)]
    good = [one for one in tried if one is not None]
    most = max((one.gained for one in good), default=0)
    good = [one for one in good if one.gained >= ALMOST * most]
    return [_finding(log, window, plain, min(good, key=lambda one: int(one.members.sum())))] if good else []


def _candidates(window: Window, plain: Int64, alone: Members) -> Iterator[Members]:
    """Groups that store much and find little, those that store most first. `alone`: prompts that are used once."""
    stored = window.lengths - plain
    found: list[tuple[int, Members]] = []
    for column in (window.names, window.scopes, window.beginnings()):
        for number in _largest(column, stored):
            found.append((0, column == number))
    found += [(0, alone), (0, _burst(window, stored, alone))]
    kept: list[tuple[int, Members]] = []
    for _, members in found:
        weight = int(stored[members].sum())
        others = int((~members).sum())
        if weight < LEAST_STORED * stored.sum() or others < LEAST_OTHERS:
            continue
        if window.rate(plain, members) <= MOST_REUSED and not any((members == one).all() for _, one in kept):
            kept.append((weight, members))
    yield from (members for _, members in sorted(kept, key=lambda one: -one[0])[:MOST_TRIED])


def _largest(numbers: Int32, weights: Int64) -> list[int]:
    sums = np.bincount(numbers, weights)
    return [int(number) for number in np.argsort(sums)[::-1][:MOST_TRIED] if sums[number]]


def _burst(window: Window, stored: Int64, alone: Members) -> Members:
    """One-off requests of the slices of time that have many times the usual."""
    span = max(float(window.times[-1] - window.times[0]), 1e-9)
    slices = np.minimum((window.times - window.times[0]) / span * SLICES, SLICES - 1).astype(np.int64)
    tokens = np.bincount(slices[alone], stored[alone], SLICES)
    full = tokens > BURST * max(float(np.median(tokens)), float(tokens.mean()) / BURST)
    burst: Members = alone & full[slices]
    return burst


def _tried(window: Window, plain: Int64, members: Members, again: Members) -> _Flush | None:
    """What the others find if the group is not stored. `again`: those of them that would find something."""
    begin, end = np.quantile(window.times[members], [(1 - FLOOD_SHARE) / 2, (1 + FLOOD_SHARE) / 2])
    span = float(window.times[-1] - window.times[0])
    is_flood = bool(end - begin <= FLOOD_TIME * span)
    others = ~members
    if is_flood:
        others &= (window.times >= window.times[members][0]) & (window.times <= end + (end - begin))
    again = again & others
    if again.sum() < LEAST_OTHERS:
        return None
    without = window.hits(kept=~members)
    if window.rate(without, again) - window.rate(plain, again) < LEAST_GAIN:
        return None
    gained = int((without - plain)[again].sum())
    return _Flush(members, others, window.rate(plain, others), window.rate(without, others), is_flood, gained)


def _finding(log: PromptLog, window: Window, plain: Int64, flush: _Flush) -> Finding:
    members = flush.members
    stored = (window.lengths - plain)[members].sum() / (window.lengths - plain).sum()
    own = window.rate(plain, members)
    times, beside = window.times[members], window.times[flush.others]
    facts: dict[str, float] = {"stored": round(float(stored), 4), "others": round(float(flush.others.mean()), 4)}
    text = f"{100 * stored:.0f} % of all tokens that are stored are of prompts that find {100 * own:.0f} % of theirs: "
    if flush.is_flood:
        text += f"a flood of {int(members.sum()):,} requests from {times[0]:.0f} to {times[-1]:.0f} s of the log."
        facts |= {"from": float(times[0]), "to": float(times[-1]), "until": float(beside[-1])}
        advice = "Send such batches when little else runs, to a worker of their own, or with reuse=False."
    else:
        text += "they push out what others would find."
        advice = "Give this tenant a worker or a share of its own, a low retention priority, or reuse=False."
    lines = tuple(window.lines[np.flatnonzero(members)[:3]].tolist())
    own_share = float(members.mean())
    return Finding(
        "flood" if flush.is_flood else "flush", text, advice, own_share, 1.0, flush.before, flush.after,
        at_least(int((plain[members] <= MOST_REUSED * window.lengths[members]).sum()), int(members.sum())),
        name_of(log, window.names[members]), None, None, lines, int(window.lengths[members].sum()),
        facts,
    )  # fmt: skip
