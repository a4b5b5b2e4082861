"""A host tier that loses pages: answers stay exact, what was lost is computed again, no slot is lost with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402
from quire.tiers import Bytes, TierError  # noqa: E402
from tests.tiers.stand_ins import FlakyTier  # noqa: E402

from .. import families  # noqa: E402
from ..steps import assert_exact, finish, model_of, open_engine, plain, step, words  # noqa: E402

NAMES = families.NAMES
DEVICE = {"llama": (12,), "gemma3": (12, 10), "qwen3_next": (12, 5)}
HOST = 60
BLOCK = 8


class Chance(FlakyTier):
    """Reads and writes fail by chance, each slot for itself; what a failed read hands out is garbage."""

    def __init__(self, *sizes: Any, seed: int, reads: float = 0.0, writes: float = 0.0) -> None:
        super().__init__(*sizes)
        self.dice, self.reads, self.writes = random.Random(seed), reads, writes
        self.num_failed = 0

    def _draw(self, slots: Sequence[int], chance: float) -> dict[int, str]:
        wrong = {slot: "bad luck" for slot in slots if self.dice.random() < chance}
        self.num_failed += len(wrong)
        return wrong

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self.arena.read(group, slots, out)
        if wrong := self._draw(slots, self.reads):
            for slot, buffer in zip(slots, out, strict=True):
                if slot in wrong:
                    buffer[:] = 0x7F  # huge numbers: nobody may read them
            raise TierError(self.info().name, group, wrong)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        wrong = self._draw(slots, self.writes)
        good = [place for place, slot in enumerate(slots) if slot not in wrong]
        self.arena.write(group, [slots[place] for place in good], [data[place] for place in good])
        for slot in wrong:
            self.arena.write(group, [slot], [np.full((1, self.info().page_bytes[group]), 0x7F, np.uint8)])
        if wrong:
            raise TierError(self.info().name, group, wrong)


def flaky(name: str, kind: type[FlakyTier] = FlakyTier, host: int = HOST, block: int = BLOCK, **options: Any) -> Any:
    """A host tier for a model."""
    groups = model_of(name).groups(block, 2 * block)
    return kind("host", [host] * len(groups), [group.page_bytes for group in groups], **options)


def open_flaky(name: str, tier: FlakyTier, pages: tuple[int, ...] | None = None, **settings: Any) -> Engine:
    settings = {"max_num_tokens": 48, "max_sequences": 6, "max_length": 96} | settings
    return open_engine(name, pages or DEVICE[name], HOST, colder=[tier], **settings)


def ask(engine: Engine, prompt: tuple[int, ...], tokens: int = 4, **fields: Any) -> Run:
    """One request, alone, to its end."""
    run = engine.submit(prompt, plain(tokens, **fields))
    finish(engine, 100)
    return run


def push_down(engine: Engine) -> None:
    """Others come until nothing of what was there before is on the device."""
    for start in (100, 170):
        ask(engine, words(start, 70))


def slots_of(engine: Engine, prompt: tuple[int, ...], group: int) -> list[int]:
    """Host slots of a prompt's pages, by block; -1 where it has none there."""
    store, place = engine.cache._setup.pools[group]
    found = [-1] * (len(prompt) // BLOCK)
    dump = store.dump()
    for page in dump.groups[place].pages.values():
        tokens = dump.text_to(page.node)
        if tokens and len(tokens) % BLOCK == 0 and tokens == prompt[: len(tokens)] and page.slots[0] < 0:
            found[len(tokens) // BLOCK - 1] = page.slots[1]
    return found


PROMPT = words(0, 45)  # five whole blocks


@pytest.mark.parametrize("block", range(5))
def test_a_lost_page_is_computed_again(block: int) -> None:
    """Full attention: the sequence goes back to the lost page, in place, and keeps what is before it."""
    tier = flaky("llama")
    engine = open_flaky("llama", tier)
    first = ask(engine, PROMPT)
    push_down(engine)
    slots = slots_of(engine, PROMPT, 0)
    assert min(slots) >= 0, "it is still on the device"
    tier.lost.add((0, slots[block]))
    admitted = engine.stats.num_admitted
    again = ask(engine, PROMPT)
    assert_exact("llama", [first, again])
    assert engine.pages.mover.stats().num_failed == 1 == engine.stats.num_setbacks
    assert engine.stats.num_admitted == admitted + 1
    assert again.reused == block * BLOCK and again.computed == 45 - block * BLOCK + 3
    third = ask(engine, PROMPT)
    assert third.reused == 44, "what was computed again is there for the next one"
    assert_exact("llama", [third])
    engine.close()


LOST = [(name, group, block) for name in ("gemma3", "qwen3_next") for group, block in ((0, 0), (0, 4), (1, 4))]


@pytest.mark.parametrize(("name", "group", "block"), LOST)
def test_groups_that_forget_are_claimed_again(name: str, group: int, block: int) -> None:
    """Windows and states: what they would need further back may be gone, so the request is claimed anew."""
    tier = flaky(name)
    engine = open_flaky(name, tier)
    first = ask(engine, PROMPT)
    push_down(engine)
    slot = slots_of(engine, PROMPT, group)[block]
    assert slot >= 0, "it is not on the host"
    tier.lost.add((group, slot))
    admitted = engine.stats.num_admitted
    again = ask(engine, PROMPT)
    assert_exact(name, [first, again])
    assert engine.pages.mover.stats().num_failed >= 1 and engine.stats.num_admitted == admitted + 2
    assert again.num_preemptions == 0 and again.computed > 45 - 40 + 3
    third = ask(engine, PROMPT)
    assert third.reused >= 40
    assert_exact(name, [third])
    engine.close()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_source_of_a_partial_hit_is_lost(name: str) -> None:
    """A hit ends inside a page on the host that others stand on: when it cannot be read it is not tried for ever."""
    tier = flaky(name)
    engine = open_flaky(name, tier)
    ask(engine, PROMPT)
    push_down(engine)
    groups = range(len(engine.cache.config.groups))
    lost = {(group, slots_of(engine, PROMPT, group)[2]) for group in groups}
    assert min(slot for _, slot in lost) >= 0, "it is not on the host"
    tier.lost |= lost
    other = (*PROMPT[:20], *words(60, 9))
    again = ask(engine, other)
    assert engine.pages.mover.stats().num_failed >= 1 and again.reused <= 16
    failed = engine.pages.mover.stats().num_failed
    third = ask(engine, (*PROMPT[:20], *words(80, 9)))
    assert engine.pages.mover.stats().num_failed == failed, "the lost page is still found"
    assert_exact(name, [again, third])
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_all_who_rest_on_a_lost_page(name: str) -> None:
    """Several requests were promised the same page in the same step, forks and a beam search among them."""
    tier = flaky(name)
    engine = open_flaky(name, tier, tuple(3 * pages for pages in DEVICE[name]), wait_for_reuse=False)
    runs = [ask(engine, PROMPT)]
    for start in range(96, 220, 20):
        ask(engine, words(start, 70))
    groups = range(len(engine.cache.config.groups))
    lost = {(group, slot) for group in groups for slot in slots_of(engine, PROMPT, group)[1:] if slot >= 0}
    assert lost, "nothing is on the host"
    tier.lost |= lost
    drafts = 0 if engine.model.recurrent else 3
    samplings = [plain(6), plain(6, drafts=drafts), plain(6, n=3), plain(6, beams=3), plain(6, temperature=0.8, seed=1)]
    runs += [engine.submit((*PROMPT, *words(9 * nth, 3)), sampling) for nth, sampling in enumerate(samplings)]
    finish(engine, 200)
    assert engine.pages.mover.stats().num_failed
    assert_exact(name, runs)
    engine.close()


def talk(engine: Engine, seed: int) -> list[Run]:
    """Three conversations, three turns each, side by side: every turn begins with what is on the host by then."""
    dice = random.Random(seed)
    drafts = 0 if engine.model.recurrent else 3
    samplings = [plain(6), plain(5, drafts=drafts), plain(6, n=2), plain(4, beams=3, n=2)]
    samplings.append(plain(7, temperature=0.9, seed=seed))
    said = [words(60 * nth, dice.randint(12, 30)) for nth in range(3)]
    runs: list[Run] = []
    for _ in range(3):
        turn = [engine.submit(text, dice.choice(samplings)) for text in said]
        finish(engine, 200)
        for nth, run in enumerate(turn):
            said[nth] = (*said[nth], *dice.choice(run.answers).tokens, *words(dice.randrange(200), dice.randint(2, 9)))
        runs += turn
    return runs


@pytest.mark.parametrize(
    ("name", "chance"),
    [
        pytest.param(
            name,
            chance,
            marks=[] if chance == (0.2, 0.2) or (name == "llama" and 1.0 in chance) else [pytest.mark.slow],
        )
        for name in NAMES
        for chance in ((0.3, 0.0), (0.0, 0.3), (0.2, 0.2), (1.0, 0.0), (0.0, 1.0))
    ],
)
def test_failures_by_chance(name: str, chance: tuple[float, float]) -> None:
    """Reads, writes, both, always: every answer is exact, everything is done, every slot is accounted for."""
    tier = flaky(name, Chance, seed=1, reads=chance[0], writes=chance[1])
    engine = open_flaky(name, tier)
    assert_exact(name, talk(engine, 1))
    assert engine.pages.mover.stats().num_failed > 2 and engine.cache.stats().offloaded
    engine.close()


def test_a_tier_with_a_bug() -> None:
    """Every read raises something of its own: the host is as good as empty, and that is all."""
    tier = flaky("llama")
    engine = open_flaky("llama", tier)
    first = ask(engine, PROMPT)
    push_down(engine)
    tier.bug = RuntimeError("off by one")
    again = ask(engine, PROMPT)
    assert again.computed == 45 + 3 and again.reused == 0
    assert_exact("llama", [first, again])
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_cancelled_while_pages_are_missing(name: str) -> None:
    """The moves of a request fail and it is cancelled before its next step: its pages come back like any others."""
    tier = flaky(name, Chance, seed=3, reads=1.0)
    engine = open_flaky(name, tier)
    ask(engine, PROMPT)
    push_down(engine)
    run = engine.submit(PROMPT, plain(9))
    step(engine)
    assert tier.num_failed and not run.done
    assert engine.cancel(run)
    other = ask(engine, words(60, 30))
    assert_exact(name, [other])
    engine.close()
