"""The bundled engine and the server's options: what a real engine's cache went through plays exactly."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from quire import InputError
from quire.cli.serve import serve_command
from quire.incidents import IncidentPlayer, Lines, load
from quire.incidents.play.findings import find_out
from tests.incidents.lives import state_of

torch = pytest.importorskip("torch")


def test_what_an_engine_did_is_done_again(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    from quire.engine import Engine, EngineConfig, Sampling, from_module

    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256,
    )  # fmt: skip
    model = from_module(AutoModelForCausalLM.from_config(shape).eval().requires_grad_(False))
    config = EngineConfig(24, 24, max_num_tokens=64, max_sequences=4, max_length=200, incidents=tmp_path)
    with Engine(model, config) as engine:
        runs = []
        for nth in range(12):
            prompt = np.concatenate([np.full(40, 1 + nth % 3), np.arange(nth)]).astype(np.int32)
            runs.append(engine.submit(prompt, Sampling(max_tokens=6 + nth, ignore_eos=True)))
            engine.step()
        engine.cancel(runs[-1])
        while engine.runs:
            engine.step()
        assert engine.incidents is not None
        incident, state = load(engine.incidents.save()), state_of(engine.cache)
    player = IncidentPlayer(incident)
    assert player.run() > 50 and state_of(player.cache) == state
    assert sum(one.hit_tokens for one in find_out(incident).stretches) > 0


def test_lines_on_the_command_line() -> None:
    assert serve_command._lines("hang=5,waiting=2,hit_rate=0.25") == Lines(5.0, 0.25, 2.0)
    assert serve_command._lines(None) == Lines()
    for wrong in ("hang", "hang=soon", "speed=3", "hit_rate=4"):
        with pytest.raises(InputError):
            serve_command._lines(wrong)


def test_lines_without_a_folder_are_refused() -> None:
    options = Namespace(
        max_requests=4, eviction="auto", eviction_cost="tokens", scheduling="fair", granted=(), max_length=None,
        receipt_chunks=0, overlap=None, share_pending=True, enforce_eager=False, deadlines=None, bills=None,
        incidents=None, incident_at="hang=5",
    )  # fmt: skip
    with pytest.raises(InputError, match="no incidents are kept"):
        serve_command._engine_fields(options)
