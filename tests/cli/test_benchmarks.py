"""The benchmarks run, and say what they are read for. Each runs as a user would run it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("quire.core.store._compiled") is None, reason="the workload is too large for the twin"
)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / words[0]), *words[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def numbers(*words: str) -> dict[str, Any]:
    ran = run(*words)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def test_the_benchmark_prints_every_number() -> None:
    told = numbers("bench.py", "--json", "--rounds", "1", "--quick")
    names = "cold_8k_us hit90_8k_us full_8k_us admit_64x8k_us decode_1024_us release_8k_us event_ns_per_block"
    more = "bytes_per_block tiers_events_factor gc_ms groups_cold_factor groups_hit_factor groups_decode_factor"
    assert {*names.split(), *more.split()} <= set(told)
    assert told["bytes_per_block"] <= 120 and told["ghost_bytes_per_slot"] == 256


def test_two_trees_are_compared_row_by_row() -> None:
    told = numbers("ab.py", ".", ".", "--rounds", "2", "--rows", "decode_1024_us", "--json")
    at = told["decode_1024_us"]
    assert at["ratio"] == pytest.approx(at["new_us"] / at["old_us"]) and at["low"] <= at["median"] <= at["high"]


def test_a_row_that_is_not_there_is_refused() -> None:
    ran = run("ab.py", ".", ".", "--rows", "warm")
    assert ran.returncode == 2 and "rows that exist" in ran.stderr


def test_the_disk_is_measured_beside_plain_calls(tmp_path: Path) -> None:
    words = ("--pages", "4", "--rounds", "1", "--threads", "2", "--manifest-pages", "3000", "--folder", str(tmp_path))
    told = numbers("disk.py", "--json", *words)
    assert set(told) == {"read, warm", "warm, per core", "read, cold", "write", "manifest"}
    assert not list(tmp_path.iterdir())
    assert told["read, warm"]["tier"] > 0 and 50 < told["manifest"]["bytes per page"] < 256
