"""prompt_lint: the findings of a few prompts, each beside all others: what shows once is reported, with its loss.

The detectors are those of a log (findings/), with other limits: a log has thousands of requests, of which most are as
they should be; prompts that stand in a repository are few, and each is meant. Keeps all of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quire.insight.findings.finding import Finding, Place
from quire.insight.findings.pairs import Pairs
from quire.insight.findings.prompt_rows.lost_text import find_lost
from quire.insight.findings.prompt_rows.prompt_log import LogReader
from quire.insight.findings.prompt_rows.window import Window
from quire.insight.findings.text_faults import LeastFault, TextFaults
from quire.insight.findings.traffic_faults import split_caches
from quire.insight.prompt_changes.recorded_rate import per_day, seconds_of
from quire.trace.prompts.logged_prompts import LoggedPrompt

LEAST = LeastFault(pairs=1, requests=0.0, gain=0.01)
LEAST_APART = 3  # prompts in scopes of their own


@dataclass(frozen=True, slots=True)
class LintFault:
    """One finding, and what it costs."""

    finding: Finding
    requests: int  # of the prompts that are written so
    tokens: int  # that all of them would find and do not
    per_day: float | None  # tokens, at the recorded rate; None: there are no times

    @property
    def per_request(self) -> float:
        """Tokens."""
        return self.tokens / self.requests

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        facts = {"lost_tokens": self.tokens, "lost_tokens_per_request": round(self.per_request)}
        per_day = None if self.per_day is None else round(self.per_day)
        return {**self.finding.to_json(), **facts, "lost_tokens_per_day": per_day}


@dataclass(frozen=True, slots=True)
class PromptLint:
    """What came of it; the costliest first."""

    prompts: int
    tokens: int
    shared: float  # of the tokens, that an earlier prompt begins with, too
    faults: tuple[LintFault, ...]

    @property
    def per_request(self) -> float:
        """Tokens that the worst of them loses."""
        return max((one.per_request for one in self.faults), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        faults = [one.to_json() for one in self.faults]
        facts = {"requests": self.prompts, "prompt_tokens": self.tokens, "reuse": round(self.shared, 4)}
        return {**facts, "faults": faults}


def lint_prompts(prompts: Iterable[LoggedPrompt], has_times: bool, place: Place) -> PromptLint:
    """Of all prompts; `place` names where a token of one is, by its number in order of time."""
    every = sorted(prompts, key=lambda one: one.time)
    reader = LogReader()
    for one in every:
        reader.add(one)
    log = reader.finish()
    if not every:
        return PromptLint(0, 0, 0.0, ())
    total = int(log.lengths.sum())
    lost = find_lost(log)
    faults = TextFaults(
        Pairs(log, lost), total, lambda numbers: {number: every[number].tokens for number in numbers}, place, LEAST
    )
    found = faults.find() + split_caches(log, Window(log, total, log.lengths), LEAST_APART)
    seconds = seconds_of([one.time for one in every]) if has_times else None
    told = []
    for fault in found:
        requests = max(round(fault.requests * len(every)), 1)
        tokens = round(fault.gain * fault.prompt_tokens)
        told.append(LintFault(fault, requests, tokens, per_day(tokens, seconds)))
    told.sort(key=lambda one: -one.tokens)
    return PromptLint(len(every), total, float(lost.hit_tokens.sum() / total), tuple(told))
