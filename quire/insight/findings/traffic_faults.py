"""traffic_faults: salts and adapters that split a cache, requests that are sent again: a matter of who sends what."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from quire.insight.findings.alignment import LEAST_EQUAL
from quire.insight.findings.finding import Finding, at_least
from quire.insight.findings.prompt_rows.memory import Rows, prefix_names
from quire.insight.findings.prompt_rows.prompt_log import PromptLog, dense, joined_scopes
from quire.insight.findings.prompt_rows.window import Window
from quire.trace.units import Int32, Int64

LEAST_REQUESTS = 16
LEAST_SPLIT = 0.1  # of an application's prompt tokens
LEAST_SHARE = 0.01  # of all requests
MOST_APPLICATIONS = 5
AT_ONCE, LATEST = 0.1, 300.0  # seconds between a request and its last retry: sooner they are samples of one prompt
MOST_TRIES, LEAST_RETRIES, LEAST_SHARE_AGAIN = 8, 8, 0.03  # of one prompt; of all, and of all requests
SPAN = 20  # a log is so many times as long as its retries take: else what is popular comes again as soon
MOSTLY = 0.7  # of what comes again comes as retries do
PARTS = {
    "salt": ("a cache salt", "Give requests that may share one salt: one for each tenant, not for each request."),
    "lora": (
        "a model or adapter",
        "Use fewer adapters for one text, or apply them behind it; names of one model must be one.",
    ),
    "epoch": ("a scope field", "Leave the field out where requests may share."),
}


def split_caches(log: PromptLog, window: Window, least: int = LEAST_REQUESTS) -> list[Finding]:
    """Equal prompts in scopes that differ in one part, in `least` requests or more."""
    if not log.scopes.any():
        return []
    plain = window.hits()
    parts = log.scope_parts[window.requests]
    found: list[Finding] = []
    for part in PARTS:
        joined = joined_scopes(parts, [name for name in PARTS if name != part])
        if len(np.unique(joined)) == len(np.unique(window.scopes)):
            continue
        together = window.hits(joined)
        gains = np.maximum(together - plain, 0)
        beginnings = window.beginnings(joined)
        for beginning in _weightiest(beginnings, gains):
            members = beginnings == beginning
            if members.sum() >= least:
                one = _split(log, window, part, members, (plain, together))
                found += [] if one is None else [one]
    return found


def _weightiest(numbers: Int32, weights: Int64) -> list[int]:
    sums = np.bincount(numbers, weights)
    order = np.argsort(sums)[::-1][:MOST_APPLICATIONS]
    return [int(number) for number in order if sums[number] > 0.1 * sums.sum()]


def _split(
    log: PromptLog, window: Window, part: str, members: NDArray[np.bool_], found: tuple[Int64, Int64]
) -> Finding | None:
    before, after = (window.rate(one, members) for one in found)
    count = int(members.sum())
    if after - before < LEAST_SPLIT or count < LEAST_SHARE * len(window):
        return None
    hurt = members & (found[1] - found[0] >= LEAST_EQUAL)
    what, advice = PARTS[part]
    scopes = len(np.unique(window.scopes[members]))
    each = "each request has its own" if scopes > 0.9 * count else f"there are {scopes:,} for {count:,} requests"
    text = f"Equal prompts are kept apart by {what}: {each}."
    affected = int(hurt.sum())
    return Finding(
        part, text, advice, count / len(window), affected / count, before, after, at_least(affected, count),
        name_of(log, window.names[members]), 0, None, tuple(window.lines[np.flatnonzero(hurt)[:3]].tolist()),
        int(window.lengths[members].sum()), {"scopes": scopes},
    )  # fmt: skip


def name_of(log: PromptLog, names: Int32) -> str | None:
    """The name that most have."""
    code, count = Counter(names.tolist()).most_common(1)[0]
    return log.name_list[code] if count >= 0.5 * len(names) else None


def _ends_and_beginnings(log: PromptLog) -> tuple[Int32, Int32]:
    """Numbers for whole prompts, and for their first chunks."""
    names = prefix_names(Rows(log.ids, log.sizes, log.starts, log.scopes))
    return dense(names[log.starts[1:] - 1]), dense(names[log.starts[:-1]])


def retries(log: PromptLog, window: Window) -> list[Finding]:
    """Prompts that come again as they were, a few times and soon. They need no computing but where they were lost."""
    ends, first_chunks = _ends_and_beginnings(log)
    order = np.lexsort((log.times, ends))
    same = np.diff(ends[order]) == 0
    gaps = np.diff(log.times[order])
    again = same & (gaps > AT_ONCE)
    firsts, lasts = np.full(int(ends.max()) + 1, np.inf), np.full(int(ends.max()) + 1, -np.inf)
    np.minimum.at(firsts, ends, log.times)
    np.maximum.at(lasts, ends, log.times)
    which = ends[order][1:]
    soon = (lasts - firsts)[which] <= min(LATEST, float(log.times[-1] - log.times[0]) / SPAN)
    sent = again & soon & (np.bincount(ends)[which] <= MOST_TRIES)
    begins = first_chunks[order][1:]  # applications that ask the same again at any time do not count
    most = int(begins.max()) + 1
    sent &= (np.bincount(begins[sent], minlength=most) >= MOSTLY * np.bincount(begins[again], minlength=most))[begins]
    again &= np.isin(begins, begins[sent])
    count = int(sent.sum())
    if count < max(LEAST_RETRIES, LEAST_SHARE_AGAIN * len(log)):
        return []
    between = float(np.median(gaps[sent]))
    sent_again: Int64 = np.sort(order[1:][sent]).astype(np.int64)
    tokens, computed = int(log.lengths[sent_again].sum()), _computed_again(log, window, sent_again)
    text = (
        f"{count:,} requests were sent before, word for word, half of them at most {between:.3g} s after the try "
        f"before: a client that gives up too soon. {tokens:,} prompt tokens, and their answers, were asked again: "
        + (f"about {computed:,} of them were computed again." if computed else "the cache still had these prompts.")
    )
    share = count / len(log)
    facts = {
        "requests_saved": round(share, 4), "prompt_tokens_saved": tokens, "computed_tokens_saved": computed,
        "seconds_between": round(between, 3),
    }  # fmt: skip
    return [
        Finding(
            "retries", text, "Raise the client's timeout above the slowest answers, and wait longer before each try.",
            share, 1.0, 0.0, 0.0, at_least(count, int(again.sum())), name_of(log, log.names[sent_again]), None, None,
            tuple(log.lines[sent_again[:3], 0].tolist()), tokens, facts, computed / max(int(log.lengths.sum()), 1),
        )
    ]  # fmt: skip


def _computed_again(log: PromptLog, window: Window, which: Int64) -> int:
    """Prompt tokens of these requests that the cache had lost by then, going by those in the window."""
    inside = which[(which >= window.requests.start) & (which < window.requests.stop)] - window.requests.start
    asked = int(window.lengths[inside].sum())
    lost = asked - int(window.hits()[inside].sum())
    return round(lost / max(asked, 1) * int(log.lengths[which].sum()))
