"""A fleet on a real Ray of this machine, in a process of its own: `tests/fleet/on_ray.py` has more checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_replicas_are_asked_at_once_and_nobody_waits_for_one_that_hangs_or_dies() -> None:
    """One of three is stopped, goes on, and is killed; the others answer, and nothing is left behind."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.fleet.on_ray", "quotes"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0 and "all is as it must be" in ran.stdout, ran.stdout + ran.stderr[-3000:]
    assert "quotes of 3" in ran.stdout and "the killed one: it is gone" in ran.stdout
