"""Write what this version writes, for later ones to read: python -m tests.golden.write tests/golden/VERSION

Once per release (RELEASING.md). It uses public names alone, so that it runs on any version: config.json, the stream
of a small life in both encodings (events-*.qev), a trace of our own format (trace.jsonl), replays of it and of recorded
requests (replay-own.json, replay.json). The order of eviction is said everywhere: it is not about the default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import quire
from quire import Cache, CacheConfig, LayerGroup, Request, Scope, TierConfig
from quire.cli import main as cli

REPLAY = "--limit 60 --block-size 512 --device-blocks 300 --host-blocks 600 --batch 16 --eviction lru --json"
TRACE = [
    {"time_ms": 0, "prompt": [["system", 900], [None, 35]], "output_tokens": 20, "retain": [[0, 900, 80, 60.0]]},
    {"time_ms": 40.5, "prompt": [["system", 900], ["document", 400]], "output_tokens": 9, "priority": 1},
    {"time_ms": 90, "prompt": [["system", 900]], "output_tokens": 3, "scope": {"lora": "sql", "salt": "t"}, "id": 7},
]


def config() -> CacheConfig:
    groups = (
        LayerGroup("full", page_bytes=4096, planes=2),
        LayerGroup("local", page_bytes=1024, planes=2, window=64, sinks=4),
        LayerGroup("ssm", page_bytes=512, snapshot_every=32),
    )
    tiers = (TierConfig("device", (64, 32, 8)), TierConfig("host", 128))
    return CacheConfig(
        tiers, 16, groups, max_sequences=8, max_length=512, max_chunk=64, events=True, rank=3, eviction="lru"
    )


def lived() -> Cache:
    """Two prompts with a shared beginning, one of them under a scope, and a page that moves."""
    tiers = (TierConfig("device", 6), TierConfig("host", 8))
    cache = Cache(CacheConfig(tiers, 4, max_length=64, events=True, eviction="lru"))
    shared = np.arange(12, dtype=np.int32)
    for name, tokens, scope in (
        ("a", shared, Scope()),
        ("b", np.append(shared, shared[:5]), Scope()),
        ("c", shared[:9], Scope(lora="sql", salt="s")),
    ):
        batch = cache.add_sequence_batch([Request(name, tokens, scope)])
        cache.finish(batch.plan)
        cache.commit(batch.sequences[0], len(tokens))
        cache.release(batch.sequences[0])
    return cache


def stream(encoding: Any) -> list[tuple[int, bytes]]:
    """Every batch a publisher has of that cache: number and payload."""
    import zmq

    from quire.events import Publisher

    context = zmq.Context()
    ask = context.socket(zmq.DEALER)
    with Publisher(lived(), "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", bind=True, encoding=encoding) as publisher:
        publisher.tell()
        ask.connect(str(publisher.replay_endpoint))
        batches: list[tuple[int, bytes]] = []
        while not batches:
            ask.send_multipart([b"", (0).to_bytes(8, "big")])
            while (frames := ask.recv_multipart())[2] != b"\xff" * 8:
                batches.append((int.from_bytes(frames[2], "big"), frames[3]))
        ask.close(0)
    context.term()
    return batches


def replayed(trace: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["replay", trace, *REPLAY.split()]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def main(folder: Path) -> None:
    from quire.events import RecordedMessage, Recording

    folder.mkdir(parents=True)
    plain = {name: value for name, value in dataclasses.asdict(config()).items() if not isinstance(value, bytes)}
    kept = {"version": quire.__version__, "repr": repr(config()), "fields": plain}
    (folder / "config.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for encoding in ("map", "array"):
        recorded = (RecordedMessage(0.0, b"", *batch) for batch in stream(encoding))
        Recording(folder / f"events-{encoding}.qev").write(recorded)
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TRACE), encoding="utf-8")
    for name, trace in (("replay", "sample"), ("replay-own", str(folder / "trace.jsonl"))):
        result = {key: value for key, value in replayed(trace).items() if key != "series"}
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
