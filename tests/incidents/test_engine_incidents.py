"""The bundled engine and the server's options: what a real engine's cache went through plays exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import InputError
from quire.cli.serve import serve_command
from quire.cli.serve.watcher_options import lines_of, watcher_fields
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
    config = EngineConfig(24, 24, max_num_tokens=64, max_sequences=4, max_length=200, incidents=tmp_path,
                          incidents_bytes=10**7, incidents_keep=9.0)  # fmt: skip
    with Engine(model, config) as engine:
        runs = []
        for nth in range(12):
            prompt = np.concatenate([np.full(40, 1 + nth % 3), np.arange(nth)]).astype(np.int32)
            runs.append(engine.submit(prompt, Sampling(max_tokens=6 + nth, ignore_eos=True)))
            engine.step()
        engine.cancel(runs[-1])
        while engine.runs:
            engine.step()
        assert engine.incidents is not None and engine.incidents._ring.max_bytes == 10**7 and engine.incidents.keep == 9
        incident, state = load(engine.incidents.save()), state_of(engine.cache)
        assert engine.incidents.num_waiting() == 0
        engine.submit(np.arange(9, dtype=np.int32))
        assert engine.incidents.num_waiting() == 1, "no step is a hang now, whatever the cache has"
    player = IncidentPlayer(incident)
    assert player.run() > 50 and state_of(player.cache) == state
    assert sum(one.hit_tokens for one in find_out(incident).stretches) > 0


def test_lines_on_the_command_line() -> None:
    assert lines_of("hang=5,waiting=2,hit_rate=0.25") == Lines(5.0, 0.25, 2.0)
    assert lines_of(None) == Lines()
    for wrong in ("hang", "hang=soon", "speed=3", "hit_rate=4"):
        with pytest.raises(InputError):
            lines_of(wrong)


def test_options_of_a_server() -> None:
    def parse(*words: str) -> dict[str, Any]:
        return watcher_fields(serve_command._parser().parse_args(words))

    assert parse() == {}
    words = ["--incidents", "x", "--incidents-keep", "30m", "--incidents-bytes", "2GiB", "--bills", "y"]
    found = parse(*words, "--bill-sessions")
    assert found == {
        "incidents": "x", "incident_lines": Lines(), "incidents_keep": "30m", "incidents_bytes": "2GiB", "bills": "y",
        "bill_sessions": True,
    }  # fmt: skip
    for wrong in (["--incident-at", "hang=5"], ["--incidents-keep", "1h"], ["--incidents-bytes", "1GiB"]):
        with pytest.raises(InputError, match="no incidents are kept"):
            parse(*wrong)
    with pytest.raises(InputError, match="nothing is billed"):
        parse("--bill-sessions")
