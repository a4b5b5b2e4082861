"""Loads of the vLLM connector: which page goes into which block, and that the eviction order hears of it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from quire import Request
from quire.core.outside.find import Found
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.common.worker_orders import BadPage, Part, WorkerReport
from quire.integrations.vllm.requests.stay_loads import StayLoads
from quire.integrations.vllm.scheduler_side import SchedulerSide
from tests.integrations.test_vllm_contract import PROMPT, ask, filled, kept, stored
from tests.integrations.test_vllm_spread import go_on
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE


class OldestFirst(ToyEngine):
    eviction = "lru"


@pytest.mark.parametrize("own", [0, 20])
def test_what_is_loaded_or_was_on_the_device_is_used_once_more(own: int) -> None:
    engine = filled(OldestFirst, host=10)
    other = ask("other", [40] * 21)
    go_on(engine, stored(engine, other))
    engine.side.finish(other)
    again = ask("again", [*PROMPT, 30])
    assert engine.side.look(again, own) == 20 - own
    engine.side.place(again, [list(range(1, 7))], 20 - own)
    go_on(engine, engine.side.order({}, (), lambda _: None))
    engine.side.finish(again)
    go_on(engine, stored(engine, ask("third", [50] * 21)))
    assert kept(engine) == 20 and kept(engine, [40] * 21) < 20  # the first of them came first, and was used last


class Drafted(ToyEngine):
    """With a drafter that reads hidden states, so that vLLM computes the last block it finds."""

    def open_side(self, model: Any, slots: int) -> SchedulerSide:
        plain = super().open_side(model, slots)
        return SchedulerSide(plain.cache, plain.options, world_size=self.ranks, redo_blocks=1, events=plain.events)


@pytest.mark.parametrize(("own", "gain"), [(0, 16), (8, 8), (16, 0)])
def test_with_a_drafter_the_last_block_that_is_found_is_not_loaded(own: int, gain: int) -> None:
    assert filled(host=10).side.look(ask("again", [*PROMPT, 30]), own) == 20 - own
    engine = filled(Drafted, host=10)
    assert engine.side.look(ask("again", [*PROMPT, 30]), own) == gain
    assert engine.side.look(ask("other", [*PROMPT[:12], 30, 31, 32, 33, 34]), own) == max(0, 8 - own)


def held(rng: random.Random, first: int, last: int) -> list[int]:
    """Blocks that were found: mostly the last ones."""
    if rng.random() < 0.3:
        return [block for block in range(first, last) if rng.random() < 0.8]
    return list(range(rng.randrange(first, last + 1) if rng.random() < 0.7 else max(0, first - 2), last))


def test_pages_go_where_vllm_has_blocks_or_the_load_is_refused() -> None:
    rng, ends = random.Random(3), set()
    for _ in range(3000):
        first = rng.randrange(4)
        last = first + rng.randrange(1, 6)
        blocks = held(rng, first, last)
        passed = last - len(blocks) if rng.random() < 0.7 else rng.randrange(last + 1)
        table = [0 if nth < passed or rng.random() < 0.05 else 100 + nth for nth in range(last + rng.randrange(2))]
        slots = [7 * block + 1 for block in blocks]
        loads = StayLoads()
        found: Any = SimpleNamespace(
            start=first * SIZE, end=last * SIZE, slots=lambda _, slots=slots: np.array(slots, np.int32),
            blocks=lambda _, blocks=blocks: np.array(blocks, np.int32),
        )  # fmt: skip
        loads.found = cast(Found, found)
        wanted = [nth for nth in range(first, last) if table[nth]]
        right: list[Part] | None = [Part(0, [table[nth] for nth in wanted], [7 * nth + 1 for nth in wanted])]
        if not wanted:
            right = []
        if not set(wanted) <= set(blocks):
            right = None
        assert loads.parts([table], (last - first) * SIZE, SIZE) == right, (first, last, blocks, table)
        ends.add((right is None, bool(right), len(wanted) == last - first))
        assert loads.parts([table], (last - first) * SIZE + SIZE, SIZE) is None
    assert len(ends) == 5


@pytest.mark.parametrize("hybrid", [False, True])
def test_who_comes_back_stores_nothing_of_what_was_loaded_behind_its_prompt(hybrid: bool) -> None:
    """A page of what it had generated goes from host memory while it is loaded, and the next block is there already."""
    engine, group = ToyEngine(0, hybrid=hybrid), int(hybrid)
    first = ask("first", list(range(33)))
    orders = stored(engine, first)
    engine.fill(first, first.tables, 0, 32)
    go_on(engine, orders)
    engine.side.finish(first)
    back = ask("back", list(range(21)))
    back.num_prompt_tokens = 8
    assert engine.side.look(back, 0) == 20
    back.tables = [[11, 12, 13, 14, 15, 16, 17], [0, 0, 0, 14, 15, 16, 17]][: 1 + group]
    engine.side.place(back, back.tables, 20)
    go_on(engine, engine.side.order({}, (), lambda _: None))
    with engine.cache.find(Request("look", np.arange(13, dtype=np.int32))) as found:
        slot = dict(zip(found.blocks(group).tolist(), found.slots(group).tolist(), strict=True))[2]
    engine.cache.lose(group, [slot], tier=HOST)  # as if it was evicted
    engine.side.place(back, back.tables, 0)
    back.num_computed_tokens = 20
    back.all_token_ids += range(21, 29)
    orders = engine.side.order({"back": 5}, (), lambda _: back.tables)
    assert orders.stores == []
    engine.fill(back, back.tables, 20, 25)
    go_on(engine, orders)
    engine.texts += [first, back, ask("short", list(range(13)))]
    assert engine.pages_are_right() > 0
    engine.side.finish(back)
    engine.nothing_is_held()


def test_a_load_that_fails_for_who_was_aborted_is_counted_for_nobody() -> None:
    engine = filled()
    request = ask("aborted")
    assert engine.side.look(request, 0) == 20
    engine.side.place(request, [list(range(1, 7))], 20)
    (copy,) = engine.side.order({}, (), lambda _: None).loads
    engine.side.finish(request)
    engine.side.hear(WorkerReport({copy.job: 1}, {copy.job: [BadPage(0, copy.parts[0].slots[-1])]}))
    assert kept(engine) == 16 and not engine.side._failures
    engine.nothing_is_held()


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_prompt_of_whole_blocks_is_loaded_whole_where_all_layers_read_everything(hybrid: bool) -> None:
    """vLLM then computes its last token alone, as a decoding step. Behind a window that token reads one token more."""
    engine = ToyEngine(0, hybrid=hybrid)
    text = list(range(5 * SIZE))
    first = ask("first", text)
    go_on(engine, stored(engine, first))
    engine.side.finish(first)
    again = ask("again", text)
    gain = engine.side.look(again, 0)
    assert gain == (4 if hybrid else 5) * SIZE
    assert engine.side.look(again, 4 * SIZE) == (0 if hybrid else SIZE)  # the rest is vLLM's own
