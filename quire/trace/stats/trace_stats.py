"""TraceStats: one trace read line by line into numbers. Reads files; prints nothing and judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.trace.read.lines import LONGEST_LINE, MOONCAKE_BLOCK, LineReader, TraceError, TraceLine
from quire.trace.read.streams import STDIN, BrokenStream, open_lines
from quire.trace.read.trace import OTHERS, SAMPLES
from quire.trace.stats.arrivals import Arrivals
from quire.trace.stats.histogram import Histogram
from quire.trace.stats.seen_blocks import SeenBlocks

MOST_NAMES = 1 << 16  # scopes and first blocks that are distinguished
SHARES = (0.25, 0.5, 0.9)
KEPT_ERRORS = 10


class TraceStats:
    """Numbers over all requests of a trace."""

    def __init__(self) -> None:
        self.arrivals, self.seen = Arrivals(), SeenBlocks()
        self.inputs, self.outputs, self.shared, self.gaps = Histogram(), Histogram(), Histogram(), Histogram()
        self.counts: Counter[str] = Counter()
        self.first_blocks: Counter[int] = Counter()
        self.parted: Counter[int] = Counter()  # where prompts were interrupted, by their marks
        self.scopes: set[int] = set()
        self.unit: int | None = None  # tokens per block; None: the trace has none of its own
        self.said: dict[str, Any] = {}  # by the trace, of itself
        self.errors: list[TraceError] = []
        self.lengths_only = False

    def add(self, line: TraceLine) -> None:
        """One more request."""
        sizes = line.sizes or _sizes(line.length, len(line.names), self.unit or MOONCAKE_BLOCK)
        ids = _chain(line) if line.sizes else [name for name in line.names if isinstance(name, int)]
        self.arrivals.add(line.time)
        self.inputs.add(line.length)
        self.outputs.add(line.output)
        scope = line.scope_id if not line.sizes else hash(line.scope.key)
        if scope is not None and len(self.scopes) < MOST_NAMES:
            self.scopes.add(scope)
        if len(self.first_blocks) < MOST_NAMES or ids[0] in self.first_blocks:
            self.first_blocks[ids[0]] += 1
        self.counts["shorter than a block"] += self.unit is not None and line.length < self.unit
        reused = self.seen.add(ids, sizes, line.time, line.output)
        self.shared.add(reused.tokens)
        self._note_mark(line, reused.tokens)
        self.counts["share something"] += reused.blocks > 0
        for share in SHARES:
            self.counts[f"share {share}"] += reused.tokens >= share * line.length
        self.counts["repeated"] += reused.blocks == len(ids)
        if reused.turn_gap is not None and reused.blocks < len(ids):
            self.gaps.add(round(reused.turn_gap * 1000))

    def _note_mark(self, line: TraceLine, shared: int) -> None:
        """What the trace's maker saw of the text that no earlier prompt begins with."""
        mark = line.interrupted
        if mark is None:
            return
        tokens = sum(max(0, min(stop, line.length) - max(start, shared)) for start, stop in mark.pieces)
        if tokens:
            self.counts["interrupted"] += 1
            self.counts["interrupted tokens"] += tokens
            if len(self.parted) < MOST_NAMES or mark.position in self.parted:
                self.parted[mark.position] += 1

    def _interrupted(self) -> dict[str, Any] | None:
        """Of prompts with marks: what was forgotten by then has none, so tokens are at least so many."""
        if not self.parted:
            return None
        token, count = self.parted.most_common(1)[0]
        tokens = self.counts["interrupted tokens"]
        share = round(tokens / max(self.seen.asked, 1), 5)
        at = {"token": token, "requests": count}
        return {"requests": self.counts["interrupted"], "tokens": tokens, "share": share, "most_at": at}

    def to_json(self) -> dict[str, Any]:
        """Everything counted."""
        requests = max(self.arrivals.count, 1)
        top = self.first_blocks.most_common(1)
        sharing = {
            "requests_that_share": round(self.counts["share something"] / requests, 4),
            **{
                f"requests_that_share_{share:.0%}": round(self.counts[f"share {share}"] / requests, 4)
                for share in SHARES
            },
            "repeated_prompts": round(self.counts["repeated"] / requests, 4),
            "shared_tokens": self.shared.to_json(),
            "different_first_blocks": len(self.first_blocks),
            "most_common_first_block": round(top[0][1] / requests, 4) if top else 0,
            "shorter_than_a_block": round(self.counts["shorter than a block"] / requests, 4),
            "scopes": len(self.scopes),
        }
        return {
            "block_size": self.unit,
            "sharing_known": not self.lengths_only,
            "arrivals": self.arrivals.to_json(),
            "input_tokens": self.inputs.to_json(),
            "output_tokens": self.outputs.to_json(),
            "sharing": sharing,
            "interrupted": self._interrupted(),  # None: no line says so
            "turns": {"requests": self.gaps.count, "seconds_between": self.gaps.to_json(0.001)},
            "reuse": self.seen.to_json(),
            "skipped_lines": self.counts["bad"],
            "whole": "end" in self.said if self.said else None,  # None: it has no marks at all
        }


def _sizes(length: int, blocks: int, unit: int) -> list[int]:
    return [unit] * (blocks - 1) + [length - unit * (blocks - 1)]


def _chain(line: TraceLine) -> list[int]:
    """Parts of Quire's own traces as ids: a part and all before it, in its scope."""
    ids: list[int] = []
    before = hash(line.scope.key)
    for index, (name, size) in enumerate(zip(line.names, line.sizes, strict=True)):
        part = ("private", line.number, index) if name is None else (name, size)
        before = hash((before, part)) & ((1 << 62) - 1)
        ids.append(before)
    return ids


def read_stats(
    path: str | Path, *, skip_bad: bool = False, unit: int | None = None, limit: int | None = None,
    passed: Callable[[int], None] | None = None,
) -> TraceStats:  # fmt: skip
    """All of a trace, in bounded memory; "sample" and "sample-agents" come with Quire, "-" is standard input."""
    source = SAMPLES.get(str(path)) or Path(path)
    stats, reader = TraceStats(), LineReader("standard input" if str(path) == STDIN else source.name, unit)
    with open_lines(source, LONGEST_LINE, passed=passed, others=OTHERS) as texts:
        while limit is None or stats.arrivals.count < limit:
            try:
                text = next(texts, b"")
                if not text:
                    break
                line = reader.read(text)
            except BrokenStream as broken:
                _bad(stats, reader.wrong(str(broken), "fetch the file again", ahead=1), skip_bad)
                break
            except TraceError as error:
                _bad(stats, error, skip_bad)
                continue
            if line is not None:
                stats.unit = reader.unit if reader.kind == "mooncake" else None
                stats.add(line)
    if not stats.arrivals.count:
        raise TraceError(reader.name, 0, "it has no requests", "pass JSON lines, one request in each")
    stats.said, stats.lengths_only = reader.said, reader.lengths_only
    return stats


def _bad(stats: TraceStats, wrong: TraceError, skip_bad: bool) -> None:
    if not skip_bad:
        raise wrong
    stats.counts["bad"] += 1
    if len(stats.errors) < KEPT_ERRORS:
        stats.errors.append(wrong)
