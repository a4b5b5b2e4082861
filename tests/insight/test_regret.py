"""Regret of a real cache: what it counts is what the cache did, and nobody who serves waits for it."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Media, Request, Scope, Sequence, Span, TierConfig, check
from quire.insight import Regret, RegretReport
from quire.insight import regret as module
from quire.insight.evaluate import NO_FULL_GROUP
from quire.trace.record.block_ids import TraceKey

from ..core.conftest import seq, serve
from ..waits import until

PAGE = 1_000_000
IMAGE = b"the digest of an image"


class Rig:
    """A small cache on a clock of its own, watched."""

    def __init__(self, *slots: int, **options: Any) -> None:
        self.now = 0.0
        names = zip(("device", "host", "disk"), slots, strict=False)
        tiers = tuple(TierConfig(name, count) for name, count in names)
        fields = {"block_size": 4, "max_sequences": 8, "max_length": 256, "groups": (LayerGroup(page_bytes=PAGE),)}
        self.cache = Cache(CacheConfig(tiers, **{**fields, **options}), clock=lambda: self.now)
        self.regret = Regret(self.cache, clock=lambda: self.now, thread=False)

    def begin(self, tokens: Any, **options: Any) -> Sequence:
        batch = self.cache.add_sequence_batch([Request(object(), tokens, **options)])
        self.cache.finish(batch.plan)
        self.cache.commit(batch.sequences)
        self.now += 1
        return batch.sequences[0]

    def serve(self, tokens: Any, answer: Any = (), **options: Any) -> int:
        """A request's whole life; where it started to compute."""
        sequence = self.begin(tokens, **options)
        if len(answer):
            assert self.cache.grow(sequence, np.asarray(answer, np.int32), num_tokens=len(answer)) is not None
            self.cache.commit(sequence)
        start = sequence.start
        self.cache.release(sequence)
        check(self.cache)
        return start

    def report(self) -> RegretReport:
        return self.regret.report()


def test_it_counts_what_the_cache_did() -> None:
    rig = Rig(16, 16)
    starts = [rig.serve(seq(100 * nth, 30)) for nth in (0, 1, 2, 0, 1, 2, 3, 4, 0)]
    found = rig.report()
    whole = [start // 4 * 4 for start in starts]
    assert sum(whole) > 0 and found.requests == 9 and found.prompt_tokens == 270
    assert found.hit_rate == pytest.approx(sum(whole) / 270)
    assert [tier.measured for tier in found.tiers] == pytest.approx([tier * 4 / 270 for tier in by_tier(rig.cache)])
    assert found.tiers[1].measured > 0, "some came from the host"
    assert found.ceiling == pytest.approx(4 * 28 / 270), "four came again, each with seven whole blocks to hit"
    assert found.optimum is not None and found.hit_rate <= found.optimum <= found.ceiling
    assert found.regret == found.optimum - found.hit_rate
    assert rig.regret.latest is found


def test_a_report_replaces_the_older_one_under_way() -> None:
    rig = Rig(16, 16)
    rig.serve(seq(0, 30))
    rig.regret._evaluation = rig.regret._evaluate(True)  # as the thread has it: one request, and not told yet
    rig.serve(seq(0, 30))
    found = rig.report()
    while rig.regret._slice():
        pass
    assert found.requests == 2 and rig.regret.latest is found


def by_tier(cache: Cache) -> tuple[int, ...]:
    counts = cache.stats()
    return tuple(all_ - part for all_, part in zip(counts.reused_from, counts.partial_from, strict=True))


def test_the_curve_and_the_tiers_say_the_same() -> None:
    rig = Rig(16, 32)
    for nth in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1):
        rig.serve(seq(100 * nth, 30))
    found = rig.report()
    device, both = found.tiers
    assert (device.blocks, both.blocks, device.num_bytes) == (16, 32, 16 * PAGE)
    points = {point.blocks: point for point in found.curve}
    assert points[16].hit_rate == device.hit_rate < both.hit_rate == points[48].hit_rate == found.orders["lru"]
    assert points[16].num_bytes == 16 * PAGE
    rates = [point.hit_rate for point in found.curve]
    assert rates == sorted(rates) and found.curve[-1].blocks == 4 * 48
    assert device.optimum is not None and device.hit_rate <= device.optimum
    assert device.per_gb == pytest.approx(found.ceiling - device.hit_rate), "a GB has room for everything here"


def test_one_more_gb_is_worth_what_fits_into_it() -> None:
    rig = Rig(8, groups=(LayerGroup(page_bytes=250_000_000),))
    for nth in (0, 1, 0, 1):
        rig.serve(seq(100 * nth, 25))
    (tier,) = rig.report().tiers
    assert tier.hit_rate == pytest.approx(4 * 2 * 2 / 100), "of 6 blocks each, 2 are left when they come again"
    assert tier.per_gb == pytest.approx(4 * 2 * 4 / 100), "4 blocks more fit, and both would have had them"


def test_an_answer_that_comes_again_is_found() -> None:
    rig = Rig(64)
    rig.serve(seq(0, 10), answer=range(500, 520))
    follow_up = np.concatenate([seq(0, 10), np.arange(500, 520, dtype=np.int32), seq(900, 5)])
    assert rig.serve(follow_up) == 30
    found = rig.report()
    assert found.ceiling == found.hit_rate == pytest.approx(28 / 45)


def test_what_was_cancelled_leaves_no_answer() -> None:
    rig = Rig(64)
    sequence = rig.begin(seq(0, 10))
    rig.cache.grow(sequence, np.arange(500, 520, dtype=np.int32), num_tokens=20)
    rig.cache.release(sequence, store=False)
    assert rig.report().requests == 1
    rig.serve(np.concatenate([seq(0, 10), np.arange(500, 520, dtype=np.int32)]))
    assert rig.report().ceiling == pytest.approx(8 / 40)


def test_a_sequence_that_comes_back_is_one_request() -> None:
    rig = Rig(64)
    sequence = rig.begin(seq(0, 10))
    batch = rig.cache.add_sequence_batch([rig.cache.suspend(sequence, seq(50, 3))])
    rig.cache.finish(batch.plan)
    rig.cache.commit(batch.sequences)
    rig.cache.release(batch.sequences[0])
    dummy = rig.cache.add_sequence_batch([Request.dummy("d", 8)])
    rig.cache.finish(dummy.plan)
    rig.cache.release(dummy.sequences[0])
    found = rig.report()
    assert (found.requests, found.prompt_tokens, found.hit_rate) == (1, 10, 0.0)


def test_scopes_media_and_requests_without_reuse_share_nothing() -> None:
    rig = Rig(64)
    for options in ({}, {"scope": Scope(salt="a")}, {"reuse": False}, {"media": (Media(IMAGE, [Span(0, 4)]),)}):
        rig.serve(seq(0, 20), **options)
    assert rig.report().ceiling == 0
    rig.serve(seq(0, 20), scope=Scope(salt="a"))
    rig.serve(seq(0, 20), media=(Media(IMAGE, [Span(0, 4)]),))
    assert rig.report().ceiling == pytest.approx(2 * 16 / 120)


def test_media_at_the_end_of_a_prompt_are_told_with_its_answer() -> None:
    rig = Rig(64)
    media = (Media(IMAGE, [Span(8, 10)]),)
    rig.serve(seq(0, 10), answer=range(500, 512), media=media)
    again = np.concatenate([seq(0, 10), np.arange(500, 512, dtype=np.int32), seq(900, 3)])
    assert rig.serve(again, media=media) == 22 and rig.report().ceiling == pytest.approx(20 / 35)
    assert rig.serve(again) == 8 and rig.report().ceiling == pytest.approx((20 + 8) / 60)


def test_only_the_last_hour_counts() -> None:
    rig = Rig(64)
    rig.serve(seq(0, 20))
    rig.now += 3600
    rig.serve(seq(0, 20))
    found = rig.report()
    assert (found.requests, found.prompt_tokens) == (1, 20) and found.ceiling == found.hit_rate == pytest.approx(
        16 / 20
    )
    rig.now += 3601
    found = rig.report()
    assert (found.requests, found.seconds, found.hit_rate, found.optimum) == (0, 0.0, 0.0, 0.0)


def test_every_order_is_judged() -> None:
    rig = Rig(24)
    rng = np.random.default_rng(0)
    for nth in range(400):
        rig.serve(seq(1000 * (nth % 3), 17) if nth % 4 == 0 else rng.integers(5000, 1 << 30, 17, dtype=np.int32))
    found = rig.report()
    assert set(found.orders) == {"lru", "adaptive", "release_order"} and found.eviction == rig.cache.config.order
    assert found.orders["adaptive"] > found.orders["lru"] + 0.01
    assert found.optimum is not None and found.optimum >= found.orders["adaptive"] - 1e-9
    quick = rig.regret.report(orders=False)
    assert quick.optimum is None and quick.regret is None and set(quick.orders) == {"lru"}
    assert rig.regret.latest is found


def test_a_model_that_reads_no_whole_prompt_has_no_curve() -> None:
    rig = Rig(64, groups=(LayerGroup("local", window=16, page_bytes=PAGE),))
    for _ in range(2):
        rig.serve(seq(0, 20))
    found = rig.report()
    assert found.note == NO_FULL_GROUP and found.curve == () and found.optimum is None
    assert found.hit_rate == found.ceiling == pytest.approx(16 / 40)


def test_a_report_is_plain_data_without_tokens_or_keys() -> None:
    rig = Rig(16, 16)
    rig.serve(np.arange(7_654_321, 7_654_351, dtype=np.int32))
    text = json.dumps(rig.report().to_json())
    assert "76543" not in text and not [number for number in map(len, text.split()) if number > 24]
    assert json.loads(text)["tiers"][0]["name"] == "device" and json.loads(text)["regret"] == 0.0
    assert repr(rig.report()) == "RegretReport(1 requests in 1 s, hit rate 0.0%, at best 0.0%)"


def test_what_comes_too_fast_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 50)
    rig = Rig(64)
    for nth in range(4):
        rig.serve(seq(100 * nth, 20))
    found = rig.report()
    assert (found.requests, found.lost) == (2, 2)
    rig.serve(seq(0, 20))
    assert (rig.report().requests, rig.report().lost) == (3, 2), "there is room again"


def test_what_has_no_tokens_takes_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    rig = Rig(64)
    held = [rig.begin(seq(100 * nth, 20)) for nth in range(4)]
    for sequence in held[:3]:
        rig.cache.release(sequence, store=False)  # two of these ends find no room, and nothing is lost with them
    assert len(rig.regret._queue) == 5
    assert rig.cache.grow(held[3], seq(50, 8), num_tokens=8) is not None
    rig.cache.commit(held[3])
    rig.cache.release(held[3])  # an answer is
    rig.serve(seq(500, 20), answer=seq(600, 8))  # and a request: once, with its answer
    assert (rig.report().requests, rig.report().lost, len(rig.regret._open)) == (4, 2, 0)


def test_it_takes_no_more_memory_than_it_says() -> None:
    rig = Rig(64)
    rig.serve(seq(0, 20))
    rig.report()
    tracemalloc.start()
    try:
        taken, said = tracemalloc.get_traced_memory()[0], rig.regret.num_bytes
        held = [rig.begin(seq(20 * nth, 20)) for nth in range(4)]
        for nth in range(600):
            rig.cache.release(rig.begin(seq(20 * nth, 20)), store=False)
        waiting = tracemalloc.get_traced_memory()[0] - taken
        assert 0.5 * (rig.regret.num_bytes - said) < waiting < 1.2 * (rig.regret.num_bytes - said)
        assert len(rig.regret._queue) == 4 + 2 * 600 and held
    finally:
        tracemalloc.stop()


def test_prompts_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PATHS", 12)
    monkeypatch.setattr(module, "PATH_BLOCKS", 1)
    rig = Rig(64)
    held = [rig.begin(seq(100 * nth, 20)) for nth in range(4)]
    rig.report()
    assert rig.regret._num_path == 12 and len(rig.regret._paths) == 2
    for sequence in held:
        rig.cache.release(sequence)
    rig.report()
    assert rig.regret._num_path == 0 and not rig.regret._paths and not rig.regret._open


def test_keys_are_secret_unless_given() -> None:
    caches = [Cache(CacheConfig((TierConfig("device", 16),), block_size=4)) for _ in range(3)]
    given = TraceKey(b"one secret of the tests, 32 bytes")
    watched = [Regret(cache, key=key, thread=False) for cache, key in zip(caches, (None, given, given), strict=True)]
    for cache in caches:
        serve(cache, Request("a", seq(0, 20)))
    keys = []
    for regret in watched:
        regret.report()
        table = regret._traffic.current.table
        keys.append(sorted(table.keys[table.keys != 0].tolist()))
    assert keys[1] == keys[2] and not set(keys[0]) & set(keys[1]) and len(keys[0]) == 5


def test_the_thread_makes_reports_and_ends_with_the_cache() -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4))
    before = set(threading.enumerate())
    regret = Regret(cache)
    (thread,) = set(threading.enumerate()) - before
    for _ in range(2):
        serve(cache, Request("a", seq(0, 20)))
    while thread.is_alive() and (regret.latest is None or regret.latest.requests < 2):
        regret._due = 0.0
        regret._wake.wait(0.001)
    assert regret.latest is not None and regret.latest.hit_rate == pytest.approx(16 / 40)
    gone = weakref.ref(regret)
    del regret, cache
    gc.collect()
    thread.join()
    assert gone() is None


def test_what_cannot_be_watched_is_left_out_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4))
    before = set(threading.enumerate())
    regret = Regret(cache)
    (thread,) = set(threading.enumerate()) - before
    paths, regret._paths = regret._paths, None  # type: ignore[assignment]
    serve(cache, Request("a", seq(0, 20)))
    until(lambda: regret.error is not None)
    assert regret.error is not None and regret.error.startswith("TypeError at ") and "is left out" in caplog.text
    regret._paths = paths
    serve(cache, Request("a", seq(0, 20)))
    until(lambda: regret.report().requests >= 1)
    assert thread.is_alive() and regret.report().lost >= 1
    regret.close()


def test_a_report_that_cannot_be_made_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.0)
    monkeypatch.setattr(module, "IDLE", 0.01)
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4))
    regret = Regret(cache)
    with monkeypatch.context() as patch:
        patch.setattr(regret, "_evaluate", lambda _: iter([1 // 0 for _ in [1]]))
        serve(cache, Request("a", seq(0, 20)))
        until(lambda: regret.error is not None)
    until(lambda: regret.latest is not None)
    regret.close()


def test_closed_it_hears_no_more() -> None:
    rig = Rig(64)
    rig.serve(seq(0, 20))
    rig.regret.close()
    rig.serve(seq(0, 20))
    assert rig.report().requests == 1


@pytest.mark.parametrize("options", [{"window": 0}, {"one_in": 0}, {"window": True}, {"one_in": "x"}])
def test_sizes_that_are_none_are_refused(options: dict[str, Any]) -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),)))
    with pytest.raises(InputError, match="give a number above 0"):
        Regret(cache, **options)
    assert not cache._watchers
