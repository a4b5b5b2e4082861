"""Logs of requests for the tests of `quire trace`: written, made into traces, read again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from quire.trace.logs.make import Made, MakeOptions, make
from quire.trace.read.trace import Trace, read_trace
from quire.trace.record.block_ids import TraceKey
from quire.trace.stats.trace_stats import read_stats

KEY = TraceKey(b"one secret of the tests, 32 bytes")
EPOCH = 1763290000


@cache
def sample_stats() -> dict[str, Any]:
    """Of the sample trace, whole: read once. Not to be changed."""
    return read_stats("sample").to_json()


def write_log(path: Path, lines: Sequence[dict[str, Any] | str]) -> Path:
    """One JSON object per line; text as it is."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def of_tokens(prompts: Sequence[Sequence[int]], **more: Any) -> list[dict[str, Any]]:
    """Requests with token ids, a second apart."""
    return [{"time": EPOCH + n, "prompt": list(ids), "output_tokens": 1, **more} for n, ids in enumerate(prompts)]


def made_of(
    folder: Path, lines: Sequence[dict[str, Any] | str], key: TraceKey = KEY, **options: Any
) -> tuple[Path, Made]:
    """A trace of them, and what was said of it."""
    log, trace = write_log(folder / "log.jsonl", lines), folder / "trace.jsonl"
    with trace.open("wb") as file:
        made = make([log], MakeOptions(**options), key, file.write)
    return trace, made


def trace_of(folder: Path, lines: Sequence[dict[str, Any] | str], key: TraceKey = KEY, **options: Any) -> Trace:
    """As `quire replay` reads it."""
    return read_trace(made_of(folder, lines, key, **options)[0])


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The trace's own lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
