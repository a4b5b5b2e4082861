"""What events cost: recording, publishing, following, looking up, repairing. `--json` prints the numbers alone.

Run it as `python benchmarks/events.py`; needs the extra `events`. The stream over sockets runs in two
processes, a publisher and an index, for two cores. Compare only inside one run.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, EventBatch, Request, TierConfig
from quire.core.store import open_store
from quire.events import Follower, Index, Publisher, Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.publish.publisher import Told
from quire.events.wire.delta import decoded, records_of
from quire.events.wire.names import Names
from quire.events.wire.protocol import NumberedPayload

BLOCK, PROMPT, SLOTS = 16, 8192, 8192
BLOCKS = PROMPT // BLOCK
dice = np.random.default_rng(7)


def cache_of(events: bool, host: int = 0, slots: int = SLOTS) -> Cache:
    """A device pool that a few prompts fill, so that each further one evicts."""
    tiers = (TierConfig("device", slots), TierConfig("host", host)) if host else (TierConfig("device", slots),)
    return Cache(CacheConfig(tiers, BLOCK, max_sequences=80, max_length=16384, events=events))


def prompts(count: int) -> list[Any]:
    """Prompts that share nothing."""
    return [dice.integers(0, 128_000, PROMPT).astype(np.int32) for _ in range(count)]


def serve(cache: Cache, name: int, tokens: Any) -> None:
    """One request, from admission to release."""
    batch = cache.add_sequence_batch([Request(name, tokens)])
    cache.finish(batch.plan)
    cache.commit(batch.sequences)
    cache.release(batch.sequences[0])


# -- recording -------------------------------------------------------------------------------------------------------


def recording(host: int, full: bool, rounds: int) -> float:
    """Nanoseconds per block event that recording and reading add to a prompt, best of interleaved rounds."""
    pair = {events: cache_of(events, host, SLOTS if full else rounds * BLOCKS + SLOTS) for events in (False, True)}
    for cache in pair.values():
        for number, tokens in enumerate(prompts((SLOTS + host) // BLOCKS + 1 if full else 1)):
            serve(cache, -number - 1, tokens)
    best = dict.fromkeys(pair, float("inf"))
    num_events = 0
    pair[True].take_events()
    for number, tokens in enumerate(prompts(rounds)):
        for events, cache in pair.items():
            begun = time.perf_counter()
            serve(cache, number, tokens)
            batch = cache.take_events()
            best[events] = min(best[events], time.perf_counter() - begun)
            num_events = len(batch.hashes) or num_events
    return (best[True] - best[False]) / num_events * 1e9


# -- publishing and following ----------------------------------------------------------------------------------------


def long_batches(count: int) -> Iterator[EventBatch]:
    """A prompt each: 512 blocks stored in one record, as many removed."""
    cache = cache_of(True)
    yield cache.take_events(whole=True)
    for number, tokens in enumerate(prompts(count)):
        serve(cache, number, tokens)
        yield cache.take_events()


def short_batches(count: int) -> Iterator[EventBatch]:
    """A step of 64 sequences that all fill a block: 64 records of one block, and as many removed."""
    cache = cache_of(True, slots=64 * 40)
    yield cache.take_events(whole=True)
    number = 0
    while True:
        number += 1
        requests = [Request((number, n), dice.integers(0, 128_000, BLOCK).astype(np.int32)) for n in range(64)]
        batch = cache.add_sequence_batch(requests)
        cache.commit(batch.sequences)
        for _ in range(32):
            tokens = dice.integers(0, 128_000, (64, BLOCK)).astype(np.int32)
            cache.grow(batch.sequences, tokens, num_tokens=BLOCK)
            cache.commit(batch.sequences)
            yield cache.take_events()
            count -= 1
            if count == 0:
                return
        for sequence in batch.sequences:
            cache.release(sequence)


def spent(work: Callable[[], Any]) -> float:
    """Seconds of one call, with the collector out of the way."""
    gc.disable()
    begun = time.perf_counter()
    work()
    passed = time.perf_counter() - begun
    gc.enable()
    return passed


def in_process(batches: list[EventBatch]) -> dict[str, float]:
    """The best of a few passes, number by number."""
    passes = [one_pass(batches) for _ in range(5)]
    return {name: min(numbers[name] for numbers in passes) for name in passes[0]}


def one_pass(batches: list[EventBatch]) -> dict[str, float]:
    """Nanoseconds per block event: ledger with digest, encoding, decoding, hearing; and bytes."""
    names = Names.from_config(cache_of(True).config)
    total = sum(len(batch.hashes) for batch in batches)
    ledger, maker, index = open_store().Ledger(1, 1), PayloadMaker(names, "map", Archive(10, 1 << 20)), Index()
    index.add("w")
    deltas = [records_of(batch) for batch in batches]
    payloads: list[NumberedPayload] = []
    numbers = {
        "ledger and digest": spent(lambda: [ledger.apply(0, *records) for records in deltas]),
        "encode, all of it": spent(lambda: payloads.extend(maker.make(batch) for batch in batches)),
        "decode": spent(lambda: [decoded(payload) for _, payload in payloads]),
        "hear, all of it": spent(lambda: [index.hear("w", *payload) for payload in payloads]),
    }
    assert index.status("w") is Status.EXACT
    rates = {f"{name}, ns": seconds / total * 1e9 for name, seconds in numbers.items()}
    return rates | {"bytes": sum(len(payload) for _, payload in payloads) / total, "block events": total}


def _publish(kind: str, count: int, pipe: Any) -> None:
    """The publisher's process: makes the batches, then sends them as fast as it can."""
    made = list((long_batches if kind == "long" else short_batches)(count))
    waiting = iter(made)
    cache = cache_of(True)
    publisher = Publisher(cache, "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*")
    publisher._take = lambda whole: Told(next(waiting), 0)  # type: ignore[method-assign]  # made before, to measure what follows
    pipe.send((publisher.endpoint, publisher.replay_endpoint))
    publisher.tell()
    pipe.recv()
    begun, own = time.time(), time.process_time()
    told = 1
    while told < len(made):
        if publisher.tell() is not None:
            told += 1
    while publisher.waiting:
        time.sleep(0.002)
    pipe.send((begun, publisher.published, sum(len(batch.hashes) for batch in made[1:])))
    pipe.recv()
    publisher.close()
    pipe.send(time.process_time() - own)


def over_sockets(kind: str, count: int) -> dict[str, float]:
    """Block events per second from the publisher's queue to an EXACT index in another process.

    Where other work shares the two cores, processor time says more than the clock.
    """
    here, there = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=_publish, args=(kind, count, there))
    worker.start()
    endpoint, replay = here.recv()
    index = Index()
    with Follower(index) as follower:
        follower.follow("w", endpoint, replay)
        while index.status("w") is not Status.EXACT:
            time.sleep(0.001)
        time.sleep(0.3)  # the subscription is there too
        own = time.process_time()
        here.send("go")
        begun, batches, events = here.recv()
        while index._streams["w"].next != batches:
            time.sleep(0.0005)
        passed, mine = time.time() - begun, time.process_time() - own
        report = index.report("w")
        here.send("end")
        theirs = here.recv()
    worker.join()
    return {
        "events per second": events / passed,
        "by processor time, one core each": events / max(mine, theirs),
        "publisher, ns of a core": theirs / events * 1e9,
        "index, ns of a core": mine / events * 1e9,
        "repair bytes": float(report.repair_bytes),
    }


# -- looking up, repairing -------------------------------------------------------------------------------------------


def looking_up(workers: int) -> dict[str, float]:
    """Microseconds to find an 8k prompt and a 1k one, all of which every worker holds."""
    index = Index()
    tokens = prompts(1)[0]
    cache = cache_of(True)
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(10, 1 << 24))
    for number, other in enumerate([*prompts(12), tokens]):
        serve(cache, number, other)
    payload = maker.make(cache.take_events(whole=True))
    for worker in range(workers):
        index.add(worker)
        index.hear(worker, *payload)
    assert len(index.find(tokens)) == workers and index.find(tokens)[0].tokens == PROMPT
    asks = {size: tokens[:size].copy() for size in (1024, PROMPT)}
    best = {size: min(spent(partial(index.find, request)) for _ in range(50)) for size, request in asks.items()}
    return {f"{size} tokens, us": seconds * 1e6 for size, seconds in best.items()}


def repairing(lost: int, kept: int) -> dict[str, float]:
    """Bytes fetched when so many batches in a row are lost and the publisher still has `kept`."""
    index = Index()
    index.add("w")
    maker = PayloadMaker(Names.from_config(cache_of(True).config), "map", Archive(kept, 1 << 30))
    missing = 0
    for number, batch in enumerate(long_batches(60)):
        seq, payload = maker.make(batch)
        if 30 <= number < 30 + lost:
            missing += len(payload)
            continue
        request = index.hear("w", seq, payload)
        while request is not None:
            asked, request = request, None
            found = maker.snapshot() if asked.start is None else None
            for answer in [found] if found else maker.archive.since(asked.start or 0):
                index.hear("w", *answer, asked=True)
            request = index.answered("w", asked)
    assert index.status("w") is Status.EXACT
    report = index.report("w")
    return {"lost bytes": missing, "fetched bytes": report.repair_bytes, "snapshots": report.snapshots}


def measure(rounds: int) -> dict[str, Any]:
    """Every number."""
    numbers: dict[str, Any] = {
        "recording, ns per block event": {
            "stored": recording(0, False, rounds),
            "stored and removed": recording(0, True, rounds),
            "stored and moved": recording(SLOTS, True, rounds),
        },
        "long records (512 blocks)": in_process(list(long_batches(200))),
        "short records (1 block)": in_process(list(short_batches(400))),
        "sockets, long records": over_sockets("long", 600),
        "sockets, short records": over_sockets("short", 800),
    }
    for workers in (1, 8, 64):
        numbers[f"find, {workers} workers"] = looking_up(workers)
    for lost, kept in ((1, 100), (5, 100), (20, 100), (20, 10)):
        numbers[f"repair, {lost} lost, {kept} kept"] = repairing(lost, kept)
    return numbers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    numbers = measure(options.rounds)
    if options.json:
        print(json.dumps(numbers, indent=1))
        return
    for name, facts in numbers.items():
        print(name)
        for fact, value in facts.items():
            print(f"    {fact:28} {value:14,.1f}")


if __name__ == "__main__":
    main()
