"""The public form of events: what each consumer needs is there, in both encodings."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import pytest

from quire import Cache, LayerGroup, Media, Request, RetainRange, Retention, Scope, Span
from quire.events.follow.read import read
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.delta import decoded
from quire.events.wire.field import Form
from quire.events.wire.names import Names

from .consumer import Consumer
from .lives import Life, build, ids, run

encodings = pytest.mark.parametrize("encoding", ["map", "array"])


# -- what vLLM decodes: its types, by their names --------------------------------------------------------------------


class Event(msgspec.Struct, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Listed(msgspec.Struct, tag=True, array_like=True):
    pass


class OldStored(Listed, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None


class OldRemoved(Listed, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class OldCleared(Listed, tag="AllBlocksCleared"):
    pass


class OldBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[OldStored | OldRemoved | OldCleared]
    data_parallel_rank: int | None = None


def decoders() -> dict[str, list[Any]]:
    """By encoding; with vLLM's own where it is installed."""
    maps: list[Any] = [Batch]
    with suppress(ImportError):
        maps.append(import_module("vllm.distributed.kv_events").KVEventBatch)
    return {"map": maps, "array": [OldBatch]}


class Stream:
    """A cache and its maker, without sockets."""

    def __init__(self, cache: Cache, encoding: Any = "map", media: Any = None) -> None:
        self.cache = cache
        self.maker = PayloadMaker(
            Names.from_config(cache.config, media), encoding, Archive(10, 1 << 20), cache.config.rank
        )
        self.consumer = Consumer(cache.config.block_size)
        self.payload = b""
        self.tell(whole=True)

    def tell(self, **how: Any) -> list[dict[str, Any]]:
        """What is said since the last time."""
        _, self.payload = self.maker.make(self.cache.take_events(**how))
        self.consumer.hear(self.payload)
        events: list[dict[str, Any]] = read(self.payload)["events"]
        return events


@encodings
def test_strict_decoders_read_every_batch(encoding: Any) -> None:
    """Random lives, all kinds of events: maps as vLLM has them now, arrays as it had them."""
    stream = Stream(build(12, 6, rank=2), encoding)
    life = Life(stream.cache, 3)
    kinds = set()
    for step in range(40):
        life.step()
        if step == 30:
            stream.cache.clear()
        stream.tell()
        for schema in decoders()[encoding]:
            batch = msgspec.msgpack.decode(stream.payload, type=schema)
            assert batch.data_parallel_rank == 2
            kinds |= {type(event).__name__.removeprefix("Old") for event in batch.events}
    assert {name.replace("Stored", "").replace("Block", "") for name in kinds} >= {"", "Removed"}


@encodings
def test_a_chain_is_one_event_with_everything(encoding: Any) -> None:
    stream = Stream(build(64, 0), encoding)
    run(stream.cache, 1, ids(range(1000, 1180)), scope=Scope(lora="ad"))
    (stored,) = stream.tell()
    assert [stored[name] for name in ("type", "medium", "lora_name", "block_size")] == ["BlockStored", "GPU", "ad", 4]
    assert stored["token_ids"] == list(range(1000, 1180)) and len(stored["block_hashes"]) == 45
    assert stored["parent_block_hash"] is None
    assert (stored["group_idx"], stored["kv_cache_spec_kind"]) == (0, "full_attention")
    run(stream.cache, 2, ids(range(1000, 1180), 7, 8, 9, 70_000), scope=Scope(lora="ad"))
    (more,) = stream.tell()
    assert more["parent_block_hash"] == stored["block_hashes"][-1] and more["token_ids"] == [7, 8, 9, 70_000]


@encodings
def test_a_move_is_stored_there_and_removed_here(encoding: Any) -> None:
    """Eviction goes deepest first; what routers hear has parents first and one removal."""
    stream = Stream(build(4, 8), encoding)
    run(stream.cache, 1, ids(range(16)))
    (chain,) = stream.tell()
    run(stream.cache, 2, ids(range(100, 116)))
    moved, removed, stored = stream.tell()
    assert (moved["medium"], moved["parent_block_hash"]) == ("CPU", None)
    assert (moved["block_hashes"], moved["token_ids"]) == (chain["block_hashes"], list(range(16)))
    assert (removed["type"], removed["medium"]) == ("BlockRemoved", "GPU")
    assert sorted(removed["block_hashes"]) == sorted(chain["block_hashes"]) and stored["medium"] == "GPU"


@encodings
def test_partial_blocks_are_not_for_routers(encoding: Any) -> None:
    """They count in whole blocks; our own field has them, with priorities."""
    stream = Stream(build(4, 0), encoding)
    run(stream.cache, 1, ids(range(6)))
    (stored,) = stream.tell()
    delta = decoded(stream.payload)
    assert stored["token_ids"] == [0, 1, 2, 3] and delta is not None and len(delta.records[1]) == 2
    run(stream.cache, 2, ids(range(50, 66)))
    removed, _ = stream.tell()
    assert removed["block_hashes"] == stored["block_hashes"]


@pytest.mark.parametrize(
    ("scope", "salt", "lora"),
    [
        (Scope(), None, (None, None)),
        (Scope(salt="pepper"), "pepper", (None, None)),
        (Scope(lora="ad"), None, (None, "ad")),
        (Scope(lora="ad", salt="pepper"), "pepper", (None, "ad")),
        (Scope(lora=3), "quire-scope:", (3, "lora-3")),
        (Scope(salt=5), "quire-scope:", (None, None)),
        (Scope(salt=""), "quire-scope:", (None, None)),
        (Scope(salt=b"x"), "quire-scope:", (None, None)),
        (Scope(epoch="new"), "quire-scope:", (None, None)),
    ],
)
@encodings
def test_what_tells_scopes_apart_is_in_a_form_that_isolates(encoding: Any, scope: Scope, salt: Any, lora: Any) -> None:
    """Top level in maps, tagged among the extra keys in both."""
    stream = Stream(build(), encoding)
    run(stream.cache, 1, ids(range(8)), scope=scope)
    (stored,) = stream.tell()
    assert (stored["lora_id"], stored["lora_name"]) == lora
    keys: Any = stored.get("extra_keys")
    if salt is None:
        assert keys is None and stored.get("cache_salt") is None
        return
    assert len(keys) == 2 and keys[0] == keys[1] and keys[0][0].startswith("dynamo-cache-salt:" + salt)
    if encoding == "map":
        assert keys[0] == ["dynamo-cache-salt:" + stored["cache_salt"]]


def test_scopes_that_differ_get_salts_that_differ() -> None:
    stream = Stream(build(32))
    scopes = [Scope(salt=5), Scope(salt="5"), Scope(salt=b"5"), Scope(epoch=5), Scope(lora=5), Scope(lora="5", epoch=1)]
    for number, scope in enumerate(scopes):
        run(stream.cache, number, ids(range(4)), scope=scope)
    names = [(event["cache_salt"], event["lora_name"]) for event in stream.tell()]
    assert len(set(names)) == len(scopes)


def test_tokens_that_carry_words_match_no_plain_prompt() -> None:
    """An image, an extra id: equal token ids mean nothing there, so those blocks get a salt of their own."""
    stream = Stream(build(32))
    image = Media(b"x" * 16, (Span(5, 7),))
    run(stream.cache, 1, ids(range(16)), media=(image,))
    before, covered, after = stream.tell()
    assert before["token_ids"] == [0, 1, 2, 3] and "cache_salt" not in before and "cache_salt" not in after
    assert covered["cache_salt"].startswith("quire-words:") and covered["token_ids"] == [4, 5, 6, 7]
    assert covered["parent_block_hash"] == before["block_hashes"][0]
    assert after["parent_block_hash"] == covered["block_hashes"][0]


def test_groups_say_what_they_are() -> None:
    wide = LayerGroup("n", window=999)  # no sequence can outgrow it
    groups = (LayerGroup("f"), LayerGroup("w", window=8), LayerGroup("s", snapshot_every=4), wide)
    stream = Stream(build(32, 0, groups=groups))
    run(stream.cache, 1, ids(range(13)))
    kinds = {(e["group_idx"], e["kv_cache_spec_kind"], e.get("kv_cache_spec_sliding_window")) for e in stream.tell()}
    full = "full_attention"
    assert kinds == {(0, full, None), (1, "sliding_window", 8), (2, "mamba", None), (3, full, None)}


def test_media_have_names_that_routers_take() -> None:
    assert Names.from_config(build(4, 4).config).media == ("GPU", "CPU")
    assert Names.from_config(build(4, 4).config, ["DEVICE", "NVME"]).media == ("DEVICE", "NVME")
    both = Stream(build(2, 4), media=("GPU", "GPU"))  # two tiers that routers cannot tell apart: a move is no news
    run(both.cache, 1, ids(range(8)))
    run(both.cache, 2, ids(range(50, 58)))
    assert [event["type"] for event in both.tell()] == ["BlockStored", "BlockStored"]


@encodings
def test_clearing_is_told_once_and_voids_what_came_before(encoding: Any) -> None:
    stream = Stream(build(16, 0, groups=(LayerGroup("a"), LayerGroup("b"))), encoding)
    run(stream.cache, 1, ids(range(8)))
    stream.cache.clear()
    run(stream.cache, 2, ids(range(20, 28)))
    events = stream.tell()
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored", "BlockStored"]
    assert stream.consumer.media(0).keys() == stream.consumer.media(1).keys() == set(events[1]["block_hashes"])


@encodings
def test_the_whole_state_can_be_told_again(encoding: Any) -> None:
    """For routers that start late and cannot ask: cleared, then everything, where it is now."""
    stream = Stream(build(4, 8), encoding)
    for start in (0, 100):
        run(stream.cache, start, ids(range(start, start + 16)))
    stream.tell()
    before = stream.consumer.media(0)
    cleared, *stored = stream.tell(whole=True)
    delta = decoded(stream.payload)
    assert cleared["type"] == "AllBlocksCleared" and stream.consumer.media(0) == before
    assert {event["medium"] for event in stored} == {"GPU", "CPU"} and delta is not None and delta.form is Form.WHOLE


def test_changes_of_priority_are_no_news_to_routers_but_are_told_to_the_index() -> None:
    stream = Stream(build())
    run(stream.cache, 1, ids(range(9)))
    stream.tell()
    retention = Retention((RetainRange(0, None, 80, None),))
    stream.cache.add_sequence_batch([Request(2, ids(range(9)), retention=retention)])
    assert stream.tell() == []
    delta = decoded(stream.payload)
    assert delta is not None and delta.records[0].tolist() == [[3, 0, 1, 35, 80], [3, 0, 1, 35, 80]]


@pytest.mark.parametrize("count", [1, 23, 24, 500, 70_000])
def test_long_lists_are_packed_like_short_ones(count: int) -> None:
    from quire.events.wire import pack

    names = np.arange(1, count + 1, dtype=np.uint64) << np.uint64(40)
    small, large = np.arange(count, dtype=np.uint32) % 1000, np.arange(count, dtype=np.uint32) + 100_000
    raw = msgspec.msgpack.encode([pack.hashes(names), pack.tokens(small), pack.tokens(large)])
    assert msgspec.msgpack.decode(raw) == [names.tolist(), small.tolist(), large.tolist()]
