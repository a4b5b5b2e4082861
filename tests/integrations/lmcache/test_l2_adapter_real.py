"""The adapter under LMCache's own storage manager, where its package lies in .lmcache (docs/lmcache.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.shared.redis_server import BINARY

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(os.environ.get("QUIRE_LMCACHE", ROOT / ".lmcache"))


@pytest.mark.slow
@pytest.mark.skipif(not (PACKAGE / "lmcache").exists(), reason="no LMCache: make lmcache-package")
def test_lives_under_lmcaches_own_storage_manager() -> None:
    command = [sys.executable, "-m", "tests.integrations.lmcache.adapter_lives", "--package", str(PACKAGE)]
    command += ["--redis"] if BINARY else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
