"""A machine with a cache, a device, a host and a shared store, for tests. Knows no model.

Its pages have bytes that follow from the text, so that a wrong one shows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count

import numpy as np

from quire import Batch, Cache, CacheConfig, LayerGroup, Request, Scope, Span, TierConfig, check
from quire import Sequence as Row
from quire.core.records.groups import pools_of
from quire.core.records.plan import Plan
from quire.core.records.request import PLAIN
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout, Tier, TierError, TierInfo
from quire.tiers.shared import Fetch, SharedCache, SharedConfig, SharedStore, Turns

SIZE = 4  # tokens of a block
FULL = LayerGroup("full", page_bytes=96)
WINDOW = LayerGroup("window", page_bytes=160, window=9)
STATE = LayerGroup("state", page_bytes=224, snapshot_every=8)
POOLED = (LayerGroup("full", page_bytes=96, pool="kv"), LayerGroup("window", page_bytes=96, window=9, pool="kv"))
FINGERPRINT = bytes(range(32))
PATIENT = 120.0  # seconds: only a test that hangs waits so long
Int32 = np.ndarray[tuple[int], np.dtype[np.int32]]


def text(*parts: int, length: int = 24) -> Int32:
    """A text; texts that begin with equal numbers begin alike, 8 tokens for each."""
    pieces = [np.random.default_rng(parts[: nth + 1]).integers(1, 1000, 8) for nth in range(len(parts))]
    rest = np.random.default_rng([*parts, 99]).integers(1, 1000, max(0, length - 8 * len(parts)))
    return np.concatenate([*pieces, rest])[:length].astype(np.int32)


def content(scope: Scope, tokens: Int32, block: int, group: int, size: int) -> Bytes:
    """The bytes of a page: those of this text, up to the end of this block."""
    before = scope.key + tokens[: (block + 1) * SIZE].tobytes() + bytes([group])
    return np.resize(np.frombuffer(blake2b(before).digest(), np.uint8), size)


class WornArena:
    """Memory of which one read in three fails, and leaves other bytes than the page's where it was to go."""

    def __init__(self, arena: ArenaTier, seed: int) -> None:
        self.arena, self.dice = arena, np.random.default_rng(seed)

    def info(self) -> TierInfo:
        return self.arena.info()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        failed = {slot: "worn out" for slot in slots if self.dice.integers(3) == 0}
        self.arena.read(group, slots, out)
        for slot, buffer in zip(slots, out, strict=True):
            buffer[:] = 0xEE if slot in failed else buffer
        if failed:
            raise TierError("host", group, failed)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self.arena.write(group, slots, data)

    def close(self) -> None:
        self.arena.close()


class Machine:
    """One of the machines that share a store; with `worn`, its moves fail now and then."""

    numbers = count()

    def __init__(
        self, store: SharedStore | str, *groups: LayerGroup, device: int = 16, host: int = 64, rank: int = 0,
        fingerprint: bytes | tuple[bytes, ...] = FINGERPRINT, worn: int | None = None, **settings: object,
    ) -> None:  # fmt: skip
        self.groups = groups or (FULL,)
        sizes = [group.page_bytes for group in self.groups]
        tiers = (TierConfig("device", device), TierConfig("host", host))
        config = CacheConfig(
            tiers, block_size=SIZE, groups=self.groups, max_length=128, max_chunk=64, partial_reuse=False
        )
        self.cache = Cache(config)
        pools = pools_of(self.groups)
        self.tiers = [ArenaTier(tier.name, [tier.of_pool(0)] * len(sizes), sizes, pools) for tier in tiers]
        self.worn = worn is not None
        moved: list[Tier] = [self.tiers[0], self.tiers[1] if worn is None else WornArena(self.tiers[1], worn)]
        self.mover = Mover(moved, [PageLayout(size) for size in sizes], SIZE)
        named = store if isinstance(store, str) else "given"
        config_ = SharedConfig(named, wait=PATIENT, **settings)  # type: ignore[arg-type]
        given = None if isinstance(store, str) else store
        self.turns = Turns() if any(group.current for group in self.groups) else None
        self.shared = SharedCache(
            self.cache, self.tiers, config_, fingerprint, rank=rank, store=given, turns=self.turns
        )
        self.computed = 0  # tokens
        self.wrong: list[tuple[int, int]] = []  # pages with wrong bytes that were reused

    def request(self, tokens: Int32, scope: Scope = PLAIN) -> Request:
        return Request(next(self.numbers), tokens, scope)

    def serve(self, tokens: Int32, scope: Scope = PLAIN, *, wait: bool = True, publish: bool = True) -> int:
        """Answer a prompt as an engine would, through the device; tokens that were reused."""
        if self.turns is not None:
            self.turns.run(self._carried)
        request = self.request(tokens, scope)
        with self.shared.fetch(request) as fetch:
            if wait:
                self.settle()
                assert fetch.done
            batch = self._admit(request)
        (sequence,) = batch.sequences
        start = sequence.start
        while True:
            if not self.carry(batch.plan):  # pages that it was to reuse did not come
                if sequence.live:
                    self.cache.release(sequence, store=False)
                return self.serve(tokens, scope, wait=wait, publish=publish)
            self._compute(sequence, batch.spans[sequence], scope, tokens)
            self.cache.commit([sequence])
            if sequence.computed == len(tokens):
                break
            batch = self.cache.add_sequence_batch([], continuing=[sequence])
        self.computed += len(tokens) - start
        self.cache.release(sequence)
        if publish:
            self.shared.publish(self.request(tokens, scope))
        return start

    def _admit(self, request: Request) -> Batch:
        """Let it in; while the store's threads hold pages to copy them there may be no room."""
        end = time.monotonic() + PATIENT
        while not (batch := self.cache.add_sequence_batch([request])).sequences:
            self.carry(batch.plan)
            assert time.monotonic() < end, batch.refused
            time.sleep(0.001)
        if self.worn:  # as if somebody with the same text had ended just now: what the plan is to bring may go out
            self.shared.publish(request)
        return batch

    def _compute(self, sequence: Row, span: Span, scope: Scope, tokens: Int32) -> None:
        """What was reused is right; what is computed becomes so."""
        for group, layer in enumerate(self.groups):
            memory, size = self.tiers[0].view(group), layer.page_bytes
            if layer.current:
                slot = self.cache.state_table(group)[sequence.row]
                if span.start and not np.array_equal(
                    memory[slot], content(scope, tokens, span.start // SIZE - 1, group, size)
                ):
                    self.wrong.append((span.start // SIZE - 1, group))
                memory[slot] = content(scope, tokens, span.end // SIZE - 1, group, size) if span.end % SIZE == 0 else 0
                continue
            row = self.cache.table(group)[sequence.row]
            for block in range(-(-span.end // SIZE)):
                if row[block] < 0:
                    continue
                right = content(scope, tokens, block, group, size)
                if block * SIZE >= span.start:
                    memory[row[block]] = right
                elif span.start == sequence.start and not np.array_equal(memory[row[block]], right):
                    self.wrong.append((block, group))

    def store(self, tokens: Int32, scope: Scope = PLAIN, *, edge: int | None = None) -> None:
        """Have the pages that going on behind `edge` tokens (all) needs, in the host, as if they had been computed."""
        edge = len(tokens) // SIZE * SIZE if edge is None else edge
        need = [
            {b for span in layer.needs_at(edge, SIZE) for b in range(span.start, span.end)} for layer in self.groups
        ]
        skip = {group: [b for b in range(edge // SIZE) if b not in some] for group, some in enumerate(need)}
        writer = self.cache.writer(self.request(tokens, scope), tier=1, end=edge, skip=skip)
        with writer:  # type: ignore[union-attr]
            for group, layer in enumerate(self.groups):
                for block, slot in zip(writer.blocks(group), writer.slots(group), strict=True):  # type: ignore[union-attr]
                    self.tiers[1].view(group)[slot] = content(scope, tokens, int(block), group, layer.page_bytes)
            writer.written(edge)  # type: ignore[union-attr]

    def publish(self, tokens: Int32, scope: Scope = PLAIN, edges: tuple[int, ...] = ()) -> None:
        self.shared.publish(self.request(tokens, scope), edges=edges)
        self.settle()

    def fetch(self, tokens: Int32, scope: Scope = PLAIN) -> Fetch:
        """What comes; to be closed."""
        fetch = self.shared.fetch(self.request(tokens, scope))
        self.settle()
        return fetch

    def has(self, tokens: Int32, scope: Scope = PLAIN) -> int:
        """Tokens of a text that could be reused; their bytes are checked."""
        with self.cache.find(self.request(tokens, scope)) as found:
            for group, layer in enumerate(self.groups):
                places = zip(found.blocks(group), found.tiers(group), found.slots(group), strict=True)
                for block, tier, slot in places:
                    right = content(scope, tokens, int(block), group, layer.page_bytes)
                    assert np.array_equal(self.tiers[tier].view(group)[slot], right), (block, group)
            return found.end

    def settle(self) -> None:
        """Until everything has come and gone."""
        end = time.monotonic() + PATIENT
        while self.turns is not None and not self.shared.wait_until_idle(0.005):
            self.turns.run(self._carried)
            assert time.monotonic() < end
        assert self.shared.wait_until_idle(PATIENT)

    def _carried(self, plan: Plan) -> None:
        self.carry(plan)

    def carry(self, plan: Plan) -> bool:
        """Run a plan, in its order; False: not all of it happened. Where that may be, others get time before it."""
        if self.worn and len(plan):
            time.sleep(0.003)
        failed = self.mover.run(plan) if len(plan) else []
        finished = self.cache.finish(plan, failed)
        assert self.worn or not failed
        if failed:
            self.mover.settle(plan.number)
        if finished.plan is not None:
            self.carry(finished.plan)
        return not failed

    def close(self) -> None:
        assert self.shared.close()
        self.mover.close()
        assert not self.wrong
        assert not self.cache.open_finds() and not self.cache.open_writers()
        check(self.cache)
