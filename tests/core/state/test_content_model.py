"""Receipts with `receipt_chunks` beside a plain model: sets of pieces, and a cache that keeps no chunks."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from quire import Cache, CacheConfig, Media, Receipt, Request, Scope, Span, TierConfig, check
from quire.core.records.reports.receipt import check_receipt
from quire.core.store import StoreName
from tests.effort import cases

MASK = (1 << 64) - 1
LEAST = 32  # equal tokens in a row
SCOPES = (Scope(), Scope(salt="a"))


def mixed(token: int) -> int:
    value = (token + 0x632BE59BD9B4E019) * 0x9E3779B97F4A7C15 & MASK
    value ^= value >> 32
    value = value * 0xFF51AFD7ED558CCD & MASK
    return value ^ value >> 29


def pieces_of(prompt: list[int]) -> list[tuple[int, int]]:
    """[start, stop) of each: a cut stands behind every eighth token or so, by it and the two before."""
    near, cuts, before = [mixed(token) for token in prompt], [0], None
    for at in range(len(prompt)):
        sums = near[at]
        sums += near[at - 1] * 0x2545F4914F6CDD1D if at > 0 else 0
        sums += near[at - 2] * 0xA0761D6478BD642F if at > 1 else 0
        window = sums * 0x9E3779B97F4A7C15 & MASK
        if at >= 2 and window < 1 << 61 and window != before:
            cuts.append(at + 1)
        before = window
    edges = [*dict.fromkeys(cut for cut in cuts if cut < len(prompt)), len(prompt)]
    return list(pairwise(edges))


class PlainContent:
    """All pieces of admitted prompts, and all beginnings that end with one, by scope."""

    def __init__(self) -> None:
        self.pieces: set[tuple[Scope, tuple[int, ...]]] = set()
        self.beginnings: set[tuple[Scope, tuple[int, ...]]] = set()

    def add(self, scope: Scope, prompt: list[int]) -> None:
        for start, stop in pieces_of(prompt):
            self.pieces.add((scope, tuple(prompt[start:stop])))
            self.beginnings.add((scope, tuple(prompt[:stop])))

    def clear(self) -> None:
        self.pieces.clear()
        self.beginnings.clear()

    def names(self, scope: Scope, prompt: list[int]) -> list[str]:
        """What a token is, if a receipt without chunks calls it new."""
        found, run = ["new"] * len(prompt), list[int]()
        for start, stop in [*pieces_of(prompt), (len(prompt), len(prompt))]:
            if stop > start and (scope, tuple(prompt[start:stop])) in self.pieces:
                run += range(start, stop)
                continue
            if len(run) >= LEAST:
                found[run[0] : run[-1] + 1] = ["interrupted"] * len(run)
            run = []
        known = [stop for _, stop in pieces_of(prompt) if (scope, tuple(prompt[:stop])) in self.beginnings]
        end = max(known, default=0)
        return ["forgotten"] * end + found[end:]


def causes(receipt: Receipt) -> list[str]:
    check_receipt(receipt)
    return [miss.cause for miss in receipt.misses for _ in range(miss.num_tokens)]


class History:
    """Two caches that hear the same calls; one keeps chunks."""

    def __init__(self, store: StoreName, seed: int) -> None:
        self.draw = random.Random(seed)
        slots = self.draw.choice((24, 60, 400)) if seed % 2 else 24
        tiers = (TierConfig("device", slots), TierConfig("host", self.draw.choice((0, 20))))
        size, ghosts = self.draw.choice((4, 16)), seed % 2
        if size == 4:
            tiers = (TierConfig("device", 4 * slots), tiers[1])
        self.caches = [
            Cache(
                CacheConfig(tiers, block_size=size, receipts=True, ghosts=ghosts, receipt_chunks=chunks),
                store=store, clock=lambda: float(self.now),
            )
            for chunks in (1 << 20, 0)
        ]  # fmt: skip
        self.model, self.now, self.number = PlainContent(), 0, 0
        self.texts = [self.words(self.draw.randrange(20, 120)) for _ in range(6)]
        self.seen = set[str]()

    def words(self, count: int) -> list[int]:
        return [self.draw.randrange(50_000) for _ in range(count)]

    def prompt(self) -> list[int]:
        """Texts in any order, with a stamp, one of them changed or cut."""
        chosen = [list(text) for text in self.draw.sample(self.texts, self.draw.randrange(1, 4))]
        if self.draw.random() < 0.5:
            chosen.insert(self.draw.randrange(len(chosen)), self.words(self.draw.randrange(1, 9)))
        if self.draw.random() < 0.4:
            text = self.draw.choice(chosen)
            text[self.draw.randrange(len(text))] += 1
        prompt = [token for text in chosen for token in text]
        return prompt[: self.draw.randrange(1, len(prompt) + 1)] if self.draw.random() < 0.3 else prompt

    def step(self) -> None:
        """One call, to both."""
        self.now, self.number = self.now + 1, self.number + 1
        prompt, scope = self.prompt(), self.draw.choice(SCOPES)
        what = self.draw.choices(("run", "claim", "private", "media", "clear", "forget"), (60, 6, 4, 6, 2, 3))[0]
        self.look(prompt, scope)
        if what in ("clear", "forget"):
            for cache in self.caches:
                cache.clear() if what == "clear" else cache.forget(SCOPES[1])
            self.model.clear()
            return
        media = (Media(bytes(32), (Span(0, 1),)),) if what == "media" else ()
        asked = Request(self.number, np.array(prompt, np.int32), scope, media=media, reuse=what != "private")
        for cache in self.caches:
            if what == "claim":
                cache.claim([asked]).close()
            else:
                admit(cache, asked)
        if what == "run":
            self.model.add(scope, prompt)

    def look(self, prompt: list[int], scope: Scope) -> None:
        """The receipt of a prompt that may come: token by token as the model says."""
        asked = Request("why", np.array(prompt, np.int32), scope)
        kept, plain = (cache.explain(asked) for cache in self.caches)
        names = self.model.names(scope, prompt)
        pairs = zip(range(plain.reused, len(prompt)), causes(plain), strict=True)
        wanted = [names[at] if cause == "new" else cause for at, cause in pairs]
        assert (kept.reused, causes(kept)) == (plain.reused, wanted), (prompt, self.number)
        self.seen.update(wanted)
        at = {miss.stop: miss for miss in kept.misses}
        for miss in kept.misses:
            if miss.cause == "interrupted":
                before = at.get(miss.start)
                gap = before.num_tokens if before is not None and before.cause == "new" else 0
                assert miss.gap == gap, "equal again after so many tokens that are new"


def admit(cache: Cache, asked: Request) -> None:
    batch = cache.add_sequence_batch([asked])
    cache.finish(batch.plan)
    for sequence in batch.sequences:
        cache.commit(sequence)
        cache.release(sequence)


@pytest.mark.long
@pytest.mark.parametrize("store", ["twin", "compiled"])
@pytest.mark.parametrize("seed", range(cases(4, 200)))
def test_receipts_say_of_new_text_what_a_plain_model_says(store: StoreName, seed: int) -> None:
    history = History(store, seed)
    for _ in range(40):
        history.step()
    assert {"new", "interrupted", *(() if seed % 2 else ("forgotten",))} <= history.seen
    for cache in history.caches:
        check(cache)


def test_pieces_are_those_of_the_index() -> None:
    """Also of one token, of equal ones for long, and of what repeats."""
    from quire.core.content.content_chunks import cut_prompts

    draw = random.Random(3)
    for length in [*range(1, 12), 50, 300, 2000]:
        for span in (1, 2, 50_000):
            prompt = [draw.randrange(span) for _ in range(length)]
            sizes = cut_prompts(np.array(prompt, np.int32), np.array([length])).sizes.tolist()
            assert sizes == [stop - start for start, stop in pieces_of(prompt)]
