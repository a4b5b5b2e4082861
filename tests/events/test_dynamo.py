"""Conformance: the real indexer of NVIDIA Dynamo (PyPI ai-dynamo-runtime) hears our publisher, in its own process."""

from __future__ import annotations

import importlib.util
import json
import socket as sockets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from quire import CacheConfig, LayerGroup, Media, Request, RetainRange, Retention, Scope, Span, TierConfig
from quire.core.cache import Cache
from quire.events import Publisher
from quire.events.follow.read import read
from quire.events.wire.protocol import number
from quire.net.zmq_sockets import bound_to

from ..waits import until
from .lives import build, ids, run

if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.indexer") is None:
    pytest.skip("ai-dynamo-runtime is not installed: pip install ai-dynamo-runtime", allow_module_level=True)

ANY = "tcp://127.0.0.1:*"
SENTINEL = (90_001, 90_002, 90_003, 90_004)
instances = count(1)


class Indexer:
    """`python -m dynamo.indexer`, asked over HTTP."""

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self._file = log.open("wb")
        command = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=self._file, stderr=subprocess.STDOUT)

    def http(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        ask = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(ask, timeout=120) as answer:
            text = answer.read()
        try:
            return json.loads(text or b"null")
        except json.JSONDecodeError:
            return text

    def is_up(self) -> bool:
        assert self.process.poll() is None, "the indexer has ended"
        try:
            self.http("/health")
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._file.close()


@pytest.fixture(scope="module")
def indexer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexer]:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Indexer(port, tmp_path_factory.mktemp("dynamo") / "log")
    try:
        until(made.is_up, "the indexer is up", 60)
        yield made
    finally:
        made.close()


class Router:
    """One model in the indexer, fed by one publisher."""

    def __init__(self, indexer: Indexer, publisher: Publisher, endpoint: str | None = None) -> None:
        self.indexer, self.publisher = indexer, publisher
        self.instance = next(instances)
        self.model = f"model-{self.instance}"
        self.block_size = publisher._cache.config.block_size
        self._sentinels = count()
        self.register(endpoint or publisher.endpoint)

    def register(self, endpoint: str) -> None:
        body = {"instance_id": self.instance, "endpoint": endpoint, "replay_endpoint": self.publisher.replay_endpoint}
        self.indexer.http("/register", body | {"model_name": self.model, "block_size": self.block_size})

    def ask(self, tokens: Any, **scope: Any) -> tuple[int, int, int]:
        """Leading tokens on the device, with the host, with the disk."""
        body = {"token_ids": [int(token) for token in tokens], "model_name": self.model, **scope}
        try:
            found = self.indexer.http("/query", body)["instances"].get(str(self.instance), {})
        except urllib.error.HTTPError as error:
            assert error.code == 404, error  # the model is not there yet
            return (0, 0, 0)
        return (found.get("gpu", 0), found.get("cpu", 0), found.get("disk", 0))

    def says(self, expected: tuple[int, int, int], tokens: Any, **scope: Any) -> None:
        """It comes to say so."""
        until(lambda: self.ask(tokens, **scope) == expected, f"{expected} for {tokens[:1]}")

    def caught_up(self) -> None:
        """Everything published so far has arrived: a block stored last is known."""
        number = next(self._sentinels)
        mark = ids(*(token + 10 * number for token in SENTINEL))
        run(self.publisher._cache, ("sentinel", number), mark, scope=Scope(lora="sentinel"))
        self.publisher.tell(whole=not number)

        def known() -> bool:
            if not number:  # the indexer may not be connected yet, and would hear nothing
                self.publisher.tell(whole=True)
            return self.ask(mark, lora_name="sentinel")[0] == 4

        until(known, "the sentinel is known")


@contextmanager
def routed(indexer: Indexer, cache: Cache, **options: Any) -> Iterator[Router]:
    """A publisher of the cache, known to the indexer and heard by it."""
    with Publisher(cache, ANY, replay=ANY, **options) as publisher:
        router = Router(indexer, publisher)
        router.caught_up()
        yield router


def tell(router: Router, *prompts: Any, **request: Any) -> None:
    for prompt in prompts:
        run(router.publisher._cache, object(), prompt, **request)
    router.publisher.tell()


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_stored_removed_and_cleared(indexer: Indexer, encoding: Any) -> None:
    with routed(indexer, build(5, 0), encoding=encoding) as router:
        prompt = ids(range(100, 116))
        tell(router, prompt)
        router.says((16, 16, 16), prompt)
        tell(router, ids(range(300, 308)))  # takes the sentinel's slot, then the deepest block's
        router.says((12, 12, 12), prompt)
        router.says((8, 8, 8), ids(range(300, 308)))
        router.publisher._cache.clear()
        router.publisher.tell()
        router.says((0, 0, 0), prompt)
        tell(router, prompt)
        router.says((16, 16, 16), prompt)


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_moves_between_tiers(indexer: Indexer, encoding: Any) -> None:
    """Down to the host, further to the disk, and back; deepest first, so prefixes are on mixed tiers meanwhile."""
    tiers = (TierConfig("device", 4), TierConfig("host", 4), TierConfig("disk", 16))
    cache = Cache(CacheConfig(tiers, block_size=4, max_length=256, events=True))
    with routed(indexer, cache, encoding=encoding) as router:
        first, second, third = (ids(range(start, start + 16)) for start in (100, 200, 300))
        tell(router, first)
        router.says((16, 16, 16), first)
        tell(router, ids(range(500, 508)))
        router.says((8, 16, 16), first)  # its two deepest blocks have gone down
        tell(router, second)
        router.says((0, 8, 16), first)
        tell(router, third)
        router.says((0, 0, 16), first)
        router.says((0, 16, 16), second)
        tell(router, ids(range(100, 112), 7))
        router.says((12, 12, 16), first)


def test_names_of_media(indexer: Indexer) -> None:
    for medium, where in (("CPU_PINNED", (0, 8, 8)), ("STORAGE", (0, 0, 8)), ("NVME", (0, 0, 8))):
        with routed(indexer, build(2, 8), media=("DEVICE", medium)) as router:
            tell(router, ids(range(8)))
            router.says((8, 8, 8), ids(range(8)))
            tell(router, ids(range(50, 58)))
            router.says(where, ids(range(8)))


def test_a_take_over_is_told(indexer: Indexer) -> None:
    """The last block is recomputed in place: gone while it is being filled, back when it is stored."""
    cache = build(16, 0)
    with routed(indexer, cache) as router:
        prompt = ids(range(100, 108))
        tell(router, prompt)
        router.says((8, 8, 8), prompt)
        batch = cache.add_sequence_batch([Request("again", prompt)])
        router.publisher.tell()
        router.says((4, 4, 4), prompt)
        cache.commit(batch.sequences)
        router.publisher.tell()
        router.says((8, 8, 8), prompt)


def test_orphans_never_count(indexer: Indexer) -> None:
    """A hole ends the match. Dynamo forgets what was below it; the whole state, told again, makes up for that."""
    cache = build(4, 0, eviction="lru")  # in the adaptive order no parent goes before its child
    keep = Retention((RetainRange(4, 8, 0, None), RetainRange(8, 16, 90, None)))
    with routed(indexer, cache) as router:
        prompt = ids(range(100, 112))
        tell(router, prompt, retention=keep)
        router.says((12, 12, 12), prompt)
        tell(router, ids(range(300, 308)))  # the sentinel's slot, and that of the second block
        router.says((4, 4, 4), prompt)
        tell(router, prompt, retention=keep)  # the hole is filled
        router.caught_up()
        (probe,) = cache.probe([Request("q", ids(range(100, 113)))])
        assert probe.start == 12 >= router.ask(prompt)[0] >= 8
        router.publisher.tell(whole=True)
        router.says((12, 12, 12), prompt)


def test_a_lost_batch_is_replayed(indexer: Indexer) -> None:
    """A relay stands between and loses one message in three; the indexer asks our ROUTER for them."""
    cache = build(64, 0)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    taken, given = context.socket(zmq.SUB), context.socket(zmq.PUB)
    try:
        given.bind(ANY)
        with Publisher(cache, ANY, replay=ANY) as publisher:
            taken.subscribe(b"")
            taken.connect(publisher.endpoint)
            until(lambda: publisher.tell(whole=True) is not None and taken.poll(20), "the relay hears")
            router = Router(indexer, publisher, bound_to(given))
            prompts = [ids(range(100 * n, 100 * n + 8)) for n in range(1, 13)]

            def relayed(lossy: bool) -> None:
                for nth in range(publisher.published):
                    if not taken.poll(20):
                        return
                    frames = taken.recv_multipart()
                    if not lossy or nth % 3 != 1:
                        given.send_multipart(frames)

            for prompt in prompts:
                run(cache, object(), prompt)
                publisher.tell()
                until(lambda: publisher.waiting == 0, "sent")
            relayed(lossy=True)

            def known() -> bool:
                run(cache, object(), ids(*SENTINEL))
                publisher.tell(whole=False)
                relayed(lossy=False)
                return all(router.ask(prompt) == (8, 8, 8) for prompt in prompts)

            until(known, "all prompts are known")
    finally:
        taken.close(0)
        given.close(0)


def test_scopes_are_isolated(indexer: Indexer) -> None:
    """Salts and adapters: found under their own name, and under no other."""
    for encoding in ("map", "array"):
        with routed(indexer, build(64, 0), encoding=encoding) as router:
            plain, salted, tuned = (ids(range(start, start + 8)) for start in (100, 200, 300))
            tell(router, plain)
            tell(router, salted, scope=Scope(salt="pepper"))
            tell(router, tuned, scope=Scope(lora="ad"))
            router.caught_up()
            assert router.ask(plain)[0] == 8
            salts: Any = ({}, {"cache_salt": "pepper"}, {"cache_salt": "x"})
            loras: Any = ({}, {"lora_name": "ad"}, {"lora_name": "x"})
            assert [router.ask(salted, **scope)[0] for scope in salts] == [0, 8, 0]
            assert [router.ask(tuned, **scope)[0] for scope in loras] == [0, 8, 0]
            for number, scope in enumerate((Scope(salt=5), Scope(epoch="new"), Scope(salt=b"x"))):
                tell(router, ids(range(500 + 50 * number, 508 + 50 * number)), scope=scope)
            router.caught_up()
            assert [router.ask(ids(range(500 + 50 * n, 508 + 50 * n)))[0] for n in range(3)] == [0, 0, 0]


def test_an_image_is_no_match_for_its_token_ids(indexer: Indexer) -> None:
    with routed(indexer, build(64, 0)) as router:
        tell(router, ids(range(100, 112)), media=(Media(b"i" * 16, (Span(5, 7),)),))
        router.caught_up()
        assert router.ask(ids(range(100, 112))) == (4, 4, 4)  # the text before it


def test_only_full_attention_counts(indexer: Indexer) -> None:
    """Other groups are told with their kind; the window has let go of what it no longer reads, and nobody minds."""
    groups = (LayerGroup("w", window=4), LayerGroup("f"), LayerGroup("s", snapshot_every=16))
    with routed(indexer, build(64, 0, groups=groups)) as router:
        tell(router, ids(range(100, 117)))
        router.says((16, 16, 16), ids(range(100, 116)))


def test_a_late_router_replays_what_is_kept(indexer: Indexer) -> None:
    cache = build(64, 0)
    with Publisher(cache, ANY, replay=ANY) as publisher:
        prompts = [ids(range(100 * n, 100 * n + 8)) for n in range(1, 6)]
        for prompt in prompts:
            run(cache, object(), prompt)
            publisher.tell()
        until(lambda: publisher.waiting == 0, "sent")
        router = Router(indexer, publisher)

        def known() -> bool:
            run(cache, object(), ids(*SENTINEL))
            publisher.tell()
            return all(router.ask(prompt) == (8, 8, 8) for prompt in prompts)

        until(known, "all prompts are known")


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_a_removal_counts_for_its_own_group(indexer: Indexer, encoding: Any) -> None:
    """Groups share a block's hash; the window's page goes, the other's stays."""
    groups = (LayerGroup("w", window=4), LayerGroup("f"))
    cache = Cache(CacheConfig((TierConfig("device", (4, 64)),), 4, groups, max_length=64, events=True))
    with routed(indexer, cache, encoding=encoding) as router:
        tell(router, ids(range(100, 108)))
        router.says((8, 8, 8), ids(range(100, 108)))
        tell(router, ids(range(200, 216)))  # of the window's four pages all are taken
        router.caught_up()
        told = [event for _, payload in router.publisher._maker.archive.since(0) for event in read(payload)["events"]]
        assert any(event["type"] == "BlockRemoved" and event["group_idx"] == 0 for event in told)
        assert router.ask(ids(range(100, 108))) == (8, 8, 8) == router.ask(ids(range(200, 208)))


class Raw:
    """Batches made by hand, for what a publisher of ours never sends."""

    def __init__(self, indexer: Indexer, socket: zmq.Socket[bytes]) -> None:
        self.indexer, self.socket, self.instance, self.seq = indexer, socket, next(instances), 0
        self.model = f"raw-{self.instance}"
        endpoint = bound_to(socket)
        body = {"instance_id": self.instance, "endpoint": endpoint, "model_name": self.model, "block_size": 4}
        indexer.http("/register", body)

    def send(self, name: Any, tokens: list[int], **fields: Any) -> None:
        event = {"type": "BlockStored", "block_hashes": [name], "parent_block_hash": None, "token_ids": tokens,
                 "block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None} | fields  # fmt: skip
        self.socket.send_multipart([b"", number(self.seq), msgspec.msgpack.encode([1.0, [event], 0])])
        self.seq += 1

    def knows(self, tokens: list[int], **scope: Any) -> bool:
        body = {"token_ids": tokens, "model_name": self.model, **scope}
        return bool(self.indexer.http("/query", body)["instances"])


def test_what_our_publisher_is_built_on(indexer: Indexer) -> None:
    """Why salts are tagged, hashes are 64-bit numbers, media come from a list and parents are linked."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
    try:
        socket.bind(ANY)
        raw = Raw(indexer, socket)
        names = count(1000)

        def connected() -> bool:
            raw.send(next(names), [1, 1, 1, 1])
            return raw.knows([1, 1, 1, 1])

        until(connected, "it hears")
        raw.send(11, [2, 2, 2, 2], extra_keys=[["pepper"]])  # as vLLM sends a salt: anybody matches it
        raw.send(b"x" * 32, [3, 3, 3, 3])  # refused, with its whole batch
        raw.send(13, [4, 4, 4, 4], medium="FS")
        raw.send(14, [5, 5, 5, 5], parent_block_hash=424242)
        raw.send(15, [6, 6, 6, 6], kv_cache_spec_kind="sliding_window", group_idx=1)
        raw.send(16, [7, 7, 7, 7])
        until(lambda: raw.knows([7, 7, 7, 7]), "the stream goes on")
        assert [raw.knows([token] * 4) for token in range(2, 7)] == [True, False, False, False, False]
    finally:
        socket.close(0)
