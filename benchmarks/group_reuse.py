"""What a hybrid model must recompute: conversations of many turns under memory pressure, by four rules of reuse.

    python benchmarks/group_reuse.py [--turns 400] [--seed 1] [--window 128] [--no-state] [--tails] [--eviction lru]
                                       [--turn 5]

Full attention, a window and a recurrent state with snapshots every 512 tokens; blocks of 16. --no-state leaves that
out; --tails keeps what is behind the last whole block of a sequence, too; --eviction release_order does not know resume
points; --turn gives every turn so many seconds on a clock that stands still in between: the adaptive order goes by it.
Each turn's prompt is looked up and then served by Quire. On the very same cache content the other rules say what they
would have reused:

    Quire             the last boundary where every group can resume
    shortest group    each group finds its own longest prefix, the least of them counts, until all can resume there
    window after gap  the same, but a window goes on behind a missing page only after W further tokens
    no gaps           the same, but a window's first missing page ends its prefix
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire import Cache, CacheConfig, Claim, LayerGroup, Request, Sequence, TierConfig
from quire.core.state.claim import promise_of
from quire.core.store import StoreName

SIZE = 16
SLOTS = (4096, 512, 48)  # 65,536 tokens, 8,192 tokens, 48 states
TALKS, LONGEST = 32, 8_192
Tokens = NDArray[np.int32]
Pages = list[bool]  # of one group, by block: the tree has a page
Resumes = Callable[[LayerGroup, Pages, int], bool]


def resumes(group: LayerGroup, pages: Pages, blocks: int) -> bool:
    """All that the group needs after so many blocks is there."""
    return all(pages[b] for span in group.needs_at(blocks * SIZE, SIZE) for b in range(span.start, span.end))


def resumes_after_gap(group: LayerGroup, pages: Pages, blocks: int) -> bool:
    """The same, but a window that has met a missing page goes on only after W further tokens."""
    if group.window is None or False not in pages[:blocks]:
        return resumes(group, pages, blocks)
    gap_end = blocks - pages[:blocks][::-1].index(False)
    return (blocks - gap_end) * SIZE >= group.window


def resumes_without_gaps(group: LayerGroup, pages: Pages, blocks: int) -> bool:
    """The same, but a window needs every page from the first one on."""
    return False not in pages[:blocks] if group.window is not None else resumes(group, pages, blocks)


RULES: dict[str, Resumes] = {
    "no gaps": resumes_without_gaps,
    "window after gap": resumes_after_gap,
    "shortest group": resumes,
}


def alone(group: LayerGroup, pages: Pages, limit: int, rule: Resumes) -> int:
    """The longest prefix, in blocks, from which one group could go on."""
    return next(blocks for blocks in range(limit, -1, -1) if rule(group, pages, blocks))


def by_the_shortest(facts: list[tuple[LayerGroup, Pages]], rule: Resumes) -> int:
    """One number for all groups, in tokens."""
    limit = len(facts[0][1])
    while True:
        least = min(alone(group, pages, limit, rule) for group, pages in facts)
        if least == limit:
            return limit * SIZE
        limit = least


@dataclass
class Sums:
    """Tokens over all turns."""

    turns: int = 0
    prompt: int = 0
    reused: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    wanted: Counter[str] = field(default_factory=Counter)

    def look(self, cache: Cache, claim: Claim) -> None:
        """What one claim found, by every rule."""
        facts = [(group, promise_of(claim).hit.present(nth).tolist()) for nth, group in enumerate(cache.config.groups)]
        self.turns += 1
        self.prompt += len(claim.request.tokens)
        for name, rule in RULES.items():
            self.reused[name] += by_the_shortest(facts, rule)
        self.reused["Quire"] += claim.start
        for group, pages in facts:
            self.alone[group.name] += alone(group, pages, len(pages), resumes) * SIZE
        self.receive(cache, claim.request)

    def receive(self, cache: Cache, request: Request) -> None:
        """Bytes to send if the prompt were computed elsewhere and only decoded here."""
        with cache.claim([Request("receiver", request.tokens)], purpose="decode") as claims:
            (claim,) = claims
            for group, wants in zip(cache.config.groups, claim.wanted_blocks, strict=True):
                cut = [(max(s.start, claim.start // SIZE), s.end) for s in group.needs_at(len(request.tokens), SIZE)]
                self.wanted["per group"] += sum(map(len, wants)) * group.page_bytes
                self.wanted["one cutoff"] += sum(max(0, b - a) for a, b in cut) * group.page_bytes


class Talks:
    """Conversations that grow turn by turn; one that gets too long begins anew."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.common = self.tokens(600)  # every conversation begins with the same instructions
        self.talks = [self.common] * TALKS

    def tokens(self, count: int) -> Tokens:
        """So many new ones."""
        return self.chance.integers(0, 32_000, count, dtype=np.int32)

    def next(self) -> Tokens:
        """The next prompt; who talked lately is likelier to go on."""
        turns_ago = min(int(self.chance.exponential(TALKS / 3)), TALKS - 1)
        talk = self.talks.pop(TALKS - 1 - turns_ago)
        if len(talk) > LONGEST - 2_000:
            talk = self.common
        self.talks.append(np.concatenate([talk, self.tokens(int(self.chance.integers(20, 800)))]))
        return self.talks[-1]

    def answered(self, tokens: Tokens) -> None:
        """The last turn's prompt and answer."""
        self.talks[-1] = tokens


def serve(cache: Cache, request: Request, sums: Sums, answer: Tokens) -> Tokens:
    """One turn from claim to release; everything known afterwards."""
    with cache.claim([request]) as claims:
        sums.look(cache, claims[0])
        batch = cache.admit(claims)
    (sequence,) = batch.sequences
    while True:
        cache.finish(batch.plan)
        cache.commit(sequence)
        if sequence.computed == sequence.prompt_end:
            return decode(cache, sequence, answer)
        batch = cache.add_sequence_batch([], continuing=[sequence])


def decode(cache: Cache, sequence: Sequence, answer: Tokens) -> Tokens:
    """Token by token; then it is released."""
    for nth in range(len(answer)):
        plan = cache.grow(sequence, answer[nth : nth + 1])
        assert plan is not None, "the pools hold one sequence"
        cache.finish(plan)
        cache.commit(sequence)
    tokens = cache.tokens(sequence)
    cache.release(sequence)
    return tokens


def measure(options: argparse.Namespace) -> Sums:
    """The whole history."""
    store: StoreName = options.store
    groups = (
        LayerGroup("full", page_bytes=786_432),
        LayerGroup("window", page_bytes=2_359_296, window=options.window),
        LayerGroup("state", page_bytes=51_216_384, snapshot_every=512),
    )[: 2 if options.no_state else 3]
    tiers = (TierConfig("device", SLOTS[: len(groups)]),)
    rules = {"eviction": options.eviction, "partial_reuse": options.tails}
    config = CacheConfig(tiers, SIZE, groups, 4, LONGEST, max_chunk=512, **rules)
    now = 0.0
    cache = Cache(config, clock=(lambda: now) if options.turn else time.monotonic, store=store)
    talks, sums = Talks(options.seed), Sums()
    for turn in range(options.turns):
        now += options.turn
        prompt = talks.next()
        answer = talks.tokens(int(talks.chance.integers(20, 400)))
        talks.answered(serve(cache, Request(turn, prompt), sums, answer))
    return sums


def table(sums: Sums) -> str:
    """As Markdown."""
    lines = [f"{sums.turns} turns, {sums.prompt:,} prompt tokens", ""]
    lines += ["| rule | recomputed | of the prompts |", "|---|---|---|"]
    for rule, reused in sums.reused.items():
        lost = sums.prompt - reused
        lines.append(f"| {rule} | {lost:,} | {lost / sums.prompt:.1%} |")
    lines += ["", "| group | tokens it alone could resume from |", "|---|---|"]
    lines += [f"| {name} | {tokens:,} ({tokens / sums.prompt:.1%}) |" for name, tokens in sums.alone.items()]
    per, one = sums.wanted["per group"], sums.wanted["one cutoff"]
    sent = f"{per / 1e9:.1f} GB per group, {one / 1e9:.1f} GB with one cutoff for all"
    lines += ["", f"To a receiver that only decodes: {sent}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--no-state", action="store_true", help="full attention and the window only")
    parser.add_argument(
        "--tails", action="store_true", help="sequences leave what is behind their last whole block, too"
    )
    parser.add_argument("--eviction", choices=("lru", "release_order", "adaptive"), default="lru")
    parser.add_argument("--turn", type=float, default=0.0, metavar="SECONDS", help="that a turn takes; 0: as it does")
    parser.add_argument("--store", choices=("auto", "compiled", "twin"), default="auto")
    options = parser.parse_args()
    start = time.perf_counter()
    print(table(measure(options)))
    print(f"\n{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
