"""find_findings: all detectors on one log; what brings most comes first.

LogReader.add(prompt) ... finish() ──► PromptLog ──► find_findings ──► [Finding, ...]
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.insight.findings.cache_faults import large_blocks, small_memory
from quire.insight.findings.finding import Fetch, Finding, Place
from quire.insight.findings.fine_part import fine_log, fine_part
from quire.insight.findings.floods import floods
from quire.insight.findings.pairs import Pairs
from quire.insight.findings.prompt_rows.lost_text import LostText, find_lost
from quire.insight.findings.prompt_rows.prompt_log import PromptLog
from quire.insight.findings.prompt_rows.window import Window
from quire.insight.findings.text_faults import TextFaults
from quire.insight.findings.traffic_faults import retries, split_caches

MEMORY_TOKENS = 1_831_054  # what `quire replay` has by default: 240 GB of a model of 131,072 bytes per token
LEAST_REQUESTS = 16  # fewer say nothing


@dataclass(frozen=True, slots=True)
class FindOptions:
    """The cache that the log is replayed in."""

    memory_tokens: int = MEMORY_TOKENS  # of all tiers
    block_size: int = 16


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What came of it."""

    requests: int
    prompt_tokens: int
    ceiling: float  # of the prompt tokens, that a cache would hit which forgets nothing
    findings: list[Finding]


def find_findings(log: PromptLog, options: FindOptions, fetch: Fetch, place: Place) -> LogFindings:
    """Faults of a log. `fetch` gives the tokens of some requests again, `place` names the message of a token."""
    if not len(log):
        return LogFindings(0, 0, 0.0, [])
    lost = find_lost(log)
    total = int(log.lengths.sum())
    found: list[Finding] = []
    if len(log) >= LEAST_REQUESTS:
        found = _text_faults(log, lost, options.memory_tokens, fetch, place)
        window = Window(log, options.memory_tokens, log.lengths - lost.used_tokens)
        found += split_caches(log, window) + retries(log, window)
        found += floods(log, window, lost)
        found += large_blocks(log, lost, options.block_size, fetch) + small_memory(window)
    found.sort(key=lambda one: -one.weight)
    return LogFindings(len(log), total, float(lost.hit_tokens.sum() / total), found)


def _text_faults(log: PromptLog, lost: LostText, capacity: int, fetch: Fetch, place: Place) -> list[Finding]:
    """Those of the log; of a large one those of a part that is cut finely: coarse chunks tell faults apart badly."""
    if not log.level:
        return TextFaults(Pairs(log, lost), capacity, fetch, place).find()
    part, tokens = fine_part(log, lost, fetch)
    fine = fine_log(log, part, tokens)
    return TextFaults(
        Pairs(fine, find_lost(fine)), capacity,
        lambda numbers: {number: tokens[number] for number in numbers},
        lambda number, token: place(number + part.start, token),
    ).find()  # fmt: skip
