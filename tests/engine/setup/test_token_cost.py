"""Where a token costs twice, by a model's shape, beside the operations that torch counts in its plain form."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dataclasses import replace  # noqa: E402

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen3MoeConfig  # noqa: E402

from quire.engine import EngineConfig, from_module  # noqa: E402
from quire.engine.model.layers import KvShape, Model  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.setup.token_cost import cost_doubles_at  # noqa: E402

from .. import families  # noqa: E402


def counted(name: str) -> float:
    """Of a prompt's operations: those per token by those per token and position, without the head. In this form every
    token reads every other, so a token at the end costs what the mean one does."""
    module = families.build(name)
    module.set_attn_implementation("eager")
    head = 2 * module.get_output_embeddings().weight.numel()
    totals = []
    for length in (64, 128):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(torch.arange(length)[None] + families.FIRST_WORD, use_cache=False)
        totals.append(counter.get_total_flops() / length - head)
    per_position = (totals[1] - totals[0]) / 64
    return float((totals[0] - 64 * per_position) / per_position)


def test_attention_costs_as_much_as_the_rest_there() -> None:
    assert cost_doubles_at(from_module(families.build("llama"))) == pytest.approx(counted("llama"), rel=0.02)


def test_of_experts_those_count_that_a_token_is_sent_to() -> None:
    """Eight of three matrices of 64 x 32 in each of two layers, of which a token meets two."""
    few, many = (_experts(number) for number in (2, 8))
    assert cost_doubles_at(many) == pytest.approx(cost_doubles_at(few), abs=8), "but for the router's 6 x 64"
    weights = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 8 * 64 + 2 * 3 * 64 * 32)
    assert cost_doubles_at(many) == round(weights / (2 * 2 * 64))


def _experts(number: int) -> Model:
    shape = {**families.SHAPE, "num_hidden_layers": 2, "num_experts": number, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(moe_intermediate_size=32, decoder_sparse_step=1, mlp_only_layers=[], **shape)
    return from_module(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def test_windows_cost_the_same_everywhere() -> None:
    model = from_module(families.build("gemma3"))
    shapes = [one for one in model.shapes if isinstance(one, KvShape)]
    windows = [one for one in shapes if one.window]
    wider = [replace(one, window=one.window and 2 * one.window) for one in shapes]
    assert len(windows) < len(model.shapes) and sum(len(one.layers) for one in windows) == 2
    more = 2 * families.WINDOW  # two layers with windows beside one of full attention
    assert cost_doubles_at(replace(model, shapes=tuple(wider))) == pytest.approx(cost_doubles_at(model) + more, abs=1)
    assert cost_doubles_at(replace(model, shapes=tuple(windows))) == (1 << 31) - 1


def test_an_engine_weighs_by_its_models_shape_unless_it_is_said() -> None:
    model = from_module(families.build("llama"))
    found = []
    for given in (None, 77):
        config = EngineConfig(40, block_size=8, max_length=128, eviction_cost="compute", compute_doubles_at=given)
        engine = Engine(model, config)
        found.append(engine.cache.config.compute_doubles_at)
        engine.close()
    assert found == [cost_doubles_at(model), 77] and found[0] != 30_000
