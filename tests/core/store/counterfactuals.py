"""What each cause of a miss says would have helped, tried: the same history again, with that one thing otherwise.

    python -m tests.core.store.counterfactuals --histories 1000

A token of a cause that names a group is saved when it is reused then, or when another group is to blame for it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as ticking
from random import Random
from warnings import catch_warnings, simplefilter

import numpy as np

from quire import (
    Batch,
    Cache,
    CacheConfig,
    ConfigWarning,
    LayerGroup,
    Miss,
    Prefetch,
    Receipt,
    Request,
    Scope,
    Sequence,
    TierConfig,
    check,
)
from quire.core.records.reports.receipt import check_receipt

SIZE, PLENTY = 4, 2000
Failures = list[tuple[Miss, Receipt | None]]
SCOPES = (Scope(), Scope(salt="a"))
RERUNS = ("evicted", "forgotten", "failed", "window", "snapshot")
MIXES: tuple[tuple[LayerGroup, ...], ...] = (
    (LayerGroup("full"),),
    (LayerGroup("window", window=9),),
    (LayerGroup("sinks", window=6, sinks=5),),
    (LayerGroup("state", snapshot_every=8),),
    (LayerGroup("full"), LayerGroup("window", window=9)),
    (LayerGroup("full"), LayerGroup("state", snapshot_every=0)),
)


@dataclass(frozen=True)
class Act:
    """A prompt that comes: its tokens, its scope, how long it runs, and whether its first move fails."""

    tokens: tuple[int, ...]
    scope: int
    lasts: int
    fails: bool


class Engine:
    """Serves acts one after the other, as an engine would."""

    def __init__(self, config: CacheConfig, *, fails: bool = True) -> None:
        with catch_warnings():
            simplefilter("ignore", ConfigWarning)
            self.cache = Cache(config, clock=ticking(0.0).__next__)
        self.fails = fails
        self.running: dict[Sequence, int] = {}

    def serve(self, number: int, act: Act) -> Receipt | None:
        """Take a prompt in; what its claim says. None: it must wait, and does not come back."""
        for sequence in [one for one, until in self.running.items() if until <= number]:
            self.compute(sequence)
            del self.running[sequence]
            self.cache.release(sequence)
        batch = self.cache.add_sequence_batch([request_of(number, act)])
        self.run_plan(batch, act.fails and self.fails)
        if self.cache.config.tiers[-1].slow and number % 3:
            self.cache.finish(self.cache.copy_down(4))
        for sequence in batch.sequences:
            if sequence.row >= 0:
                self.running[sequence] = number + act.lasts
        return batch.receipts[0] if batch.receipts else None

    def run_plan(self, batch: Batch, fails: bool) -> None:
        plan = batch.plan
        setbacks = self.cache.finish(plan, [0] if fails and len(plan) else []).setbacks
        for setback in setbacks:
            if isinstance(setback.holder, Sequence) and setback.lost:
                self.running.pop(setback.holder, None)

    def compute(self, sequence: Sequence) -> None:
        """All of its prompt."""
        while sequence.row >= 0 and sequence.computed < sequence.prompt_end:
            self.cache.commit(sequence)
            if sequence.computed < sequence.prompt_end:
                batch = self.cache.add_sequence_batch([], continuing=[sequence])
                self.run_plan(batch, False)
                if not batch.spans:
                    return


def request_of(number: int, act: Act, scope: Scope | None = None) -> Request:
    return Request(number, np.array(act.tokens, np.int32), scope or SCOPES[act.scope])


def history(rng: Random, steps: int = 40) -> list[Act]:
    """Prompts that share beginnings, come back, and part again."""
    texts = [tuple(rng.randrange(1, 99) for _ in range(40)) for _ in range(4)]
    acts = []
    for _ in range(steps):
        base = rng.choice(texts)[: rng.randint(1, 40)]
        tail = tuple(rng.randrange(100, 103) for _ in range(rng.choice((0, 0, 3, 9))))
        acts.append(Act(base + tail, int(rng.random() < 0.15), rng.choice((1, 1, 1, 2, 4)), rng.random() < 0.1))
    return acts


def config_of(rng: Random, groups: tuple[LayerGroup, ...]) -> CacheConfig:
    tight = tuple(rng.randint(8, 14) if group.current else rng.randint(26, 40) for group in groups)
    host = tuple(rng.choice((0, 8)) for _ in groups)
    tiers = [TierConfig("device", tight), TierConfig("host", host)]
    if rng.random() < 0.4:
        tiers = [tiers[0], TierConfig("host", 40), TierConfig("disk", 60, slow=True)]
    return CacheConfig(
        tiers, SIZE, groups, 8, 64, receipts=True, receipt_scopes=4, prefetch_share=1.0,
        eviction=rng.choice(("lru", "adaptive", "release_order")), ghosts=rng.choice((1, 8)),
        partial_reuse=rng.random() < 0.5, shadows=rng.random() < 0.5,
    )  # fmt: skip


def otherwise(config: CacheConfig, cause: str, group: int) -> CacheConfig:
    """The same cache, as the cause would have it."""
    device = TierConfig("device", tuple(PLENTY if g == group else n for g, n in enumerate(slots_of(config))))
    changed = list(config.groups)
    if cause == "window":
        changed[group] = LayerGroup(changed[group].name)
    if cause == "snapshot":
        changed[group] = replace(changed[group], snapshot_every=SIZE)
    return replace(config, tiers=(device, *config.tiers[1:]), groups=tuple(changed))


def slots_of(config: CacheConfig) -> tuple[int, ...]:
    return tuple(config.slots_of(0, group) for group in range(len(config.groups)))


def is_saved(token: int, miss: Miss, then: Receipt | None) -> bool:
    """Reused in the other run, or another group is to blame there."""
    if then is None:
        return False
    if token < then.reused:
        return True
    other = next(one for one in then.misses if one.start <= token < one.stop)
    return other.group is not None and other.group != miss.group


def try_one(rng: Random, tried: Counter[str], saved: Counter[str], failures: Failures) -> None:
    """A history, and again for each cause that was met."""
    groups = rng.choice(MIXES)
    config, acts = config_of(rng, groups), history(rng)
    engine = Engine(config)
    receipts: list[Receipt | None] = []
    for number, act in enumerate(acts):
        receipts.append(engine.serve(number, act))
        if (receipt := receipts[-1]) is not None:
            check_receipt(receipt)
    for number, act in enumerate(acts[:12]):
        for miss, later in asked_again(engine, len(acts) + number, act):
            count(miss, later, tried, saved, failures)
    check(engine.cache)
    met = {(miss.cause, miss.group) for receipt in receipts if receipt for miss in receipt.misses}
    for cause, group in sorted((cause, group) for cause, group in met if cause in RERUNS and group is not None):
        again = Engine(otherwise(config, cause, group), fails=cause != "failed")
        for number, (act, receipt) in enumerate(zip(acts, receipts, strict=True)):
            then = again.serve(number, act)
            for miss in receipt.misses if receipt else ():
                if (miss.cause, miss.group) == (cause, group):
                    count(miss, then, tried, saved, failures)


def asked_again(engine: Engine, number: int, act: Act) -> Iterator[tuple[Miss, Receipt]]:
    """Of a prompt that would come now: the same when what is under way is committed, and in the scope that has it."""
    now = engine.cache.explain(request_of(number, act))
    for miss in now.misses:
        if miss.cause == "other_scope":
            yield miss, engine.cache.explain(request_of(number, act, miss.scope))
    if any(miss.cause == "slow" for miss in now.misses):
        prefetched = engine.cache.prefetch(request_of(number, act))
        if isinstance(prefetched, Prefetch):
            with prefetched:
                engine.cache.finish(prefetched.plan)
                then = engine.cache.explain(request_of(number, act))
            # behind its end another group lacks something, and nothing is brought up in vain
            promised = [miss for miss in now.misses if miss.stop <= prefetched.end]
            yield from ((miss, then) for miss in promised if miss.cause == "slow")
    busy = [one for one in engine.running if one.id in {miss.request for miss in now.misses}]
    for sequence in busy:
        engine.compute(sequence)
    later = engine.cache.explain(request_of(number, act))
    for miss in now.misses if busy else ():
        if miss.cause == "under_way":
            yield miss, later
    engine.serve(number, act)


def count(miss: Miss, then: Receipt | None, tried: Counter[str], saved: Counter[str], failures: Failures) -> None:
    tokens = [is_saved(token, miss, then) for token in range(miss.start, miss.stop)]
    tried[miss.cause] += len(tokens)
    saved[miss.cause] += sum(tokens)
    if not all(tokens):
        failures.append((miss, then))


def main() -> None:
    """As many as asked for; the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="tokens that were not saved, of so many misses")
    options = parser.parse_args()
    tried, saved, failures = Counter[str](), Counter[str](), list[tuple[Miss, Receipt | None]]()
    for number in range(options.histories):
        try_one(Random(f"{options.seed}/{number}"), tried, saved, failures)
    for miss, then in failures[: options.show]:
        print(miss, "then:", then and then.misses)
    for cause, number in [*sorted(tried.items()), ("all", tried.total())]:
        kept = saved.total() if cause == "all" else saved[cause]
        print(f"{cause:12}{kept:9,} of {number:9,}  {kept / number:.4f}")


if __name__ == "__main__":
    main()
