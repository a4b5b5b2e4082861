"""Write the traces that this version writes, for later ones to read: python -m tests.golden.traces tests/golden/trace-N

made.jsonl is made from a log of token ids, recorded.jsonl is what a cache records, written.jsonl is a trace of Quire's
own format as people write it. read.json says what each of them means: one row per request.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, Request, TierConfig
from quire.cli.main import main
from quire.core.records.hint_words import Back
from quire.simulate import read_trace

FILES = ("made", "recorded", "written")
ENDED = {"choices": [{"finish_reason": "tool_calls"}]}
TALK = [5, *range(40, 140)]
LOG = [
    {"created": 1_700_000_000, "prompt": list(range(40)), "usage": {"completion_tokens": 9}, "session_id": "ann"},
    {"created": 1_700_000_001, "prompt": list(range(52)), "usage": {"completion_tokens": 7}, "cache_salt": "t"},
    {"created": 1_700_000_003, "prompt": [*range(30), 7], "usage": {"completion_tokens": 2}, "response": ENDED},
    {"created": 1_700_000_004, "prompt": [5, 6, *TALK], "usage": {"completion_tokens": 1}, "session_id": "ann"},
    {"created": 1_700_000_005, "prompt": [5, 8, *TALK], "usage": {"completion_tokens": 1}, "finish_reason": "stop"},
]
WRITTEN = [
    {"time_ms": 0, "prompt": [["system", 900], [None, 35]], "output_tokens": 20, "retain": [[0, 900, 80, 60.0]]},
    {"time_ms": 90, "prompt": [["system", 900]], "output_tokens": 3, "scope": {"lora": "sql"}, "id": 7},
    {
        "time_ms": 95,
        "prompt": [["system", 30]],
        "output_tokens": 1,
        "session": "bob",
        "finish": "length",
        "back": "never",
        "interrupted": [7, 2, 300],
    },
]


def meaning(path: Path) -> list[dict[str, Any]]:
    """What a trace says, with parts in order of appearance and without what was not said."""
    names: dict[int, int] = {}
    rows = []
    for one in read_trace(path):
        parts = [names.setdefault(int(part), len(names)) for part in one.parts]
        row = {"time": round(one.time, 3), "parts": parts, "sizes": one.sizes.tolist(), "output": one.output}
        more = {name: getattr(one, name, None) for name in ("id", "session", "finish", "back")}
        more["interrupted"] = None if one.interrupted is None else one.interrupted.numbers
        rows.append({**row, **{name: value for name, value in more.items() if value is not None}})
    return rows


def record(path: Path) -> None:
    """Two requests through a cache, on a clock that stands."""
    cache = Cache(CacheConfig((TierConfig("device", 64),)), record=path, clock=lambda: 0.0)
    ends: tuple[tuple[str, Back | None], ...] = (("a", "soon"), ("b", None))
    for name, back in ends:
        batch = cache.add_sequence_batch([Request(name, np.arange(100, dtype=np.int32))])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        cache.release(batch.sequences[0], back=back)
    assert cache.recorder is not None
    cache.recorder.close()


def write(folder: Path) -> None:
    """All of it."""
    folder.mkdir(parents=True)
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in LOG), encoding="utf-8")
    assert main(["trace", "make", str(log), "-o", str(folder / "made.jsonl")]) == 0
    log.unlink()
    record(folder / "recorded.jsonl")
    text = "".join(json.dumps(line) + "\n" for line in WRITTEN)
    (folder / "written.jsonl").write_text(text, encoding="utf-8")
    told = {name: meaning(folder / f"{name}.jsonl") for name in FILES}
    (folder / "read.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
