"""How precise findings are, on logs of text_worlds.py: python -m tests.insight.precision; of drawn_worlds.py: --parts;
of prompt_worlds.py, whose test judges them whole: --small.

Half of the faulty logs have one fault, half two. A fault is named if one finding has its kind and looks at its
requests and at its place; any other finding is wrong.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from quire import Cache, CacheConfig, Request, TierConfig
from quire.insight.findings.find import FindOptions, LogFindings, find_findings
from quire.insight.findings.finding import Finding
from quire.insight.findings.prompt_rows.prompt_log import LogReader
from quire.insight.prompt_changes.prompt_diff import reuse_of
from quire.trace.units import Int32, Int64

from . import test_findings
from .drawn_worlds import TEXT, TOLD, DrawnWorld, drawn_worlds
from .prompt_worlds import TEXT_FAULTS, TRAFFIC_FAULTS, worlds
from .text_worlds import CHANCE, FAULTS, PAIRS, TextWorld, text_worlds

REQUESTS, BLOCK = 300, 16
LEAST = 0.1  # of a service's tokens: what a fault of drawn_worlds.py costs at least


World = TextWorld | DrawnWorld


@dataclass
class Judged:
    """What was found in one log."""

    world: World
    named: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def judge(world: World) -> Judged:
    """Each finding beside what was planted."""
    found, judged = found_in(world), Judged(world)
    left = list(found.findings)
    for fault, service in world.faults.items():
        for one in left:
            services = {world.letters[line - 1].service for line in one.examples}
            right = one.kind in world.told[fault] and (one.kind == "blocks" or services == {service})
            if right and is_at_its_place(one, world, fault):
                left.remove(one)
                judged.named.append(fault)
                break
        else:
            judged.missed.append(fault)
    judged.wrong = [f"{one.kind} at token {one.token}: {one.text}" for one in left]
    return judged


def is_at_its_place(one: Finding, world: World, fault: str) -> bool:
    """Where it was planted; a batch: within a tenth of the while it took, at both ends."""
    places, times = world.places(fault), world.time_of(fault)
    if times is not None:
        slack = 0.1 * (times[1] - times[0])
        found = one.facts["from"], one.facts["to"]
        return all(abs(planted - said) <= slack for planted, said in zip(times, found, strict=True))
    return one.token is None if places is None else one.token in places


def senders(world: World) -> list[int]:
    """The service of each request."""
    return [one.service for one in world.letters]


def found_in(world: World) -> LogFindings:
    """What the detectors say."""
    reader = LogReader()
    for prompt in world.prompts():
        reader.add(prompt)

    def fetch(numbers: Sequence[int]) -> dict[int, Int32]:
        return {number: np.asarray(world.tokens[number]) for number in numbers}

    return find_findings(reader.finish(), FindOptions(world.memory, world.block_size), fetch, lambda *_: None)


def drawn(faults: tuple[str, ...], number: int, requests: int = REQUESTS, planted: bool = True) -> TextWorld:
    """The number-th log of text with these faults, the same each time."""
    return _example(text_worlds(faults, requests, planted), number)


def drawn_of_parts(faults: tuple[str, ...], number: int) -> DrawnWorld:
    """The number-th log of parts, or the first after it in which each fault costs enough."""
    for again in range(60):
        world = _example(drawn_worlds(faults, 2 * REQUESTS), number + 100_000 * again)
        clean = _example(drawn_worlds(faults, 2 * REQUESTS, False), number + 100_000 * again)
        if all(_costs(world, clean, fault) for fault in faults):
            return world
    raise ValueError(f"{faults} cost too little in sixty logs")


def _costs(world: DrawnWorld, clean: DrawnWorld, fault: str) -> bool:
    """By a comparison of the two, block by block; of a flood by a replay without it."""
    number = world.faults[fault]
    if fault == "sent again":
        return len(world.letters) - len(clean.letters) >= 24
    if fault not in ("crawled", "a batch"):
        return reused(clean, [number]) - reused(world, [number]) >= LEAST
    before, after = hit_rates(world, number, None)
    return after - before >= LEAST * (1.2 if fault == "crawled" else 0.3)  # a batch is a matter of a tenth of the time


Drawn = TypeVar("Drawn")


def _example(worlds: st.SearchStrategy[Drawn], number: int) -> Drawn:
    kept: list[Drawn] = []

    @seed(number)
    @settings(max_examples=2, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        if len(kept) < 2:
            kept.append(data.draw(worlds))

    draw()
    return kept[-1]  # the first is Hypothesis' simplest


def faulty(count: int, of_parts: bool = False) -> Iterator[tuple[str, ...]]:
    """Which faults each log has: one or two in turn, all of them as often."""
    names = list(TOLD if of_parts else FAULTS)
    pairs = [pair for pair in combinations(TOLD, 2) if TEXT[0] in pair or set(pair) - set(TEXT)]
    some = pairs[:: max(len(pairs) // max(count // 2, 1), 1)] if of_parts else PAIRS
    for number in range(count):
        yield (names[number // 2 % len(names)],) if number % 2 else some[number // 2 % len(some)]


def reused(world: World, which: Sequence[int], block_size: int = 16) -> float:
    """Of the tokens of some services, by a comparison block by block in which nothing is forgotten."""
    prompts = [one for one, sender in zip(world.prompts(), senders(world), strict=True) if sender in which]
    found = reuse_of(prompts, block_size)
    return sum(one.tokens for one in found) / sum(len(one.prompt.tokens) for one in found)


def replayed(world: World, which: Sequence[int], memory: int) -> Int64:
    """Tokens that each prompt of these services reuses in a real cache of so many tokens; 0 of the others, who are not
    there. One request after the other."""
    longest = max(len(tokens) for tokens in world.tokens)
    blocks = max(memory, longest + BLOCK) // BLOCK + 1
    config = CacheConfig((TierConfig("device", blocks),), BLOCK, max_length=longest + BLOCK, eviction="lru")
    cache, reuse = Cache(config), np.zeros(len(world.letters), np.int64)
    for number, (tokens, sender) in enumerate(zip(world.tokens, senders(world), strict=True)):
        if sender in which:
            request = Request(number, tokens, scope=world.letters[number].scope)
            batch = cache.add_sequence_batch([request], token_budget=longest)
            (sequence,) = batch.sequences
            reuse[number] = sequence.computed
            cache.finish(batch.plan)
            cache.commit(sequence)
            cache.release(sequence)
    return reuse


def rate_of(world: World, which: Sequence[int], memory: int) -> float:
    """The hit rate of these services alone."""
    asked = sum(len(tokens) for tokens, sender in zip(world.tokens, senders(world), strict=True) if sender in which)
    return int(replayed(world, which, memory).sum()) / asked


def hit_rates(world: World, without: int, while_of: Finding | None) -> tuple[float, float]:
    """Of the requests of all other services, with one and without it; of a flood: until its effect is over."""
    every = [service.number for service in world.services]
    rest = [number for number in every if number != without]
    times = np.array([one.time for one in world.letters])
    others = np.array(senders(world)) != without
    if while_of is not None and "until" in while_of.facts:
        others &= (times >= while_of.facts["from"]) & (times <= while_of.facts["until"])
    asked = sum(len(tokens) for tokens, counts in zip(world.tokens, others.tolist(), strict=True) if counts)
    found = [int(replayed(world, which, world.memory)[others].sum()) for which in (every, rest)]
    return found[0] / asked, found[1] / asked


def gain_of(fault: str, number: int, requests: int = REQUESTS) -> tuple[Judged, Finding | None, float, float]:
    """One log with one fault: what is said of it, and the hit rates that its requests have with and without it."""
    judged = judge(world := drawn((fault,), number, requests))
    said = [one for one in found_in(world).findings if one.kind in FAULTS[fault]]
    one = said[0] if len(said) == 1 else None
    if fault in ("crawler", "batch"):
        return judged, one, *hit_rates(world, 0, one)
    if fault == "blocks":
        size = 256 if one is None else one.facts["block_size"]
        return judged, one, reused(world, [0], 256), reused(world, [0], size)
    before, after = (rate_of(each, [0], world.memory) for each in (world, world.mended()))
    return judged, one, before, after


def fifteen() -> None:
    """A log for each fault, with its place and its gain beside what a comparison says."""
    for number, fault in enumerate(FAULTS):
        judged, one, before, after = gain_of(fault, 2000 + number)
        places = judged.world.places(fault)
        first, last = (places[0], places[-1] - CHANCE) if places else (None, None)
        head = f"| {fault} | {'' if places is None else first if first == last else f'{first} to {last}'} | "
        if one is None:
            print(f"{head} not named | | {before:.1%} -> {after:.1%} |", flush=True)
        else:
            token = "" if one.token is None else one.token
            print(
                f"{head}{one.kind} | {token} | {one.before:.1%} -> {one.after:.1%} | {before:.1%} -> {after:.1%} |",
                flush=True,
            )


def small(clean: int, count: int, first: int) -> None:
    """Logs of prompt_worlds.py: how many are judged as their test wants them."""
    single = [(fault,) for fault in TEXT_FAULTS + TRAFFIC_FAULTS]
    some = [pair for both in zip(single, test_findings.PAIRS * 3, strict=False) for pair in both]
    right = Counter[bool]()
    for number, faults in enumerate([*[()] * clean, *(some * 2)[:count]]):
        world = _example(worlds(faults, test_findings.REQUESTS * max(len(faults), 1)), first + number)
        try:
            test_findings.check(world)
            right[bool(faults)] += 1
        except AssertionError:
            print(
                faults,
                world.faults,
                [(one.kind, one.token) for one in test_findings.found_in(world).findings],
                flush=True,
            )
    print(f"clean logs: {right[False]} of {clean}; logs with one or two faults: {right[True]} of {count}")


def main() -> int:
    """Draw, judge, print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--faulty", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--parts", action="store_true", help="logs of drawn_worlds.py")
    parser.add_argument("--small", action="store_true", help="logs of prompt_worlds.py")
    parser.add_argument("--fifteen", action="store_true", help="a log for each fault: place and gain")
    options = parser.parse_args()
    if options.fifteen:
        fifteen()
        return 0
    if options.small:
        small(options.clean, options.faulty, options.first)
        return 0
    table(options.clean, options.faulty, options.first, drawn_of_parts if options.parts else drawn, options.parts)
    return 0


def table(clean: int, count: int, first: int, draw: Callable[..., World], of_parts: bool) -> None:
    """Of so many logs, by fault."""
    planted, named, wrong = Counter[str](), Counter[str](), 0
    whole = 0
    for number in range(clean):
        judged = judge(draw((), first + number))
        wrong += len(judged.wrong)
        for text in judged.wrong:
            print(f"clean {number}, {judged.world}: wrong: {text}", flush=True)
    clean_wrong = wrong
    for number, faults in enumerate(faulty(count, of_parts)):
        judged = judge(draw(faults, 1000 + first + number))
        planted.update(faults)
        named.update(judged.named)
        wrong += len(judged.wrong)
        whole += not judged.missed and not judged.wrong
        for text in [*(f"missed: {one}" for one in judged.missed), *(f"wrong: {one}" for one in judged.wrong)]:
            print(f"faulty {number}, {judged.world}: {text}", flush=True)
    print(f"| clean logs | {clean} | findings | {clean_wrong} |")
    for fault, count in planted.items():
        print(f"| {fault} | {count} | {named[fault]} |")
    total = sum(named.values())
    print(f"named {total} of {planted.total()}, wrong {wrong}; logs with all named and none wrong: {whole}")
    print(f"precision {total / max(total + wrong, 1):.1%}, recall {total / max(planted.total(), 1):.1%}")


if __name__ == "__main__":
    raise SystemExit(main())
