"""Readers of traces, logs and models' shapes under mutated input: the documented error, or a sound answer.

By hand: python -m tests.trace.decoding --cases 1000000 --seed 1 [--what traces|logs|shapes|sessions]
"""

from __future__ import annotations

import gzip
import math
import sys
import time
import tracemalloc
from argparse import ArgumentParser
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from quire import InputError, QuireError
from quire.simulate.play.trace_player import play
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.shape import find_shape
from quire.trace.logs.make import Made, MakeOptions, make, make_sessions
from quire.trace.read.lines import LONGEST, LONGEST_LINE, TraceError
from quire.trace.read.trace import Trace, read_trace

from .logs import KEY
from .mutations import WHOLE, as_json, changed, damaged, deep

MOONCAKE = {
    "timestamp": 27482, "input_length": 700, "output_length": 52, "hash_ids": [46, 47], "session": 9,
    "finish": "tool_calls", "back": "soon", "interrupted": [3, 2, 400], "quire": {"trace": 2},
}  # fmt: skip
OWN: dict[str, Any] = {
    "time_ms": 12.5, "prompt": [["system", 100], [7, 20], [None, 3]], "output_tokens": 5, "priority": -3,
    "reuse": False, "scope": {"lora": "a", "salt": 7, "epoch": "x"},
    "retain": [[0, 60, 80], [60, None, 20, 1.5]], "id": "r-1", "session": "ann", "finish": "stop",
    "interrupted": [3, 2, 400], "back": "never",
}  # fmt: skip
WORDS = [b"null", b"true", b"[", b"]", b"{", b"}", b":", b",", b'"', b"\n", b"\r", b"\\u0000", b"\\ud800", b"\xff",
         b'"prompt"', b'"hash_ids"', b'"scope"', b'"retain"', b"\x1f\x8b", b" " * 99]  # fmt: skip

SESSION: dict[str, Any] = {
    "id": "s", "block_size": 4, "hash_id_scope": "local", "requests": [
        {"t": 0, "type": "n", "in": 9, "out": 2, "hash_ids": [1, 2], "stop": "tool_use"},
        {"t": 1.5, "type": "subagent", "requests": [
            {"t": 0, "type": "s", "in": 4, "out": 0, "hash_ids": [7], "stop": "end_turn"}]},
        {"t": 9, "type": "n", "in": 12, "out": 2, "hash_ids": [1, 2, 3], "stop": ""},
    ],
}  # fmt: skip
LOGGED: list[Any] = [
    {
        "time": 12.5,
        "prompt": [1, 2, 3, 4],
        "usage": {"completion_tokens": 3, "prompt_tokens": 4},
        "model": "a",
        "session_id": "ann",
        "choices": [{"finish_reason": "stop"}],
    },
    {"time": 13, "body": {"prompt": [[1, 2], [3]], "cache_salt": "x"}, "response": {"usage": {"output_tokens": 3}}},
    {"timestamp": 5, "usage": {"prompt_tokens": 700, "completion_tokens": 3}},
    b"2023-11-16 18:17:03.9799600,4808,10",
]
TABLE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"
LOG_WORDS = [b"null", b"[", b"]", b"{", b"}", b":", b",", b'"', b"\n", b"\\ud800", b"\xff", b'"prompt"', b'"messages"',
             b'"input"', b'"hash_ids"', b'"usage"', b"1e999", b" " * 99]  # fmt: skip

SHAPE = b"""name = "some"
typical_tokens = 4096
[[group]]
name = "full"
bytes_per_token = 2048
[[group]]
name = "local"
bytes_per_token = 4096
window = 1024
sinks = 4
share = 0.25
[[group]]
name = "state"
state_bytes = 100000
snapshot_every = 512
snapshot_at_end = false
"""
KEYS = [b"name", b"typical_tokens", b"bytes_per_token", b"state_bytes", b"window", b"sinks", b"snapshot_every",
        b"snapshot_at_end", b"snapshot_inside", b"share", b"group"]  # fmt: skip
TOML = [*KEYS, b"[[group]]\n", b"[group]\n", b"=", b"\n", b'"""', b"'", b"inf", b"nan", b"-", b"1979-05-27T07:32:00Z",
        b"{}", b"[]", b"0.5", b"1e-300", b"512", b"false", b"a.b.c", b"#", b"true", b"0x" + b"f" * 600,
        b"0x" + b"f" * 9000, b"1" * 320, b"1e400", b"\xff", b"\\ud800"]  # fmt: skip
SMALL = ReplaySettings(tiers=(Memory("device", 10**8), Memory("host", 10**9)), block_size=16, prefill_only=True)
UNPACKED = 1032  # bytes that one of gzip's can become, each of them a line
AMPLIFIED, SPARE = 60, 3 << 20  # bytes that reading takes, per byte of input and beside them


def most_lines(path: Path) -> int:
    """Lines that a file can have, and one more for its end."""
    text = path.read_bytes()
    return UNPACKED * len(text) if text.startswith(b"\x1f\x8b") else 1 + text.count(b"\n")


class Traces:
    """A file of a few lines, some of them mutated; plain, zipped, or zipped and damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t.jsonl"
        self.made: Trace | None = None

    def make(self, draw: Random) -> int:
        """Write one; its size once unpacked."""
        kind = draw.choice([MOONCAKE, OWN])
        lines = [as_json(kind) for _ in range(draw.randrange(4))]
        for _ in range(draw.choice([1, 1, 2])):
            wrong = changed(draw, kind) if draw.random() < 0.6 else draw.choice([MOONCAKE, OWN])
            text = as_json(wrong)
            text = damaged(draw, text, WORDS) if draw.random() < 0.5 else text
            lines.insert(draw.randrange(len(lines) + 1), deep(draw) if draw.random() < 0.01 else text)
        whole = draw.choice([b"\n", b"\n", b"\r\n"]).join(lines) + draw.choice([b"\n", b""])
        text = whole
        if draw.random() < 0.15:
            text = gzip.compress(whole, 1)
            text = damaged(draw, text, WORDS) if draw.random() < 0.6 else text
        self.path.write_bytes(text)
        return max(len(whole), len(text))

    def read(self, draw: Random) -> None:
        """As the tools do."""
        limit, unit = draw.choice([None, None, 1, 2]), draw.choice([512, 512, 512, 1, 16, 1 << 24])
        self.made = None
        self.made = read_trace(self.path, limit=limit, skip_bad=draw.random() < 0.5, unit=unit)

    def check(self, draw: Random, wrong: QuireError | None) -> str:
        """What came of it is sound; what kind of end it was."""
        if wrong is not None:
            assert isinstance(wrong, TraceError) and 0 <= wrong.line <= most_lines(self.path), wrong
            return "refused"
        assert self.made is not None and len(self.made) >= 1
        times = [ask.time for ask in self.made]
        assert all(map(math.isfinite, times)) and times == sorted(times)
        for number, ask in enumerate(self.made):
            sizes = ask.sizes
            assert ask.number == number and 1 <= ask.length <= LONGEST and 0 <= ask.output <= LONGEST
            assert int(sizes.sum()) == ask.length and sizes.min() >= 1 and ask.parts.min() >= 0
            assert len(sizes) == len(ask.parts) and ask.line >= 1 and type(ask.reuse) is bool
        if draw.random() < 0.02 and self.made.longest < 4000:
            play(self.made, SMALL)
            return "played"
        return "read"


class Shapes:
    """A model's shape in TOML."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s.toml"
        (folder / "one.jsonl").write_bytes(as_json(MOONCAKE))
        self.trace = read_trace(folder / "one.jsonl")

    def make(self, draw: Random) -> int:
        """Write one."""
        lines = SHAPE.splitlines(keepends=True)
        for _ in range(draw.choice([0, 1, 1, 2])):  # another value, at a limit, or another key
            place = draw.randrange(len(lines))
            key, _, value = lines[place].partition(b" = ")
            number = draw.choice(WHOLE) + draw.choice([-1, 0, 1])
            value = draw.choice([b"%d" % number, b"%d" % number, draw.choice(TOML), value])
            lines[place] = (draw.choice(KEYS) if draw.random() < 0.2 else key.strip()) + b" = " + value + b"\n"
        text = b"".join(lines)
        text = damaged(draw, text, TOML) if draw.random() < 0.3 else text
        if draw.random() < 0.01:
            text += b"\nname = " + deep(draw)
        self.path.write_bytes(text)
        return len(text)

    def read(self, draw: Random) -> None:
        """As the tools do: the shape, what it takes, and the cache's config for it."""
        size = draw.choice([1, 16, 16, 512, 1 << 20])
        shape = find_shape(str(self.path))
        slots = shape.slots(draw.choice([0, 1, 10**9, 1 << 62]), size)
        assert len(slots) == len(shape.layers) and min(slots) >= 0
        replace(SMALL, shape=str(self.path), block_size=size, token_budget=None).config(self.trace)

    def check(self, draw: Random, wrong: QuireError | None) -> str:
        """What kind of end it was."""
        return "read" if wrong is None else "refused"


class Logs:
    """A log of a few requests, some of them mutated; of prompts, of lengths, or a table."""

    def __init__(self, folder: Path) -> None:
        self.path, self.out = folder / "log.jsonl", folder / "made.jsonl"
        self.text = bytearray()
        self.made: Made | None = None

    def make(self, draw: Random) -> int:
        """Write one."""
        kind = draw.choice(LOGGED)
        lines = [kind if isinstance(kind, bytes) else as_json(kind) for _ in range(draw.randrange(4))]
        for _ in range(draw.choice([1, 1, 2])):
            wrong = changed(draw, kind) if isinstance(kind, dict) and draw.random() < 0.6 else draw.choice(LOGGED)
            text = wrong if isinstance(wrong, bytes) else as_json(wrong)
            text = damaged(draw, text, LOG_WORDS) if draw.random() < 0.5 else text
            lines.insert(draw.randrange(len(lines) + 1), deep(draw) if draw.random() < 0.02 else text)
        if isinstance(kind, bytes):
            lines.insert(0, TABLE_HEAD)
        whole = draw.choice([b"\n", b"\n", b"\r\n"]).join(lines) + draw.choice([b"\n", b""])
        self.path.write_bytes(gzip.compress(whole, 1) if draw.random() < 0.1 else whole)
        return len(whole)

    def read(self, draw: Random) -> None:
        """As the tool does, but for a tokenizer: prompts are token ids."""
        options = MakeOptions(block_size=draw.choice([None, 1, 16]), skip_bad=draw.random() < 0.5, time_unit="s")
        self.made = None
        self.text = bytearray()
        self.made = make([self.path], options, KEY, self.text.extend)

    def check(self, draw: Random, wrong: QuireError | None) -> str:
        """What was made can be replayed."""
        if wrong is not None:
            assert not isinstance(wrong, TraceError) or 0 <= wrong.line <= most_lines(self.path), wrong
            return "refused"
        assert self.made is not None
        self.out.write_bytes(self.text)
        assert len(read_trace(self.out)) == self.made.requests
        return "read"


class Sessions:
    """A recorded session beside a sound one."""

    def __init__(self, folder: Path) -> None:
        self.path, self.sound, self.out = folder / "a.json", folder / "b.json", folder / "made.jsonl"
        self.sound.write_bytes(as_json(SESSION))
        self.text = bytearray()
        self.made: Made | None = None

    def make(self, draw: Random) -> int:
        """Write one."""
        text = as_json(changed(draw, SESSION) if draw.random() < 0.7 else SESSION)
        text = damaged(draw, text, LOG_WORDS) if draw.random() < 0.4 else text
        self.path.write_bytes(deep(draw) if draw.random() < 0.02 else text)
        return len(text)

    def read(self, draw: Random) -> None:
        """As the tool does."""
        options = MakeOptions(block_size=draw.choice([None, 4, 8]), skip_bad=draw.random() < 0.5, rate=0.1)
        self.made, self.text = None, bytearray()
        self.made = make_sessions("weka", [str(self.path), str(self.sound)], options, self.text.extend)

    def check(self, draw: Random, wrong: QuireError | None) -> str:
        """What was made can be replayed."""
        if wrong is not None:
            assert isinstance(wrong, TraceError) and wrong.line == 0, wrong
            return "refused"
        assert self.made is not None
        self.out.write_bytes(self.text)
        trace = read_trace(self.out)
        assert len(trace) == self.made.requests and all(ask.session is not None for ask in trace)
        return "read"


Target = Traces | Logs | Shapes | Sessions
WHAT: dict[str, type[Target]] = {"traces": Traces, "logs": Logs, "shapes": Shapes, "sessions": Sessions}


def run_case(target: Target, seed: int, number: int) -> str:
    """One case, the same for the same numbers."""
    draw = Random(f"{seed}.{number}")
    size = target.make(draw)
    measured = number % 64 == 0
    if measured:
        tracemalloc.start()
    wrong: QuireError | None = None
    try:
        target.read(draw)
    except InputError as error:
        wrong = error
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
    assert peak <= AMPLIFIED * min(size, LONGEST_LINE) + SPARE, f"{peak:,} bytes for {size:,}"
    if wrong is not None:
        words = str(wrong)
        assert len(words) < 1000 and words.encode() and wrong.__cause__ is None, words[:2000]
    return target.check(draw, wrong)


def run(what: str, cases: int, seed: int, first: int = 0) -> Counter[str]:
    """Many of them; how they ended. What fails is raised with the command that repeats it."""
    ends: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        target = WHAT[what](Path(folder))
        for number in range(first, first + cases):
            try:
                ends[run_case(target, seed, number)] += 1
            except Exception as error:
                again = f"python -m tests.trace.decoding --what {what} --seed {seed} --first {number} --cases 1"
                raise AssertionError(f"{again}: {target.path.read_bytes()[:500]!r}") from error
    return ends


def main() -> int:
    """As often as asked."""
    parser = ArgumentParser(prog="python -m tests.trace.decoding", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--what", choices=WHAT, help="default: all, as many of each")
    options = parser.parse_args()
    for what in [options.what] if options.what else WHAT:
        began = time.monotonic()
        ends = run(what, options.cases, options.seed, options.first)
        print(f"{what}: {options.cases:,} cases in {time.monotonic() - began:.0f} s: {dict(ends)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
