"""The exactness tests can fail: one wrong page, and the answers are other ones; one wrong token, and it is seen.

A conversation runs, a page that its next turn reads is overwritten (on the device, or on the host while it is there),
and the next turn's tokens are not the reference's. The same conversation without the damage is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine import from_module  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.setup.engine_config import EngineConfig  # noqa: E402

from ..effort import slow  # noqa: E402
from . import families  # noqa: E402
from .reference import Reference, assert_same  # noqa: E402
from .steps import reference_of  # noqa: E402

BLOCK = 8
FIRST, OTHER = tuple(range(20, 61)), tuple(range(100, 141))
WISH = Sampling(max_tokens=12, ignore_eos=True)
DEVICE, HOST = 0, 1
GROUPS = [("llama", 0), ("gemma3", 0), ("gemma3", 1), ("qwen3_next", 0), ("qwen3_next", 1)]


def open_engine(model: Any, device_pages: int, host_pages: int) -> Engine:
    config = EngineConfig(
        device_pages, host_pages, BLOCK, max_num_tokens=32, max_sequences=4, max_length=120, snapshot_every=BLOCK
    )
    return Engine(model, config)


def turn(engine: Engine, reference: Reference, prompt: tuple[int, ...], what: str) -> tuple[int, ...]:
    """One request to its end; it must be exact. What was said so far."""
    run = engine.submit(prompt, WISH)
    engine.drain()
    assert_same(reference, prompt, WISH, [answer.tokens for answer in run.answers], what)
    return (*prompt, *run.answers[0].tokens)


def deepest(engine: Engine, group: int, said: tuple[int, ...], tier: int) -> int:
    """Slot of the last page along what was said: every kind of group needs it to go on from there."""
    store, place = engine.cache._setup.pools[group]
    found: dict[int, tuple[int, ...]] = {}
    dump = store.dump()
    for page in dump.groups[place].pages.values():
        tokens = dump.text_to(page.node)
        if tokens and tokens == said[: len(tokens)]:
            found[len(tokens)] = page.slots
    slots = found[max(found)]
    assert all(slot < 0 for slot in slots[:tier]) and slots[tier] >= 0, f"it is not in tier {tier}: {slots}"
    return slots[tier]


def overwrite(engine: Engine, group: int, tier: int, slot: int) -> None:
    """Other numbers of the same size, as a page of somebody else would have them."""
    if tier == DEVICE:
        arena = engine.pages.arenas[group]
        arena[slot] = torch.randn(arena.shape[1] // 4).view(torch.uint8)
    else:
        page = np.random.default_rng(1).standard_normal(engine.pages.tiers[tier].info().page_bytes[group] // 4)
        engine.pages.tiers[tier].write(group, [slot], [page.astype(np.float32).view(np.uint8)[None]])


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize(("name", "group"), GROUPS)
def test_one_page_on_the_device(name: str, group: int, damage: bool) -> None:
    model, reference = from_module(families.build(name), share_pool=False), reference_of(name)
    engine = open_engine(model, 40, 0)
    said = turn(engine, reference, FIRST, "before")
    if damage:
        overwrite(engine, group, DEVICE, deepest(engine, group, said, DEVICE))
        with pytest.raises(AssertionError, match=r"after.* no rounding"):
            turn(engine, reference, (*said, 70, 71), "after")
    else:
        turn(engine, reference, (*said, 70, 71), "after")
    assert engine.cache.stats(group).reused > 0
    engine.close()


@pytest.mark.parametrize(
    ("name", "group", "damage"),
    [*((*one, True) for one in GROUPS), ("llama", 0, False), *(slow(*one, False) for one in GROUPS[1:])],
)
def test_one_page_on_the_host(name: str, group: int, damage: bool) -> None:
    """Other conversations push the page down to the host; it comes back up with what was written there."""
    model, reference = from_module(families.build(name), share_pool=False), reference_of(name)
    engine = open_engine(model, 12, 150)
    said = turn(engine, reference, FIRST, "before")
    for start in range(70, 214, 12):  # the ends of conversations leave the device last
        turn(engine, reference, tuple(range(start, start + 40)), "others")
    if damage:
        overwrite(engine, group, HOST, deepest(engine, group, said, HOST))
        with pytest.raises(AssertionError, match=r"after.* no rounding"):
            turn(engine, reference, (*said, 70, 71), "after")
    else:
        turn(engine, reference, (*said, 70, 71), "after")
    assert engine.cache.stats(group).onboarded > 0
    engine.close()


SAMPLINGS = [
    Sampling(max_tokens=5, ignore_eos=True),
    Sampling(max_tokens=5, ignore_eos=True, n=2, temperature=0.7, seed=3),
    Sampling(max_tokens=5, ignore_eos=True, n=2, beams=3),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "beams"])
def test_one_wrong_token_is_seen(sampling: Sampling) -> None:
    """A changed last token, a missing one and one too many."""
    reference = reference_of("llama")
    *others, last = reference.answers(FIRST, sampling)
    assert_same(reference, FIRST, sampling, [*others, last])
    for wrong in ((*last[:-1], (last[-1] + 1) % families.VOCAB), last[:-1], (*last, 20)):
        with pytest.raises(AssertionError, match="no rounding"):
            assert_same(reference, FIRST, sampling, [*others, wrong])


def test_a_tie_is_called_a_tie() -> None:
    """Two tokens with the same output weights are equally good: a failure all the same, but called by its name."""
    reference = Reference(families.build("llama"))
    ((*start, last),) = reference.answers(FIRST, SAMPLINGS[0])
    twin = next(token for token in range(last + 1, families.VOCAB) if token not in start)
    weights = reference.module.lm_head.weight
    weights[twin] = weights[last]
    with pytest.raises(AssertionError, match=r"differs at 4: a tie, gap 0.0e\+00"):
        assert_same(reference, FIRST, SAMPLINGS[0], [(*start, twin)])
