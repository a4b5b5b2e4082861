"""The fused decoder against the one in single operations: the logits of every step, over the same weights."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.core.split import LayerPlace  # noqa: E402
from quire.engine import Engine, EngineConfig, Sampling, from_module  # noqa: E402
from quire.engine.model.attention import OwnForward  # noqa: E402
from quire.engine.model.forward.families import decoder_of  # noqa: E402
from quire.engine.model.kernels.choice import IN_TRITON, PLAIN, Kernels  # noqa: E402
from quire.engine.model.kernels.fused import FusedDecoder, act_of, fits  # noqa: E402
from quire.engine.model.kernels.heads import BySlot  # noqa: E402
from quire.engine.model.kernels.steps import DecodeLane, DecodeStep, PromptLane, PromptStep  # noqa: E402

from ..forward.test_forward import CONFIGS, make  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
RUNS = CUDA or os.environ.get("TRITON_INTERPRET") == "1"  # tests/conftest.py sets it
triton = pytest.param(
    IN_TRITON,
    id="in Triton",
    marks=pytest.mark.skipif(not RUNS or importlib.util.find_spec("triton") is None, reason="no Triton, or no CUDA"),
)


def play(name: str, kernels: Kernels | None, dtype: Any, most: int = 3) -> tuple[list[Any], list[list[int]]]:
    """Prompts in chunks, decoded together: the logits of each step, and the answers."""
    model = from_module(make(name, dtype).to(DEVICE), forward="own")
    assert isinstance(model.forward, OwnForward)
    model = replace(model, forward=replace(model.forward, kernels=kernels))
    engine = Engine(model, EngineConfig(64, 0, 8, max_num_tokens=32, max_sequences=8, max_length=120, graphs="off"))
    logits: list[Any] = []
    run = engine._run
    engine._run = lambda packed: logits.append(run(packed)) or logits[-1]  # type: ignore[method-assign, func-returns-value]
    rng = np.random.default_rng(3)
    runs = [
        engine.submit(rng.integers(16, 250, length).tolist(), Sampling(max_tokens=most, ignore_eos=True))
        for length in (41, 30, 7)
    ]
    engine.drain()
    return logits, [run.answers[0].tokens for run in runs]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_order_of_work_is_the_same(name: str) -> None:
    wanted, answers = play(name, None, torch.float32)
    logits, same = play(name, PLAIN, torch.float32)
    assert same == answers and len(logits) == len(wanted) > 4
    for one, other in zip(logits, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kernels", [triton])
def test_engines_over_kernels_give_the_same_logits(name: str, kernels: Kernels) -> None:
    wanted, answers = play(name, None, torch.float32)
    logits, same = play(name, kernels, torch.float32)
    assert same == answers
    for one, other in zip(logits, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def steps(name: str, kernels: Kernels, dtype: Any, rows: int) -> tuple[Any, Any, Any]:
    """Two prompts computed at once, then a token of each in `rows` rows: logits of both steps, and the pages."""
    decoder = FusedDecoder(decoder_of(make(name, dtype).to(DEVICE)), kernels)
    places = {layer: LayerPlace(0, layer) for layer in range(len(decoder.decoder.layers))}
    pages = torch.full((6, len(places), 2, 4, 2, 16), float("nan"), dtype=dtype, device=DEVICE)
    table = torch.tensor([[2, 5], [4, -1], [2, 5], [-1, -1]], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([*range(5), *range(2)], device=DEVICE)
    offsets, starts = (torch.tensor(some, dtype=torch.int32, device=DEVICE) for some in ([0, 5, 7], [0, 0]))
    where = BySlot(torch.tensor([2] * 4 + [5] + [4] * 2, device=DEVICE), positions % 4)
    prompts = PromptStep({0: PromptLane(3, table[:2], offsets, starts, where, 5)}, {0: pages}, places, kernels)
    wanted = torch.tensor([4, 6], device=DEVICE)
    first = decoder(torch.arange(20, 27, device=DEVICE), positions, wanted, prompts)
    starts = torch.tensor([5, 2, -1, -1], dtype=torch.int32, device=DEVICE)[:rows]
    decoding = DecodeStep({0: DecodeLane(3, table[:rows], starts)}, {0: pages}, places, kernels)
    ids = torch.tensor([7, 8, 9, 0], device=DEVICE)[:rows]
    return first, decoder(ids, starts.long(), slice(None), decoding), pages


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama, biases", "float32"), ("qwen3", "bfloat16"), ("gemma3", "float32")]
)
@pytest.mark.parametrize("kernels", [triton])
def test_kernels_give_the_same_logits_and_pages(name: str, dtype: str, kernels: Kernels) -> None:
    """Padded as a captured step is: two more rows than sequences, with position -1, any token and any table."""
    kind = getattr(torch, dtype)
    first, logits, pages = steps(name, kernels, kind, 4)
    wanted_first, wanted, wanted_pages = steps(name, PLAIN, kind, 2)
    near = 1e-4 if dtype == "float32" else 0.05 * float(wanted.std())
    torch.testing.assert_close(first, wanted_first, rtol=0, atol=near)
    torch.testing.assert_close(logits[:2], wanted, rtol=0, atol=near)
    torch.testing.assert_close(pages, wanted_pages, rtol=0, atol=4 * near, equal_nan=True)
    assert int((~pages.isnan()).all(-1).sum()) == (7 + 2) * len(pages[0]) * 2 * 2, "padding wrote nothing"


def test_activations_and_dtypes() -> None:
    acts = {name: act_of(decoder_of(make(name, torch.float32)).layers[0].mlp.act) for name in ("llama", "gemma3")}
    assert acts == {"llama": "silu", "gemma3": "gelu_tanh"} and act_of(torch.nn.ReLU()) is None
    module = make("qwen3", torch.bfloat16)
    assert fits(decoder_of(module))
    module.model.layers[1].self_attn.q_norm.float()
    module.model.layers[1].self_attn.k_norm.float()
    assert not fits(decoder_of(module)), "its product would be float32"
