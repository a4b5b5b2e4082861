"""The end of a run: what was left out, by cause, in one process and in several; CI wants Redis and a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOME = """
import pytest
def test_runs(): pass
@pytest.mark.parametrize("nth", range(3))
def test_waits(nth): pytest.skip("redis-server is not installed")
@pytest.mark.skipif(True, reason="needs CUDA")
def test_gpu(): pass
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
WHOLE = "import pytest; pytest.skip('needs CUDA', allow_module_level=True)"


def ran(folder: Path, *words: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """pytest over a folder, with the hooks of this one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "tests.skips", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(folder), *words, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_some.py").write_text(SOME, encoding="utf-8")
    (tmp_path / "test_whole.py").write_text(WHOLE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("workers", "ci"), [("0", "false"), ("2", "true")])
def test_causes_are_counted_and_a_missing_redis_fails_in_ci(folder: Path, workers: str, ci: str) -> None:
    done = ran(folder, "-n", workers, ci=ci)
    assert done.returncode == (ci == "true"), done.stdout
    told = done.stdout.splitlines()
    at = next(nth for nth, line in enumerate(told) if "5 left out, by cause" in line)
    assert told[at + 1 : at + 3] == ["    3  redis-server is not installed", "    2  needs CUDA"]
    assert ("3 tests found no Redis or no browser" in done.stdout) == (ci == "true")


def test_what_else_is_missing_is_no_failure_in_ci(folder: Path) -> None:
    done = ran(folder, "-k", "not waits", ci="true")
    assert done.returncode == 0 and "2 left out, by cause" in done.stdout
