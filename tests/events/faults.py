"""Faults: a publisher and an index with a bad line between them. Real encoder, real decoder, no sockets.

`python -m tests.events.faults --runs 1000` prints what was lost, and what repair fetched for it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from quire import EventBatch
from quire.events.follow.index import Index
from quire.events.follow.stream_state import ReplayRequest, Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names
from quire.events.wire.protocol import NumberedPayload

from .lives import FULL, MIXED, Life, build

STEPS = 12
FAULTS = ("drop", "duplicate", "delay", "truncate", "renumber")
WORKER = "w"


@dataclass
class Line:
    """A stream with faults; what arrives is handed to the index at once."""

    maker: PayloadMaker
    index: Index
    dice: Random
    rates: dict[str, float]
    counts: Counter[str] = field(default_factory=Counter)
    delayed: list[NumberedPayload] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)  # numbers that came through whole
    asked: list[ReplayRequest] = field(default_factory=list)

    def send(self, batch: EventBatch) -> None:
        """One batch of the publisher onto the line."""
        seq, payload = self.maker.make(batch)
        self.counts["batches"] += 1
        fault = next((name for name in FAULTS if self.dice.random() < self.rates[name]), None)
        if fault is not None:
            self.counts[fault] += 1
        match fault:
            case "drop":
                self.counts["lost bytes"] += len(payload)
            case "delay":
                self.delayed.append(NumberedPayload(seq, payload))
            case "truncate":
                self.counts["lost bytes"] += len(payload)
                self.deliver(seq, payload[: self.dice.randrange(len(payload))], intact=False)
            case "renumber":
                self.counts["lost bytes"] += len(payload)
                self.deliver(seq + 10**6, payload, intact=False)
            case _:
                for _ in range(2 if fault == "duplicate" else 1):
                    self.deliver(seq, payload)
        if self.delayed and self.dice.random() < 0.5:
            self.deliver(*self.delayed.pop(self.dice.randrange(len(self.delayed))))

    def deliver(self, seq: int, payload: bytes, intact: bool = True) -> None:
        """It arrives; the index must know at once whether something is missing."""
        request = self.index.hear(WORKER, seq, payload)
        if intact:
            self.arrived.add(seq)
        if request is not None:
            self.asked.append(request)
        self.judge(seq if intact else None)

    def judge(self, newest: int | None) -> None:
        """EXACT only when it is so: everything up to the newest batch heard is there, and it is what was published."""
        stream = self.index._streams[WORKER]
        if stream.status is not Status.EXACT:
            return
        assert stream.next is not None and stream.next <= self.maker.next, (
            "a number that was never given out is believed"
        )
        assert newest is None or stream.next > max(self.arrived)
        if stream.next == self.maker.next:
            for group in range(len(self.maker._names.groups)):
                assert self.index.pages(WORKER, group) == published(self.maker, group)

    def answer(self, lossy: bool) -> None:
        """The publisher answers what was asked, over the same bad line."""
        while self.asked:
            request = self.asked.pop()
            if lossy and self.dice.random() < 0.2:
                self.counts["asks lost"] += 1
                return
            for seq, payload in self.replies(request):
                if lossy and self.dice.random() < 0.1:
                    continue
                again = self.index.hear(WORKER, seq, payload, asked=True)
                self.asked += [again] if again is not None else []
                self.judge(None)
            again = self.index.answered(WORKER, request)
            self.asked += [again] if again is not None else []

    def replies(self, request: ReplayRequest) -> list[NumberedPayload]:
        """As a publisher answers."""
        if request.check:
            return [self.maker.mark()]
        if request.start is not None:
            return list(self.maker.archive.since(request.start))
        found = self.maker.snapshot()
        return [] if found is None else [found]


def published(maker: PayloadMaker, group: int) -> dict[int, tuple[int, int]]:
    """What a publisher has told so far."""
    hashes, tiers, priorities = (part.tolist() for part in maker._ledger.pages(0, group))
    return dict(zip(hashes, zip(tiers, priorities, strict=True), strict=True))


def run_once(seed: int) -> Counter[str]:
    """One life of a cache over one bad line; the counts of what happened."""
    dice = Random(seed)
    cache = build(dice.choice((8, 16)), dice.choice((0, 4, 8)), groups=MIXED if dice.random() < 0.3 else FULL)
    encoding: Any = dice.choice(("map", "array"))
    maker = PayloadMaker(Names.from_config(cache.config), encoding, Archive(dice.choice((1, 3, 8, 100)), 1 << 20))
    index = Index()
    index.add(WORKER)
    line = Line(maker, index, dice, {name: dice.choice((0.0, 0.1, 0.3)) for name in FAULTS})
    life = Life(cache, seed)
    for step in range(STEPS):
        life.step()
        line.send(cache.take_events(whole=step == 0 or dice.random() < 0.1))
        if dice.random() < 0.5:
            line.answer(lossy=True)
    line.rates = dict.fromkeys(FAULTS, 0.0)
    if dice.random() < 0.5:
        life.step()
        line.send(cache.take_events())  # one good batch: whatever was lost is noticed now
    while line.delayed:
        line.deliver(*line.delayed.pop())
    for _ in range(4):  # or nothing comes any more, and only a check tells
        line.asked = line.asked or [index.check(WORKER)]
        line.answer(lossy=False)
    stream = index._streams[WORKER]
    assert stream.status is Status.EXACT and stream.next == maker.next, f"seed {seed}: {index.report(WORKER)}"
    report = index.report(WORKER)
    line.counts.update(runs=1, gaps=report.gaps, repaired=bool(report.replays + report.snapshots))
    line.counts.update({"replays": report.replays, "snapshots": report.snapshots, "fetched bytes": report.repair_bytes})
    line.judge(None)
    return line.counts


def main() -> None:
    """Print the sum of many runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    total: Counter[str] = Counter()
    for seed in range(parser.parse_args().runs):
        total += run_once(seed)
    print(json.dumps(dict(sorted(total.items())), indent=1))


if __name__ == "__main__":
    main()
