"""Recurrent states under vLLM: only what vLLM names is stored, one page brings a request back."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from quire import InputError
from quire.integrations.vllm.common.cache_groups import layer_group
from quire.integrations.vllm.common.worker_orders import Copy, Part
from quire.integrations.vllm.worker.host_pages import HostPages, check_sizes, group_layers, layer_form
from tests.effort import cases
from tests.integrations.states.state_engine import StateEngine
from tests.integrations.test_vllm_options import group
from tests.integrations.toy_parts import MambaSpec, ToyRequest, requests


@pytest.mark.parametrize("ahead", [False, True])
def test_random_runs_with_states(ahead: bool) -> None:
    """Every page that is found, and every block that is read or loaded, has its right bytes."""
    seen, looked = Counter[str](), 0
    for seed in range(cases(3, 400)):
        rng = random.Random(seed)
        engine = StateEngine(seed, ahead=ahead, late=rng.choice([0, 0.4]), failing=rng.choice([0, 0, 0.1]), host=30)
        if seed % 3 == 0:
            engine.side.stores.set_most_blocks(1)
        engine.run(requests(rng, 16), abort=rng.choice([0, 0.03]))
        looked += engine.pages_are_right()
        seen += engine.seen
    assert looked and min(seen[what] for what in ("loads", "named", "done", "preemptions", "early")) > 0


def test_a_state_that_vllm_has_not_named_is_not_stored() -> None:
    """The block behind which the state would be is in the table, and what is in it is from the middle of a block."""
    engine, request = StateEngine(0), ToyRequest("r", list(range(21)), 21)
    assert engine.side.look(request, 0) == 0
    request.tables = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 7, 8, 9]]
    engine.side.place(request, request.tables, 0)
    offers = [
        (1, 7, 15),
        (1, 8, 20),
        (1, 9, 0),
        (0, 3, 12),
        (1, 9, 400),
    ]  # inside a block, at an end, and nonsense
    orders = engine.side.order({"r": 21}, (), lambda _: request.tables, (), {"r": offers})
    (copy,) = orders.stores
    assert [(part.group, part.blocks) for part in copy.parts] == [(0, [1, 2, 3, 4, 5]), (1, [8])]


def test_a_state_that_vllm_found_itself_is_stored_again_if_it_is_not_here() -> None:
    engine, request = StateEngine(0), ToyRequest("r", list(range(21)), 21)
    assert engine.side.look(request, 12) == 0
    request.tables, request.num_computed_tokens = [[1, 2, 3, 4, 5, 6], [0, 0, 7, 0, 8, 9]], 12
    engine.side.place(request, request.tables, 0)
    orders = engine.side.order({"r": 9}, (), lambda _: request.tables, (), {"r": []})
    (copy,) = orders.stores
    assert [(part.group, part.blocks) for part in copy.parts] == [(0, [1, 2, 3, 4, 5]), (1, [7])]


def test_a_state_that_waits_is_stored_before_vllm_hands_its_block_out_again() -> None:
    """While its request runs: vLLM takes back the block of a state as soon as there is a later one."""
    engine, request = StateEngine(0), ToyRequest("r", list(range(21)), 21)
    engine.side.stores.set_most_blocks(1)
    assert engine.side.look(request, 0) == 0
    request.tables = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 8, 9]]
    engine.side.place(request, request.tables, 0)
    first = engine.side.order({"r": 21}, (), lambda _: request.tables, (), {"r": [(1, 8, 20)]})
    assert [(part.group, part.blocks) for part in first.stores[0].parts] == [(0, [1])]
    request.num_computed_tokens, request.tables = 21, [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 9]]
    orders = engine.side.order({"r": 1}, (), lambda _: request.tables, [8])
    (copy,) = orders.early
    assert [(part.group, part.blocks) for part in copy.parts] == [(1, [8])] and orders.flush == [copy.job]


def test_a_load_brings_one_state_and_all_of_the_rest() -> None:
    engine, first, again = StateEngine(0), ToyRequest("r", list(range(21)), 21), ToyRequest("s", list(range(30)), 30)
    assert engine.side.look(first, 0) == 0
    first.tables = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 8, 9]]
    engine.side.place(first, first.tables, 0)
    orders = engine.side.order({"r": 21}, (), lambda _: first.tables, (), {"r": [(1, 8, 20)]})
    engine.fill(first, first.tables, 0, 21)
    worker = engine.workers[0]
    worker.run_stores(orders)
    worker.received()
    engine.side.hear(worker.report())
    engine.side.finish(first)
    assert engine.side.look(again, 0) == 20
    again.tables = [[11, 12, 13, 14, 15], [0, 0, 0, 0, 18]]
    engine.side.place(again, again.tables, 20)
    (load,) = engine.side.order({}, (), lambda _: None).loads
    assert [(part.group, part.blocks) for part in load.parts] == [(0, [11, 12, 13, 14, 15]), (1, [18])]


@pytest.mark.parametrize(
    ("mode", "drafts", "why"),
    [("none", 0, "--mamba-cache-mode align"), ("align", 1, "leave speculative decoding out")],
)
def test_states_that_vllm_does_not_keep_at_the_ends_of_blocks_are_refused(mode: str, drafts: int, why: str) -> None:
    spec = MambaSpec(block_size=16, page_size_bytes=1, mamba_cache_mode=mode, num_speculative_blocks=drafts)
    with pytest.raises(InputError, match=why):
        layer_group(1, group(spec))


def test_the_gap_behind_a_state_does_not_travel() -> None:
    """vLLM gives states blocks as large as those of the attention beside them."""
    raw = torch.zeros((5, 16), dtype=torch.float32)
    states = raw.as_strided((5, 1, 1, 10), (16, 10, 10, 1))
    spec = MambaSpec(block_size=4, page_size_bytes=64, real_page_size_bytes=40)
    model = [group(spec, "state")]
    check_sizes(model, {"state": states}, 5)
    layers = group_layers(model, {"state": states}, 5)
    assert layers[0][0].shape == (5, 40)
    pages = HostPages(layers, 2, checksums=True)
    raw[3] = torch.arange(16)
    pages.store(Copy(1, "r", [Part(0, [3], [1])]))
    pages.load(Copy(2, "r", [Part(0, [2], [1])]))
    assert raw[2].tolist() == [*range(10), *[0.0] * 6] and [one.bad for one in pages.take_ended()] == [[], []]


def test_pages_with_states_of_another_form_are_another_models() -> None:
    """A state's tensor is one of bytes: equal sizes say nothing of what is in it."""
    kv = {"state": torch.zeros((5, 1, 1, 48), dtype=torch.uint8)}
    forms = [
        (((3, 4), (3, 4)), ("float16", "float16")), (((4, 3), (3, 4)), ("float16", "float16")),
        (((3, 4), (3, 4)), ("bfloat16", "float16")), (((3, 4), (3, 4)), ("float16", "bfloat16")),
    ]  # fmt: skip
    specs = [MambaSpec(block_size=4, page_size_bytes=48, shapes=shapes, dtypes=dtypes) for shapes, dtypes in forms]
    assert len({layer_form([group(spec, "state")], kv) for spec in specs}) == len(forms)
