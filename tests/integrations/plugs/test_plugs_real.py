"""The plugs under a real vLLM's managers, in `make vllm-env`'s environment; a minute each, so not in `make test`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.tiers.shared.conftest import needs_redis

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".vllm-env" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: make vllm-env")
@pytest.mark.parametrize(
    "words",
    [
        "policy_lives --operations 100000", "tier_lives --lives 6 --kills 20", "tier_contract",
        pytest.param("tier_lives --lives 6 --kills 20 --redis", marks=needs_redis),
    ],
)  # fmt: skip
def test_random_lives_under_vllms_own_managers(words: str) -> None:
    name, *more = words.split()
    command = [str(PYTHON), "-m", f"tests.integrations.plugs.{name}", *more]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
