"""An engine on a processor runs no code that is for GPUs, and asks for no Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

SERVE = """
import sys
from importlib.abc import MetaPathFinder

class NoTriton(MetaPathFinder):
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            self.asked.append(frame.f_globals.get("__name__", ""))
            raise ModuleNotFoundError("No module named 'triton'", name=name)
        return None

sys.meta_path.insert(0, NoTriton())
from quire.engine import Engine, EngineConfig, Sampling, from_module
from tests.engine import families

config = EngineConfig(12, 40, block_size=8, max_length=96, max_num_tokens=32, max_sequences=4, graphs="auto")
with Engine(from_module(families.build("llama")), config) as engine:
    engine.warm_up()
    for start in (20, 90, 20):
        run = engine.submit(range(start, start + 60), Sampling(max_tokens=4, temperature=0.7, top_p=0.9, seed=1))
        engine.drain()
    assert engine.cache.stats().onboarded and len(run.answers[0].tokens) == 4
print(*sorted({name for name in NoTriton.asked if name.startswith("quire")}))
print(*sorted(name for name in sys.modules if name.startswith(("quire.tiers.torch_tier", "quire.tiers.gpu"))))
"""


@pytest.mark.slow
def test_a_processor_imports_no_gpu_code() -> None:
    done = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], "who asked for Triton, and what was imported"
