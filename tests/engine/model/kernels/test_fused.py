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
from quire.engine.model.kernels.steps import DecodeLane, DecodeStep  # noqa: E402

from ..forward.test_forward import CONFIGS, make  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
RUNS = CUDA or os.environ.get("TRITON_INTERPRET") == "1"  # tests/conftest.py sets it
triton = pytest.param(
    IN_TRITON,
    id="in Triton",
    marks=pytest.mark.skipif(not RUNS or importlib.util.find_spec("triton") is None, reason="no Triton, or no CUDA"),
)


def play(name: str, kernels: Kernels | None, dtype: Any, most: int = 4) -> tuple[list[Any], list[list[int]]]:
    """Prompts in chunks, decoded together: the logits of each step, and the answers."""
    model = from_module(make(name, dtype).to(DEVICE), forward="own")
    assert isinstance(model.forward, OwnForward)
    model = replace(model, forward=replace(model.forward, kernels=kernels))
    engine = Engine(model, EngineConfig(64, 0, 8, max_num_tokens=32, max_sequences=8, max_length=120))
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


@pytest.mark.parametrize("name", ["llama, biases", "qwen3", "gemma3, softcap"])
@pytest.mark.parametrize("kernels", [triton])
def test_kernels_give_the_same_logits(name: str, kernels: Kernels) -> None:
    wanted, answers = play(name, None, torch.float32)
    logits, same = play(name, kernels, torch.float32)
    assert same == answers
    for one, other in zip(logits, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
@pytest.mark.parametrize("kernels", [triton])
def test_in_bfloat16_it_rounds_where_they_do(name: str, kernels: Kernels) -> None:
    wanted, _ = play(name, None, torch.bfloat16, 2)
    logits, _ = play(name, kernels, torch.bfloat16, 2)
    ours, theirs = next((one.float(), other.float()) for one, other in zip(logits, wanted, strict=True) if len(other))
    assert (ours - theirs).abs().max() <= 0.05 * theirs.std()


@pytest.mark.parametrize("kernels", [pytest.param(PLAIN, id="plain"), triton])
def test_padded_rows_change_nothing(kernels: Kernels) -> None:
    """As in a captured step: more rows than sequences; the others have position -1, any token and any table."""
    decoder = FusedDecoder(decoder_of(make("gemma3", torch.float32).to(DEVICE)), kernels)
    places = {layer: LayerPlace(0, layer) for layer in range(3)}
    table = torch.tensor([[2, 5], [4, -1], [1, 1], [-1, -1]], dtype=torch.int32, device=DEVICE)
    starts = torch.tensor([9, 3, -1, -1], dtype=torch.int32, device=DEVICE)
    ids = torch.tensor([7, 8, 9, 0], device=DEVICE)
    pages = torch.randn(6, 3, 2, 8, 2, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def step(rows: int) -> tuple[Any, Any]:
        memory = pages.clone()
        lanes = {0: DecodeLane(0, table[:rows], starts[:rows])}
        some = DecodeStep(lanes, {0: memory}, places, kernels)
        return decoder(ids[:rows], starts[:rows].long(), None, some), memory

    (alone, written), (logits, memory) = step(2), step(4)
    torch.testing.assert_close(logits[:2], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(memory, written, rtol=1e-4, atol=1e-5)
    assert int((memory != pages).any(-1).sum()) == 2 * 3 * 2 * 2, "K and V of two tokens, layers by heads"


def test_activations_and_dtypes() -> None:
    acts = {name: act_of(decoder_of(make(name, torch.float32)).layers[0].mlp.act) for name in ("llama", "gemma3")}
    assert acts == {"llama": "silu", "gemma3": "gelu_tanh"} and act_of(torch.nn.ReLU()) is None
    module = make("qwen3", torch.bfloat16)
    assert fits(decoder_of(module))
    module.model.layers[1].self_attn.q_norm.float()
    module.model.layers[1].self_attn.k_norm.float()
    assert not fits(decoder_of(module)), "its product would be float32"
