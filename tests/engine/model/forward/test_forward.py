"""The forward of our own: the logits of transformers' code, step by step, over the same weights and the same pages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from quire import InputError  # noqa: E402
from quire.engine import Engine, EngineConfig, Sampling, from_module  # noqa: E402
from quire.engine.model.attention import OwnForward, TransformersForward  # noqa: E402
from quire.engine.model.weights import weights_digest  # noqa: E402

from ...families import SHAPE, WINDOW, build  # noqa: E402

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
HALF = ("llama", "qwen3", "gemma3")
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
WIDE = {name: size for name, size in SHAPE.items() if name != "head_dim"}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(num_hidden_layers=2, **SHAPE),
    "llama, tied": lambda: LlamaConfig(num_hidden_layers=2, **SHAPE | {"tie_word_embeddings": True}),
    "llama, biases": lambda: LlamaConfig(
        num_hidden_layers=2, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3, **SHAPE
    ),
    "mistral": lambda: MistralConfig(num_hidden_layers=2, sliding_window=WINDOW, **SHAPE),
    "qwen2": lambda: Qwen2Config(num_hidden_layers=2, **WIDE),
    "qwen3": lambda: Qwen3Config(num_hidden_layers=2, **SHAPE),
    "gemma3": lambda: Gemma3TextConfig(num_hidden_layers=3, sliding_window=WINDOW, layer_types=KINDS, **SHAPE),
    "gemma3, softcap": lambda: Gemma3TextConfig(
        num_hidden_layers=3, sliding_window=WINDOW, layer_types=KINDS, final_logit_softcapping=0.5, **SHAPE
    ),
}


def make(name: str, dtype: Any) -> Any:
    """A model in which every weight counts: norms and biases too are random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype).eval().requires_grad_(False)
        for weight in module.parameters():
            if weight.ndim == 1:
                weight.normal_(std=0.4)
    return module


def steps(module: Any, forward: str) -> tuple[Any, list[Any], list[list[int]]]:
    """Three prompts in chunks, decoded together: the logits of each step, and the answers."""
    model = from_module(module, forward=forward)
    engine = Engine(model, EngineConfig(64, 0, 8, max_num_tokens=48, max_sequences=8, max_length=120))
    logits: list[Any] = []
    run = engine._run
    engine._run = lambda packed: logits.append(run(packed)) or logits[-1]  # type: ignore[method-assign, func-returns-value]
    rng = np.random.default_rng(3)
    runs = [
        engine.submit(rng.integers(16, 250, length).tolist(), Sampling(max_tokens=10, ignore_eos=True))
        for length in (61, 30, 7)
    ]
    engine.drain()
    return model, logits, [run.answers[0].tokens for run in runs]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str) -> None:
    module = make(name, torch.float32)
    theirs, wanted, answers = steps(copy.deepcopy(module), "transformers")
    ours, logits, same = steps(module, "auto")
    assert isinstance(ours.forward, OwnForward) and isinstance(theirs.forward, TransformersForward)
    assert same == answers and len(logits) == len(wanted) > 10
    for one, other in zip(logits, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "dtype"), [("llama", "float16"), *((n, "bfloat16") for n in HALF)])
def test_in_half_precision_it_rounds_where_they_do(name: str, dtype: str) -> None:
    """A processor may add up a wide product in another order: then a place or two in a thousand rounds otherwise."""
    module = make(name, getattr(torch, dtype))
    _, wanted, _ = steps(copy.deepcopy(module), "transformers")
    _, logits, _ = steps(module, "own")
    ours, theirs = next((one.float(), other.float()) for one, other in zip(logits, wanted, strict=True) if len(other))
    assert (ours - theirs).abs().max() <= 0.05 * theirs.std()


def test_the_weights_are_shared_and_still_themselves() -> None:
    """Fused products cost no second copy, the module goes on working, and pages keep their fingerprint."""
    module = make("llama, biases", torch.float32)
    wanted = weights_digest(from_module(copy.deepcopy(module), forward="transformers"))
    before = _bytes(module)
    model = from_module(module)
    assert _bytes(module) == before and weights_digest(model) == wanted
    attention = module.model.layers[0].self_attn
    own = model.forward.decoder.layers[0].attention.qkv  # type: ignore[attr-defined]
    assert attention.k_proj.weight.data_ptr() == own.weight[64:].data_ptr()
    assert attention.v_proj.bias.data_ptr() == own.bias[96:].data_ptr()


def _bytes(module: Any) -> int:
    stores = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in module.parameters()}
    return sum(stores.values())


def with_a_hook(module: Any) -> None:
    module.model.layers[1].mlp.register_forward_hook(lambda *_: None)


def with_an_adapter(module: Any) -> None:
    class Adapted(torch.nn.Linear):  # type: ignore[misc, name-defined]
        """Stands for what adapters and quantizers put in the place of a product."""

    module.model.layers[1].mlp.down_proj = Adapted(96, 64, bias=False)


def with_a_growing_rope(module: Any) -> None:
    module.model.rotary_emb.rope_type = "dynamic"


def with_half_a_rope(module: Any) -> None:
    module.model.rotary_emb.inv_freq = module.model.rotary_emb.inv_freq[:4]


def with_one_bias(module: Any) -> None:
    layer = module.model.layers[0].self_attn.k_proj
    layer.bias = torch.nn.Parameter(torch.zeros(layer.out_features))


def of_another_version(module: Any) -> None:
    module.model.layers[1].mlp.act_function = module.model.layers[1].mlp.__dict__["_modules"].pop("act_fn")


UNFIT: dict[Callable[[Any], None], str] = {
    with_a_hook: "it has hooks",
    with_an_adapter: "a projection is a Adapted",
    with_a_growing_rope: "its rotary positions are of type dynamic",
    with_half_a_rope: "only a part of each head is turned",
    with_one_bias: "some of the projections that are one product have a bias",
    of_another_version: "calls something else",
}


@pytest.mark.parametrize("change", UNFIT, ids=lambda change: change.__name__)
def test_what_it_cannot_run_is_left_to_transformers(change: Callable[[Any], None]) -> None:
    module = make("llama", torch.float32)
    change(module)
    places = [weight.data_ptr() for weight in module.parameters()]
    with pytest.raises(InputError, match=UNFIT[change]):
        from_module(module, forward="own")
    assert isinstance(from_module(module).forward, TransformersForward)
    assert [weight.data_ptr() for weight in module.parameters()] == places, "nothing was fused"


def test_a_hook_that_comes_later_is_called() -> None:
    module = make("llama", torch.float32)
    engine = Engine(from_module(module), EngineConfig(64, 0, 8, max_num_tokens=48, max_sequences=8, max_length=120))
    seen: list[int] = []
    hook = module.register_forward_pre_hook(lambda *_: seen.append(engine.stats.num_steps))
    engine.submit(list(range(20, 40)), Sampling(max_tokens=3, ignore_eos=True))
    engine.drain()
    assert len(seen) == 3
    hook.remove()
    engine.submit(list(range(50, 70)), Sampling(max_tokens=3, ignore_eos=True))
    engine.drain()
    assert len(seen) == 3


def test_other_families_run_transformers_code() -> None:
    module = build("qwen3_next")
    with pytest.raises(InputError, match=r"Qwen3NextForCausalLM is none of LlamaForCausalLM, .*'transformers'"):
        from_module(module, forward="own")
    assert isinstance(from_module(module).forward, TransformersForward)


def test_a_forward_nobody_knows() -> None:
    with pytest.raises(InputError, match="pass one of auto, own, transformers"):
        from_module(build("llama"), forward="fast")


def test_an_engine_in_float16() -> None:
    """Pages are in float16 too; each token is one that transformers' own code in float16 may choose as well, whether
    its prompt was computed, reused, or brought back from host memory."""
    module = make("llama", torch.float16)
    theirs = copy.deepcopy(module)
    config = EngineConfig(12, 40, block_size=8, max_num_tokens=32, max_sequences=4, max_length=96)
    prompts = [list(range(start, start + 50)) for start in (20, 90, 150, 20)]
    with Engine(from_module(module), config) as engine:
        assert {pages.dtype for pages in engine.pages.kv.values()} == {torch.float16}
        runs = []
        for prompt in prompts:
            runs.append(engine.submit(prompt, Sampling(max_tokens=8, ignore_eos=True)))
            engine.drain()
        assert runs[-1].reused >= 40 and engine.cache.stats().onboarded
    for prompt, run in zip(prompts, runs, strict=True):
        tokens = run.answers[0].tokens
        logits = theirs(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :].float()
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (logits.amax(dim=-1) - chosen).max() <= 0.01 * logits.std(), "not even nearly the best"
