"""What a claim's receipt will say: noted at the claim, made into a Receipt when asked for. Knows no claims.

The store explains whole blocks (`quire.core.store.causes`); the tokens that no whole block has are accounted for here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quire.core.content.content_index import ContentIndex, NamedText, SeenBefore, name_text
from quire.core.records.hint_words import BACKS
from quire.core.records.identity import Scope
from quire.core.records.reports.receipt import Cause, Miss, Receipt
from quire.core.records.retain import TICKS_PER_SECOND
from quire.core.state.prepared import Purpose, ReadyRequest
from quire.core.store import causes

if TYPE_CHECKING:
    from quire.core.store.interface import Explained

NAMES: dict[int, Cause] = {
    causes.UNDER_WAY: "under_way",
    causes.EVICTED: "evicted",
    causes.FAILED: "failed",
    causes.FORGOTTEN: "forgotten",
    causes.WINDOW: "window",
    causes.SNAPSHOT: "snapshot",
    causes.SHORT: "short",
    causes.NEW: "new",
    causes.SLOW: "slow",
}
REMEMBERED = (causes.EVICTED, causes.FAILED)


class Elsewhere(NamedTuple):
    """Another scope that has text which is new in this one."""

    scope: Scope
    end: int  # first token it has not


# the tick, who computes what is under way, another scope that has what is new, what was here behind other text
Noted = tuple[int, Hashable, Elsewhere | None, SeenBefore | None]


def _usable_tokens(prepared: ReadyRequest, purpose: Purpose) -> int:
    """Leading tokens that the claim looked at."""
    usable, limit = prepared.end - (purpose == "compute"), prepared.request.reuse_limit
    return usable if limit is None else min(usable, limit)


def look_elsewhere(prepared: ReadyRequest, runs: bytes, most: int) -> Elsewhere | None:
    """Of so many other scopes the one that has most of what is new, the latest of equals."""
    setup, scope, told = prepared.setup, prepared.scope, _rows(runs)
    if scope is None or not prepared.keep or not told or told[-1][0] != causes.NEW:
        return None
    _, new, end, *_ = told[-1]
    best: Elsewhere | None = None
    for root, other in setup.roots.others(scope, most):
        found = setup.store.walk(prepared.chain, root, end, 0).start
        if found > (new if best is None else best.end):
            best = Elsewhere(other, found)
    return best


def remember_text(prepared: ReadyRequest, content: ContentIndex) -> None:
    """Of an admitted request, for receipts of later ones; of media and private text nothing is kept."""
    if (text := _text_of(prepared)) is not None:
        content.add(text)


def look_back(prepared: ReadyRequest, content: ContentIndex | None) -> SeenBefore | None:
    """What of it earlier requests of its scope had."""
    if content is None or (text := _text_of(prepared)) is None:
        return None
    return content.find(text)


def _text_of(prepared: ReadyRequest) -> NamedText | None:
    """Cut once, however often it is claimed."""
    request = prepared.request
    if request.media or request.extra_ids is not None or not prepared.keep or prepared.scope is None:
        return None
    if prepared.text is None and prepared.end:
        prepared.text = name_text(request.tokens[: prepared.end], prepared.scope_key)
    return prepared.text


def split_new(start: int, stop: int, seen: SeenBefore) -> list[Miss]:
    """New text, cut where it is text that was here: with all before it, or behind another beginning."""
    misses, at = [], min(stop, max(start, seen.known))
    if at > start:
        misses.append(Miss("forgotten", start, at))
    parted = at
    for begin, end in seen.runs:
        begin, end = max(begin, at), min(end, stop)
        if end <= begin:
            continue
        misses += [Miss("new", at, begin), Miss("interrupted", begin, end, gap=begin - parted)]
        at = parted = end
    return [*misses, Miss("new", at, stop)]


def receipt_of(
    prepared: ReadyRequest, purpose: Purpose, starts: tuple[int, int], explained: Explained, noted: Noted
) -> Receipt:
    """The receipt of a claim: where it starts, and up to where more was found that is computed all the same."""
    reused, found = starts
    config, (runs, tokens), (now, computing, elsewhere, seen) = prepared.setup.config, explained, noted
    misses = [Miss("policy", reused, found)]
    for code, start, stop, group, gone, admission, hint in _rows(runs) if prepared.keep else ():
        miss = Miss(NAMES[code], start, stop, None if group < 0 else group)
        if code in REMEMBERED:
            ago = max(0, now - gone) / TICKS_PER_SECOND
            told = BACKS[hint - 1] if hint else None
            miss = Miss(miss.cause, start, stop, group, seconds=ago, admission=admission, back=told)
        elif code == causes.UNDER_WAY:
            miss = Miss(miss.cause, start, stop, group, request=computing)
        elif code == causes.NEW and elsewhere is not None:
            misses.append(Miss("other_scope", start, elsewhere.end, scope=elsewhere.scope))
            miss = Miss(miss.cause, elsewhere.end, stop)
        misses += [miss] if code != causes.NEW or seen is None else split_new(miss.start, stop, seen)
    misses += _beyond_blocks(prepared, purpose, found)
    table = np.frombuffer(tokens, np.int64).reshape(-1, len(config.tiers)).tolist()
    hits = {(tier, group): n for group, row in enumerate(table) for tier, n in enumerate(row) if n}
    return Receipt(
        length=prepared.end,
        reused=reused,
        hits=hits,
        misses=tuple(miss for miss in misses if miss.start < miss.stop),
        tiers=tuple(tier.name for tier in config.tiers),
        groups=tuple(group.name for group in config.groups),
    )


def _beyond_blocks(prepared: ReadyRequest, purpose: Purpose, found: int) -> list[Miss]:
    """Tokens that no whole block has, and those that were not to be reused."""
    end, size, limit = prepared.end, prepared.setup.block_size, prepared.request.reuse_limit
    if not prepared.keep:
        return [Miss("policy", 0, end)]
    usable = _usable_tokens(prepared, purpose)
    short = Miss("short", max(found, usable // size * size), usable)
    limited = limit is not None and limit < end
    return [short, Miss("policy" if limited else "last_token", usable, end)]


def _rows(runs: bytes) -> list[list[int]]:
    rows: list[list[int]] = np.frombuffer(runs, np.int64).reshape(-1, causes.NUM_RUN_FIELDS).tolist()
    return rows
