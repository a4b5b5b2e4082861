"""What released versions wrote, read by today's code. What has changed on purpose stands here; nothing else has."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from quire import CacheConfig, LayerGroup, TierConfig

from .write import config, replayed, stream

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "config.json").exists())
MEASURED = {"requests_per_second", "wall_requests_per_second", "cache_seconds", "wall_seconds", "series"}

# Changed on purpose, by the version that wrote it.
NEW_FIELDS = {
    "0.1.0": {
        "event_seed",
        "ghosts",
        "min_uses",
        "resume_every",
        "receipts",
        "receipt_scopes",
        "receipt_chunks",
        "eviction_cost",
        "compute_doubles_at",
        "prefetch_share",
        "lasting",
        "share_pending",
    }
}
NOW_SHOWN = {
    "0.1.0": [
        (
            "eviction='empty_first'",
            "eviction='lru', eviction_cost='tokens', compute_doubles_at=30000, ghosts=8, min_uses=1, receipts=False, "
            "receipt_scopes=0, receipt_chunks=0",
        ),
        ("min_uses=1,", "min_uses=1, resume_every=1024,"),
        ("slots=(64, 32, 8))", "slots=(64, 32, 8), slow=False)"),
        ("slots=128)", "slots=128, slow=False)"),
        ("extra_tokens=None)", "extra_tokens=None, snapshot_decoding=None, snapshot_inside=False, pool=None)"),
        ("max_events=1048576,", "max_events=1048576, prefetch_share=0.5, lasting=False,"),
        ("rank=3)", "rank=3, share_pending=False)"),
    ]
}  # in a config's repr
NOW_CALLED = {"0.1.0": {"empty_first": "lru"}}  # the order, in a replay's settings; the old name is read with a warning
BY_BUDGET = {"0.1.0": {"batches", "model"}}  # counts of a replay: a step's tokens are used up now, so steps differ
SECRET = {"event_seed"}  # bytes: in no file
NOT_FOLLOWED = {  # its hashes have no key
    "0.1.0": "it speaks version 1 of our field, we read 2: upgrade the worker"
}


def read(version: str, name: str) -> Any:
    return json.loads((HERE / version / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_config_means_the_same(version: str) -> None:
    kept = read(version, "config.json")
    fields = dict(kept["fields"])
    tiers = [(tier["name"], tier["slots"]) for tier in fields.pop("tiers")]
    slots = [TierConfig(name, tuple(number) if isinstance(number, list) else number) for name, number in tiers]
    groups = tuple(LayerGroup(**group) for group in fields.pop("groups"))
    assert kept["version"] == version
    with pytest.warns(DeprecationWarning, match="'empty_first' is called 'lru'"):
        assert CacheConfig(tiers=tuple(slots), groups=groups, **fields) == config()
    shown = kept["repr"]
    for was, now in NOW_SHOWN[version]:
        shown = shown.replace(was, now)
    assert repr(config()) == shown
    today = {field.name for field in dataclasses.fields(CacheConfig)}
    assert today - set(kept["fields"]) == NEW_FIELDS.get(version, set()) | SECRET


@pytest.mark.parametrize("name", ["replay", "replay-own"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_replay_counts_the_same(version: str, name: str) -> None:
    trace = "sample" if name == "replay" else str(HERE / version / "trace.jsonl")
    kept, today = read(version, f"{name}.json"), replayed(trace)
    kept["settings"]["eviction"] = NOW_CALLED[version][kept["settings"]["eviction"]]
    assert set(kept) <= set(today), "a name is gone"
    same = set(kept) - MEASURED - BY_BUDGET[version]
    assert not {key: (kept[key], today[key]) for key in same if kept[key] != today[key]}


def told(payload: bytes) -> list[Any]:
    """The events of a batch, but for our own field, as any router reads them; hashes by order of appearance."""
    import msgspec

    _, events, _ = msgspec.msgpack.decode(payload)
    names: dict[int, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return names.setdefault(value, -len(names) - 1) if isinstance(value, int) and value >= 1 << 32 else value

    assert "quire" in events[-1] or len(events[-1]) == 7, "our field rides in the last event"
    return [plain(event) for event in events[:-1]]


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("version", VERSIONS)
def test_routers_read_the_same_events(version: str, encoding: str) -> None:
    """Field by field; our own index knows whether it can follow."""
    pytest.importorskip("zmq", reason="events need the extra events")
    pytest.importorskip("msgspec", reason="events need the extra events")
    from quire.events import Index, Recording, Status
    from quire.events.follow.read import read as read_batch

    index = Index()
    index.add("old")
    (kept,), ((number, payload),) = list(Recording(HERE / version / f"events-{encoding}.qev")), stream(encoding)
    assert kept.seq == number and told(kept.payload) == told(payload) and len(told(payload)) > 3
    index.hear("old", kept.seq, kept.payload)
    assert index.report("old").reason == NOT_FOLLOWED.get(version, "")
    assert (index.status("old") is Status.EXACT) is (version not in NOT_FOLLOWED)
    shown = read_batch(kept.payload)
    assert len(shown["events"]) == len(told(payload)) and shown["quire"].get("unread", "") == NOT_FOLLOWED[version]


def test_every_release_is_here() -> None:
    assert VERSIONS[0] == "0.1.0" and set(NEW_FIELDS) | set(NOT_FOLLOWED) <= set(VERSIONS)
