"""A process that is killed, power that fails, files that are damaged: some of each. By hand there are more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ...effort import cases
from .power import case
from .world import APART, POOLED, Shape

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_killed_writers_leave_what_was_durable() -> None:
    """In a process of its own, which forks: here there may be threads."""
    rounds = cases(20, 50)
    command = [sys.executable, "-m", "tests.tiers.disk.crash", "--rounds", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{rounds} crashes: nothing durable lost" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("shape", [APART, POOLED])
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_a_power_cut_leaves_what_was_durable(first: int, shape: Shape) -> None:
    for seed in range(first, first + cases(5, 25)):
        case(seed, shape)
