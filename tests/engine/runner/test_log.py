"""What an operator finds in the log `quire.engine`, and that nobody hears of it who has not asked."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import StateError
from quire.engine import Engine, EngineConfig, Loop, RunFailed, from_module, load

from ...waits import PATIENCE
from .. import families
from ..steps import SMALL, finish, open_engine, plain, words


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="quire.engine")
    return caplog


def test_a_model_that_was_loaded(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    families.build("llama").save_pretrained(tmp_path)
    load(tmp_path)
    assert log.messages == [f"loaded {tmp_path}: Model(LlamaForCausalLM, float32 on cpu, 1 layer groups)"]


def test_pages_per_layer_group(log: pytest.LogCaptureFixture) -> None:
    config = EngineConfig([1200, 40], [80, 20], block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)
    Engine(from_module(families.build("gemma3"), share_pool=False), config).close()
    (line,) = log.messages
    pages = "1,200 of 'full' and 40 of 'window' in device memory, 80 of 'full' and 20 of 'window' in host memory"
    assert line.startswith("an engine for Model(Gemma3") and line.endswith(f"pages: {pages}; 8 tokens each")


def test_pages_per_pool(log: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(1200, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)
    Engine(from_module(families.build("gemma3")), config).close()
    assert log.messages[0].endswith("pages: 1,200 of 'full', 'window 1' or 'window 2' in device memory; 8 tokens each")


def test_a_preemption(log: pytest.LogCaptureFixture) -> None:
    with open_engine("llama", 12) as engine:
        runs = [engine.submit(words(60 * nth, 30), plain(40)) for nth in range(2)]
        finish(engine)
    told = [message for message in log.messages if message.startswith("preempted")]
    assert len(told) == sum(run.num_preemptions for run in runs) > 0


def test_a_step_that_fails(log: pytest.LogCaptureFixture) -> None:
    def fall_over(*_: Any) -> None:
        raise ArithmeticError("it fell over")

    model = from_module(families.build("llama"))
    model.module.register_forward_pre_hook(fall_over)
    loop = Loop(Engine(model, EngineConfig(24, **SMALL)))
    with pytest.raises(RunFailed, match="it fell over"):
        list(loop.submit(words(0, 9), plain(4)))
    with pytest.raises(StateError, match="it fell over"):
        loop.submit(words(0, 9), plain(4), timeout=PATIENCE)
    loop.close()
    (record,) = [one for one in log.records if one.levelno == logging.ERROR]
    assert record.name == "quire.engine" and "a step failed" in record.message
    assert record.exc_info is not None and isinstance(record.exc_info[1], ArithmeticError)


def test_a_lost_peer(log: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("msgspec")
    from quire.transfer import Key

    from ..disagg.test_peer import drive, open_peer

    here = open_peer("llama")
    here.decode(Key("r"), words(0, 9), plain(2), source="127.0.0.1:9", order=True)
    drive(here)
    here.engine.close()
    (record,) = [one for one in log.records if (one.name, one.levelno) == ("quire.engine", logging.WARNING)]
    assert record.message.startswith("a prompt did not come from its peer and is computed here: 127.0.0.1:9")


def test_quiet_by_default() -> None:
    """Without a handler of its own Python prints warnings and errors; a library leaves that to the program."""
    says = "import logging, quire; logging.getLogger('quire.engine').error('told to nobody')"
    ran = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, timeout=240, check=True)
    assert ran.stdout == ran.stderr == ""
    loud = f"import logging; logging.basicConfig(format='%(name)s %(message)s'); {says}"
    ran = subprocess.run([sys.executable, "-c", loud], capture_output=True, text=True, timeout=240, check=True)
    assert ran.stderr == "quire.engine told to nobody\n"
