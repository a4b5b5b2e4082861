"""The storage under SGLang's real factory and host pools, where its package lies in .sglang (docs/sglang.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.shared.redis_server import BINARY

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(os.environ.get("QUIRE_SGLANG", ROOT / ".sglang"))


@pytest.mark.slow
@pytest.mark.skipif(not (PACKAGE / "sglang").exists(), reason="no SGLang: make sglang-package")
def test_lives_under_sglangs_own_classes() -> None:
    command = [sys.executable, "-m", "tests.integrations.sglang.hicache_lives", "--package", str(PACKAGE)]
    command += ["--redis"] if BINARY else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
