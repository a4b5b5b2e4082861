"""The event hash: SipHash-2-4 with a seed that routers learn from the stream: no prompt can be made to collide."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from fuzzing import mirror
from quire import CacheConfig, InputError, Scope, TierConfig
from quire.core.store import StoreName, open_store
from quire.core.store.reference.keys.hash import read_seed, siphash
from quire.events.follow.index import Index
from quire.events.follow.stream_state import Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names

from .lives import build, ids, run

# Of the authors of SipHash: its values for the messages 00, 00 01, 00 01 02, ... under the key 00 01 .. 0f, by length.
KEY = bytes(range(16))
VECTORS = {
    0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 7: 0xAB0200F58B01D137, 8: 0x93F5F5799A932462, 15: 0xA129CA6149BE45E5,
    12: 0x751E8FBC860EE5FB, 16: 0x3F2ACC7F57C29BDB, 20: 0xBED65CF21AA2EE98, 24: 0xB8AD50C6F649AF94,
    28: 0xDE4DAAACA71DC9A5, 32: 0x7127512F72F27CCE, 36: 0x314DFFBE0815A3B4, 40: 0x0E3EA96B5304A7D0,
    44: 0xF935451DE4F21DF2, 48: 0xE612A3CB9ECBA951, 52: 0x0A8787BF8ECB74B2, 56: 0xB78DBFAF3A8D83BD,
    60: 0x6CA4ECB15C5F91E1,
}  # fmt: skip
# Two blocks that the hash before gave one name (1): a token pair equal to its state made one of the last factors 0.
TWINS = (
    [17611, 74606, 111074, 105154, 1305341420, 1359071328, 100109, 8271],
    [33432, 15455, 64937, 99740, 1488247544, 198462671, 58915, 61898],
)


@pytest.mark.parametrize("length", VECTORS)
def test_the_twin_is_siphash(length: int) -> None:
    assert siphash(read_seed(KEY), bytes(range(length))) == VECTORS[length]


@pytest.mark.parametrize("length", range(12, 64, 4))
def test_a_block_is_hashed_as_its_parent_and_its_tokens(store: StoreName, length: int) -> None:
    message = bytes(range(length))
    tokens, root = np.frombuffer(message[8:], "<i4").astype(np.int32), int.from_bytes(message[:8], "little")
    assert open_store(store).Chain(len(tokens), tokens).event_hashes(root, KEY).tolist() == [VECTORS[length]]


def test_the_judge_of_the_fuzzer_has_made_the_same_hash_by_itself(store: StoreName) -> None:
    dice = np.random.default_rng(3)
    for size in (1, 2, 3, 16):
        tokens = dice.integers(-(1 << 31), 1 << 31, size).astype(np.int32)
        words = dice.integers(0, 1 << 63, (size, 3)).astype(np.uint64) * (dice.random((size, 1)) < 0.5)
        words = words.astype(np.uint64)
        block = tuple((token, *extra) for token, extra in zip(tokens.tolist(), words.tolist(), strict=True))
        chain = open_store(store).Chain(size, tokens, words)
        assert chain.event_hashes(9, mirror.SEED).tolist() == [mirror.event_hash(9, block)]


def test_tokens_cannot_stand_for_the_words_of_others(store: StoreName) -> None:
    """A child of eight tokens that are the bytes of its parent's words: they lie behind one hash, and differ."""
    chain = open_store(store).Chain
    words = np.zeros((8, 3), np.uint64)
    words[3] = (5, 6, 7)
    bare = chain(8, ids(range(8))).event_hashes(1, KEY)
    worded = chain(8, ids(range(8)), words).event_hashes(1, KEY)
    child = chain(8, ids(3, 0, 5, 0, 6, 0, 7, 0)).event_hashes(int(bare[0]), KEY)
    assert len({int(bare[0]), int(worded[0]), int(child[0])}) == 3


class Worker:
    """A cache whose events go straight into an index."""

    def __init__(self, index: Index, name: str, **options: Any) -> None:
        self.index, self.name = index, name
        self.cache = build(block_size=8, **options)
        self.maker = PayloadMaker(Names.from_config(self.cache.config), "map", Archive(50, 1 << 24))
        index.add(name)
        self.tell(whole=True)

    def tell(self, **how: Any) -> None:
        self.index.hear(self.name, *self.maker.make(self.cache.take_events(**how)))


def test_blocks_made_to_collide_are_told_apart() -> None:
    index = Index()
    worker = Worker(index, "w")
    one, other = (np.array(tokens, np.int32) for tokens in TWINS)
    run(worker.cache, 1, one)
    worker.tell()
    assert index.find(one)["w"].tokens == 8 and index.find(other) == {}
    run(worker.cache, 2, other)
    worker.tell()
    assert index.find(other)["w"].tokens == 8 and index.status("w") is Status.EXACT and worker.maker.inconsistent == 0


def test_workers_with_seeds_of_their_own_and_with_one_in_common_are_found_alike() -> None:
    index, seed = Index(), secrets.token_bytes(16)
    workers = [Worker(index, f"w{nth}", event_seed=seed if nth < 2 else secrets.token_bytes(16)) for nth in range(4)]
    prompt = ids(range(40))
    for worker in workers:
        run(worker.cache, 1, prompt, scope=Scope(salt="a"))
        worker.tell()
    assert {name: found.tokens for name, found in index.find(prompt, Scope(salt="a")).items()} == dict.fromkeys(
        ("w0", "w1", "w2", "w3"), 40
    )
    assert index.find(prompt) == {}
    names = [set(index.pages(worker.name)) for worker in workers]
    assert names[0] == names[1] and len(set().union(*names)) == 3 * len(names[0])


def test_a_seed_is_bytes_that_are_long_enough_and_nobody_reads_it_in_a_log() -> None:
    tiers = (TierConfig("device", 4),)
    for wrong in (b"", bytes(15), bytes(17), "0123456789abcdef", 7, None):
        with pytest.raises(InputError, match="use secrets"):
            CacheConfig(tiers, event_seed=wrong)  # type: ignore[arg-type]
    config = CacheConfig(tiers, event_seed=b"not to be read!!")
    assert "not to be read" not in repr(config) + repr(Names.from_config(config))
    assert CacheConfig(tiers).event_seed == CacheConfig(tiers).event_seed != bytes(16)
