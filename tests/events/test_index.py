"""The index: what it answers is what each cache would answer itself; labels; bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from quire import InputError, LayerGroup, Media, Request, RetainRange, Retention, Scope, Span, UnknownError
from quire.core.records.config import EVENT_SEED
from quire.core.store import StoreName, open_store
from quire.events.follow.index import Index
from quire.events.follow.prompt_hashes import PromptHashes
from quire.events.follow.stream_state import ReplayRequest, Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names

from .lives import FULL, MIXED, SALTS, Life, build, ids, run

CROSSED = (LayerGroup("full"), LayerGroup("cross", cross=True))
WINDOWS = (LayerGroup("w", window=9), LayerGroup("v", window=2, sinks=5))


class Worker:
    """A cache whose events go straight into an index."""

    def __init__(self, index: Index, name: str, **options: Any) -> None:
        self.index, self.name = index, name
        self.cache = build(partial_reuse=False, **options)
        self.maker = PayloadMaker(Names.from_config(self.cache.config), "map", Archive(50, 1 << 24))
        index.add(name)
        self.tell(whole=True)

    def tell(self, **how: Any) -> ReplayRequest | None:
        return self.index.hear(self.name, *self.maker.make(self.cache.take_events(**how)))


@pytest.mark.parametrize("groups", [FULL, MIXED, CROSSED, WINDOWS], ids=["full", "mixed", "cross", "windows"])
def test_every_worker_holds_what_its_cache_would_reuse(groups: tuple[LayerGroup, ...], store: StoreName) -> None:
    """A probe of each cache is the judge: same tokens, after random lives, with salts; tiers add up."""
    index = Index(store=store)
    workers = [Worker(index, f"w{n}", slots=10 + 3 * n, host=6 * (n % 2), groups=groups) for n in range(4)]
    lives = [Life(worker.cache, seed) for seed, worker in enumerate(workers)]
    held = 0
    for _ in range(25):
        for worker, life in zip(workers, lives, strict=True):
            life.step()
            worker.tell()
        prompt = lives[0].prompt()
        for salt in SALTS[2:]:
            found = index.find(prompt[:-1], Scope(salt=salt))
            for worker in workers:
                (probe,) = worker.cache.probe([Request("q", prompt, Scope(salt=salt))])
                holding = found.get(worker.name)
                assert (holding.tokens if holding else 0) == probe.start
                if holding:
                    assert sum(holding.tiers) == holding.tokens and holding.status is Status.EXACT
                    held += 1
    assert held > 20


def test_a_window_without_its_sinks_is_no_use() -> None:
    """Its last blocks are all there, its first is not."""
    index = Index()
    worker = Worker(index, "w", slots=5, host=0, groups=(LayerGroup("w", window=5, sinks=4),))
    prompt = ids(range(17))
    first = Retention((RetainRange(0, 4, 0, None), RetainRange(4, None, 90, None)))
    run(worker.cache, 1, prompt, retention=first)
    worker.tell()
    assert index.find(prompt[:-1])["w"].tokens == 16
    run(worker.cache, 2, ids(range(50, 58)))
    worker.tell()
    (probe,) = worker.cache.probe([Request("q", prompt)])
    assert probe.start == 0 and index.find(prompt[:-1]) == {}
    root = Scope().event_hash(EVENT_SEED)
    tiers = index._ledger.walk(0, index._chain(4, prompt, None).event_hashes(root, EVENT_SEED), [0])
    assert tiers[0].tolist() == [-1, 0, 0, 0]


def test_late_batches_of_a_replaced_publisher_are_known_for_what_they_are() -> None:
    index = Index()
    old = Worker(index, "w")
    run(old.cache, 1, ids(range(8)))
    late = old.maker.make(old.cache.take_events())
    new = PayloadMaker(Names.from_config(old.cache.config), "map", Archive(10, 1 << 20))
    run(old.cache, 2, ids(range(50, 58)))
    index.hear("w", *new.make(old.cache.take_events(whole=True)))
    before = index.pages("w")
    assert index.status("w") is Status.EXACT and len(before) == 4
    assert index.hear("w", *late) is None and index.status("w") is Status.EXACT and index.pages("w") == before


def test_tiers_are_told_apart() -> None:
    index = Index()
    worker = Worker(index, "w", slots=4, host=8)
    run(worker.cache, 1, ids(range(16)))
    run(worker.cache, 2, ids(range(4), range(50, 58)))
    worker.tell()
    assert (index.find(ids(range(16)))["w"].tokens, index.find(ids(range(16)))["w"].tiers) == (16, (8, 8))


def test_words_and_scopes_are_told_apart() -> None:
    index = Index()
    worker = Worker(index, "w", slots=32)
    image = Media(b"i" * 16, (Span(5, 7),))
    run(worker.cache, 1, ids(range(12)), media=(image,))
    run(worker.cache, 2, ids(range(12)), extra_ids=np.full(12, 3, np.int64))
    run(worker.cache, 3, ids(range(12)), scope=Scope(lora="ad"))
    worker.tell()

    def tokens(**how: Any) -> int:
        return sum(holding.tokens for holding in index.find(ids(range(12)), **how).values())

    assert (tokens(), tokens(media=(image,)), tokens(extra_ids=np.full(12, 3, np.int64))) == (4, 12, 12)
    assert tokens(scope=Scope(lora="ad")) == 12 and tokens(scope=Scope(lora="other")) == 0


def test_workers_built_differently_live_in_one_index() -> None:
    index = Index()
    four, eight = Worker(index, "four", block_size=4), Worker(index, "eight", block_size=8)
    for worker in (four, eight):
        run(worker.cache, 1, ids(range(21)))
        worker.tell()
    assert {name: held.tokens for name, held in index.find(ids(range(21))).items()} == {"four": 20, "eight": 16}


def test_many_workers_come_and_go() -> None:
    index = Index()
    workers = [Worker(index, f"w{n}", slots=8) for n in range(30)]
    for number, worker in enumerate(workers):
        run(worker.cache, 1, ids(range(4 * (number % 3 + 1))))
        worker.tell()
    found = {name: held.tokens for name, held in index.find(ids(range(12))).items()}
    assert found == {f"w{n}": 4 * (n % 3 + 1) for n in range(30)}
    for number in range(0, 30, 2):
        index.remove(f"w{number}")
    again = Worker(index, "new", slots=8)
    assert {*index.find(ids(range(12)))} == {f"w{n}" for n in range(1, 30, 2)} and again.name in index.workers()


def test_labels_follow_the_stream() -> None:
    index = Index()
    worker = Worker(index, "w", slots=32)
    assert index.status("w") is Status.EXACT
    run(worker.cache, 1, ids(range(8)))
    lost = worker.maker.make(worker.cache.take_events())
    run(worker.cache, 2, ids(range(20, 28)))
    assert worker.tell() == ReplayRequest(1) and index.status("w") is Status.REPAIRING
    assert index.find(ids(range(8))) == {}  # stale, and said so
    run(worker.cache, 3, ids(range(40, 48)))
    assert worker.tell() is None  # it is on its way
    assert index.hear("w", *lost, asked=True) is None and index.answered("w", ReplayRequest(1)) is None
    assert index.status("w") is Status.EXACT and index.find(ids(range(8)))["w"].tokens == 8
    report = index.report("w")
    assert (report.gaps, report.replays, report.snapshots, report.repair_bytes) == (1, 1, 0, len(lost[1]))


def test_when_replay_is_not_enough_a_snapshot_is() -> None:
    index = Index()
    worker = Worker(index, "w", slots=32)
    run(worker.cache, 1, ids(range(8)))
    worker.maker.make(worker.cache.take_events())
    run(worker.cache, 2, ids(range(20, 28)))
    assert worker.tell() == ReplayRequest(1)
    assert index.answered("w", ReplayRequest(1)) == ReplayRequest(None)  # nothing came
    found = worker.maker.snapshot()
    assert found is not None
    assert index.hear("w", *found, asked=True) is None and index.status("w") is Status.EXACT


def test_a_state_that_differs_is_found_by_its_digest() -> None:
    """No number is missing, and yet: a page less in the index."""
    index = Index()
    worker = Worker(index, "w", slots=32)
    run(worker.cache, 1, ids(range(8)))
    worker.tell()
    hashes, _, _ = index._ledger.pages(0, 0)
    index._ledger.apply(0, np.array([[4, 0, 1, 0, 0]], np.int32), hashes[:1], np.zeros(1, np.uint8))
    run(worker.cache, 2, ids(range(20, 28)))
    assert worker.tell() == ReplayRequest(None) and index.status("w") is Status.REPAIRING
    assert index.report("w").mismatches == 1


def test_a_quiet_worker_is_checked_by_a_mark() -> None:
    index = Index()
    worker = Worker(index, "w", slots=32)
    assert index.check("w") == ReplayRequest(1, check=True)
    assert index.hear("w", *worker.maker.mark(), asked=True) is None and index.status("w") is Status.EXACT
    run(worker.cache, 1, ids(range(8)))
    lost = worker.maker.make(worker.cache.take_events())  # the last batch of a busy hour
    assert index.hear("w", *worker.maker.mark(), asked=True) == ReplayRequest(1)
    assert index.status("w") is Status.REPAIRING
    assert index.hear("w", *lost, asked=True) is None and index.status("w") is Status.EXACT
    index.silent("w")
    assert index.status("w") is Status.UNKNOWN
    assert index.hear("w", *worker.maker.mark(), asked=True) is None and index.status("w") is Status.EXACT


def test_another_engines_stream_cannot_be_vouched_for() -> None:
    index = Index()
    index.add("vllm")
    stored = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
              "block_size": 4, "lora_id": None, "medium": "GPU", "lora_name": None}  # fmt: skip
    assert index.hear("vllm", 0, msgspec.msgpack.encode([1.0, [stored], 0])) is None
    assert index.hear("vllm", 1, msgspec.msgpack.encode([1.0, [], 0])) is None
    assert index.status("vllm") is Status.UNKNOWN and index.pages("vllm") == {}


NO_BATCHES = ([1.0, [[7]], 0], {"ts": 1}, [1.0, [{"quire": 3}], 0], 5, None)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"nonsense", *map(msgspec.msgpack.encode, NO_BATCHES)])
def test_what_is_no_batch_counts_as_lost(payload: bytes) -> None:
    index = Index()
    worker = Worker(index, "w")
    assert index.hear("w", 1, payload) == ReplayRequest(1)
    assert index.status("w") is not Status.EXACT and index.report("w").damaged == 1
    assert (index.status("w") is Status.UNKNOWN) == bool(index.report("w").reason)
    run(worker.cache, 1, ids(range(8)))
    assert worker.tell() is None and index.status("w") is Status.EXACT


def test_a_damaged_batch_is_not_forgotten_when_earlier_ones_come() -> None:
    index = Index()
    worker = Worker(index, "w")
    batches = []
    for number in range(3):
        run(worker.cache, number, ids(range(100 * number, 100 * number + 8)))
        batches.append(worker.maker.make(worker.cache.take_events()))
    assert index.hear("w", 3, batches[2][1][:-7]) == ReplayRequest(1)
    for early in batches[:2]:
        assert index.hear("w", *early) is None and index.status("w") is Status.REPAIRING
    assert index.hear("w", *batches[2]) is None and index.status("w") is Status.EXACT


def test_a_number_that_is_nonsense_does_not_last() -> None:
    """Nothing comes for it, so a snapshot is asked for; that settles it."""
    index = Index()
    worker = Worker(index, "w")
    assert index.hear("w", 1 << 60, b"nonsense") == ReplayRequest(1)
    assert index.answered("w", ReplayRequest(1)) == ReplayRequest(None)
    found = worker.maker.snapshot()
    assert found is not None and index.hear("w", *found, asked=True) is None
    assert index.status("w") is Status.EXACT


def test_records_that_no_recorder_makes_spoil_nothing() -> None:
    """A batch whose numbers were tampered with: noticed, and repaired by the whole state."""
    index = Index()
    worker = Worker(index, "w")
    run(worker.cache, 1, ids(range(8)))
    seq, payload = worker.maker.make(worker.cache.take_events())
    batch = msgspec.msgpack.decode(payload)
    extra = batch[1][-1]["quire"]
    extra[7] = np.array([[1, 60, 2, 0, 0]], "<i4").tobytes()
    assert index.hear("w", seq, msgspec.msgpack.encode(batch)) == ReplayRequest(None)
    found = worker.maker.snapshot()
    assert found is not None and index.hear("w", *found) is None and index.status("w") is Status.EXACT


def test_misuse_is_told() -> None:
    index = Index()
    index.add("w")
    with pytest.raises(InputError, match="there already"):
        index.add("w")
    with pytest.raises(UnknownError, match="does not know it"):
        index.status("x")
    for tokens in ([1, 2, 3], np.zeros(4), np.zeros((2, 2), np.int32)):
        with pytest.raises(InputError, match="one-dimensional int32"):
            index.find(tokens)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pass a Scope"):
        index.find(ids(range(8)), "salt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one per token"):
        index.find(ids(range(8)), extra_ids=np.zeros(7, np.int64))
    assert index.find(ids(range(3))) == {}


def test_any_slice_of_tokens_will_do() -> None:
    index = Index()
    worker = Worker(index, "w")
    run(worker.cache, 1, ids(range(0, 16, 2)))
    worker.tell()
    assert index.find(ids(range(16))[::2])["w"].tokens == 8


BAD_FIELDS: tuple[tuple[int, Any], ...]
BAD_FIELDS = ((0, 1), (2, 0), (2, 1 << 20), (3, []), (4, []), (5, 9), (10, b"123"), (8, b"1"))


@pytest.mark.parametrize(("place", "value"), BAD_FIELDS)
def test_a_field_of_ours_with_impossible_sizes_counts_as_lost(place: int, value: Any) -> None:
    """Version, block size, tiers, groups, form, digest, hashes."""
    index = Index()
    worker = Worker(index, "w")
    run(worker.cache, 1, ids(range(8)))
    seq, payload = worker.maker.make(worker.cache.take_events())
    batch = msgspec.msgpack.decode(payload)
    batch[1][-1]["quire"][place] = value
    assert index.hear("w", seq, msgspec.msgpack.encode(batch)) == ReplayRequest(1) and index.report("w").damaged == 1
    assert index.status("w") is Status.UNKNOWN and index.report("w").reason
    assert index.hear("w", seq, payload) is None and index.find(ids(range(8)))["w"].tokens == 8


def test_a_mark_that_is_one_batch_old_says_nothing_about_what_is_known_since() -> None:
    """It was on its way while the next batch came: an older state, and no mismatch; nor is the last one doubted."""
    index = Index()
    worker = Worker(index, "w")
    run(worker.cache, 1, ids(range(8)))
    worker.tell()
    request, mark = index.check("w"), worker.maker.mark()
    run(worker.cache, 2, ids(range(50, 58)))
    worker.tell()
    assert request == ReplayRequest(2, check=True) and mark[0] == 1 and index.hear("w", *mark, asked=True) is None
    assert index.answered("w", request) is None and index.status("w") is Status.EXACT
    assert index.report("w").mismatches == 0 and index.find(ids(range(50, 58)))["w"].tokens == 8
    assert index.hear("w", *worker.maker.mark(), asked=True) is None and index.status("w") is Status.EXACT


def test_workers_that_share_a_seed_share_the_hashes_of_a_prompt(store: StoreName) -> None:
    """Hashing is what a lookup costs: once per seed and block size, however differently workers are built."""
    seeds = (b"a" * 16, b"b" * 16)
    names = [
        Names.from_config(build(host=host, groups=groups, event_seed=seed, block_size=size).config)
        for seed in seeds for host in (0, 8) for groups in (FULL, MIXED) for size in (4, 8)
    ]  # fmt: skip
    prompt = PromptHashes(open_store(store).Chain, ids(range(40)), Scope(salt="s"))
    made = {id(prompt.for_names(each)): prompt.for_names(each).tolist() for each in names}
    assert len(set(names)) == 16 and len(made) == 4 and sorted(map(len, made.values())) == [5, 5, 10, 10]
    assert all(prompt.for_names(each) is prompt.for_names(replace(each, media=("REMOTE",))) for each in names)


def test_workers_with_different_seeds_are_found_all_the_same() -> None:
    index = Index()
    for number in range(6):
        worker = Worker(index, f"w{number}", slots=8, event_seed=bytes([number % 3]) * 16, host=number % 2)
        run(worker.cache, 1, ids(range(12)))
        worker.tell()
    assert {name: held.tokens for name, held in index.find(ids(range(12))).items()} == {f"w{n}": 12 for n in range(6)}
