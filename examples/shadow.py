"""Quire beside the block manager you have: python examples/shadow.py

It sees the same requests, decides for itself and acts on nothing: no bytes are moved, no tables are read. Before you
give it the memory you know what it would have found, and where the two differ. `Blocks` stands for your manager: whole
blocks by the hash of all before them, reference counts, the least recently used goes first. Exchange it for yours.

Expect Quire to find more where texts part inside a block, and less where equal prompts come in one step: this manager
counts on what the same step will compute. The cache here does so with `share_pending=True` only, and then wants steps
to be launched; without, a page can be found from its commit on.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from random import Random

import numpy as np

from quire import Cache, CacheConfig, Request, Sequence, TierConfig

BLOCK = 16


class Blocks:
    """An existing manager: prefix caching as engines have it."""

    def __init__(self, num_blocks: int) -> None:
        self.empty = list(range(num_blocks))
        self.cached: OrderedDict[int, int] = OrderedDict()  # nobody's: key -> block, the least recently used first
        self.used: dict[int, tuple[int, int]] = {}  # key -> block and its users
        self.held: dict[str, list[int]] = {}  # by request: keys of whole blocks; -1 - block for one without a key

    def allocate(self, name: str, tokens: list[int]) -> int | None:
        """Blocks for a prompt; how many tokens need not be computed, None without room."""
        keys = [key_of(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        hits = 0
        while hits < (len(tokens) - 1) // BLOCK and (keys[hits] in self.used or keys[hits] in self.cached):
            hits += 1
        new = -(-len(tokens) // BLOCK) - hits
        if new > len(self.empty) + len(self.cached) - sum(key in self.cached for key in keys[:hits]):
            return None
        for key in keys[:hits]:
            block, users = self.used.get(key) or (self.cached.pop(key), 0)
            self.used[key] = block, users + 1
        self.held[name] = keys[:hits]
        for place in range(hits, hits + new):
            self._take(name)
            if place < len(keys):
                self._name(name, keys[place])
        return hits * BLOCK

    def append(self, name: str, tokens: list[int]) -> bool:
        """Room for the last token; False without."""
        if len(tokens) % BLOCK == 1:
            if not self.empty and not self.cached:
                return False
            self._take(name)
        elif len(tokens) % BLOCK == 0:
            self._name(name, key_of(tokens))
        return True

    def _take(self, name: str) -> None:
        self.held[name].append(-1 - (self.empty.pop() if self.empty else self.cached.popitem(last=False)[1]))

    def _name(self, name: str, key: int) -> None:
        """The last block is whole: others may find it, unless they have it already."""
        if key not in self.used and key not in self.cached:
            self.used[key] = -1 - self.held[name].pop(), 1
            self.held[name].append(key)

    def free(self, name: str) -> None:
        """A request ends; its last blocks are evicted first."""
        for key in reversed(self.held.pop(name)):
            if key < 0:
                self.empty.append(-1 - key)
                continue
            block, users = self.used.pop(key)
            if users > 1:
                self.used[key] = block, users - 1
            else:
                self.cached[key] = block


def key_of(tokens: list[int]) -> int:
    """The name of a block: of all tokens up to its end."""
    return hash(tuple(tokens)) & 0x7FFFFFFF


@dataclass
class Report:
    """What both decided."""

    requests: int = 0
    tokens: int = 0
    theirs: int = 0  # tokens that the manager need not compute
    ours: int = 0
    refused: list[str] = field(default_factory=list)  # admitted by the manager; Quire had no room
    differ: list[tuple[str, int, int]] = field(default_factory=list)  # request, theirs, ours

    def __str__(self) -> str:
        more = sum(ours > theirs for _, theirs, ours in self.differ)
        found = f"the manager found {self.theirs} of {self.tokens} tokens, Quire {self.ours}"
        less = f"more in {more}, less in {len(self.differ) - more}, no room for {len(self.refused)}"
        return f"{self.requests} requests: {found}: {less}"


class Shadow:
    """Quire's decisions for what a manager has admitted. It only hears what happens, and answers nothing."""

    def __init__(self, num_blocks: int, max_sequences: int = 256, max_length: int = 4096) -> None:
        tiers = (TierConfig("device", num_blocks),)
        self.cache = Cache(CacheConfig(tiers, BLOCK, max_sequences=max_sequences, max_length=max_length))
        self.live: dict[str, Sequence] = {}
        self.report = Report()

    def admitted(self, name: str, tokens: list[int], theirs: int) -> None:
        """The manager has admitted a prompt, and need not compute so many of its tokens."""
        report, request = self.report, Request(name, np.array(tokens, np.int32))
        batch = self.cache.add_sequence_batch([request])
        report.requests += 1
        report.tokens += len(tokens)
        report.theirs += theirs
        if not batch.sequences:
            report.refused.append(name)
            return
        (sequence,) = batch.sequences
        report.ours += sequence.start
        if sequence.start != theirs:
            report.differ.append((name, theirs, sequence.start))
        self.cache.finish(batch.plan)  # as if it had run: there are no bytes
        self.live[name] = sequence

    def computed(self, names: list[str]) -> None:
        """A step has run: what was handed out is there."""
        self.cache.commit([self.live[name] for name in names if name in self.live])

    def grown(self, name: str, token: int) -> None:
        """The manager has made room for a sampled token."""
        sequence = self.live.get(name)
        if sequence is None:
            return
        plan = self.cache.grow(sequence, np.array([token], np.int32))
        if plan is None:  # the manager had room, Quire has none: it ends here
            self.report.refused.append(name)
            self.cache.release(self.live.pop(name))
        else:
            self.cache.finish(plan)

    def freed(self, name: str) -> None:
        """The manager has freed a request."""
        sequence = self.live.pop(name, None)
        if sequence is not None:
            self.cache.release(sequence)


def serve(manager: Blocks, shadow: Shadow | None, load: list[tuple[str, list[int], int]], most: int = 6) -> int:
    """An engine under the manager: prompts come in order, most of them at once decode; how many steps that took."""
    waiting, running, steps = deque(load), dict[str, tuple[list[int], int]](), 0
    while waiting or running:
        steps += 1
        while waiting and len(running) < most:
            name, prompt, answer = waiting[0]
            found = manager.allocate(name, prompt)
            if found is None:
                break
            waiting.popleft()
            running[name] = (list(prompt), len(prompt) + answer)
            if shadow is not None:
                shadow.admitted(name, prompt, found)
        if not running:
            raise MemoryError(f"request {waiting[0][0]} alone does not fit")
        if shadow is not None:
            shadow.computed(list(running))  # the step
        for name, (text, end) in list(running.items()):
            text.append(len(text) % 7)  # what it sampled
            room = len(text) < end and manager.append(name, text)
            if room and shadow is not None:
                shadow.grown(name, text[-1])
            elif not room:  # done, or cut short
                manager.free(name)
                del running[name]
                if shadow is not None:
                    shadow.freed(name)
    return steps


def some_load(seed: int, num_requests: int) -> list[tuple[str, list[int], int]]:
    """Prompts that begin with one of a few texts, which end where they like."""
    rng = Random(seed)
    heads = [[rng.randrange(1000) for _ in range(rng.randrange(20, 90))] for _ in range(5)]
    tails = [[rng.randrange(1000) for _ in range(rng.randrange(1, 40))] for _ in range(num_requests)]
    return [(f"r{nth}", rng.choice(heads) + tail, rng.randrange(1, 30)) for nth, tail in enumerate(tails)]


if __name__ == "__main__":
    blocks = int(sys.argv[1]) if sys.argv[1:] else 80
    beside = Shadow(blocks)
    serve(Blocks(blocks), beside, some_load(seed=1, num_requests=60))
    print(beside.report)
    for request, theirs, ours in beside.report.differ[:5]:
        print(f"  {request}: the manager found {theirs} tokens, Quire {ours}")
