"""A real vLLM with and without the connector, in the environment of `make vllm-env`; minutes, so not in `make test`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".vllm-env" / "bin" / "python"
SHARED = Path("/dev/shm")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: make vllm-env")
@pytest.mark.parametrize(
    "words",
    [
        "--model llama --requests 30 --abort",
        "--model gemma3 --requests 30 --device-blocks 64 --async-scheduling --events",
        "--model llama --requests 30 --fault fail_load",
        "--model llama --requests 30 --fault corrupt",
        "--model gemma3 --requests 30 --device-blocks 64 --host-blocks 60 --below both --events",
        "--model nemotron --requests 30 --device-blocks 64 --host-blocks 60 --below both --events",
    ],
)
def test_the_same_tokens_with_and_without_the_connector(words: str) -> None:
    run("integrations.vllm_exact", words)


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: make vllm-env")
def test_a_worker_that_dies_ends_the_engine_and_leaves_good_pages(tmp_path: Path) -> None:
    """As it does without the connector; nobody waits for ever, and what was on disk is as it was written."""
    before = set(SHARED.iterdir())
    words = f"--model llama --requests 40 --tp 2 --seed 10 --host-blocks 40 --below disk --fault die --out {tmp_path}/o"
    command = [str(PYTHON), "-m", "tests.integrations.vllm_engine", "--connector", *words.split()]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert died.returncode == 1 and "RuntimeError: cancelled" in died.stderr, died.stderr[-2000:]  # vLLM's words for it
    assert not [path for path in set(SHARED.iterdir()) - before if path.name.startswith("quire-pages")]
    fsck = [str(PYTHON), "-m", "quire.cli.main", "fsck", str(tmp_path / "below" / "disk")]
    looked = subprocess.run(fsck, cwd=ROOT, capture_output=True, text=True, check=False)
    assert looked.returncode == 0 and "every page is as it was written" in looked.stdout, looked.stdout + looked.stderr


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: make vllm-env")
def test_a_killed_vllm_serves_its_first_long_prompt_from_disk() -> None:
    run("integrations.vllm_restart", "--model llama --prompt 600")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: make vllm-env")
@pytest.mark.parametrize("engine", ["host", "disk", "redis", "states", "host --only 49250 --v2"])
def test_faults_of_others_under_vllms_own_scheduler(engine: str) -> None:
    """tests/museum has them with a toy scheduler."""
    run("museum.under_vllm", f"--engine {engine}")


def run(name: str, words: str) -> None:
    command = [str(PYTHON), "-m", f"tests.{name}", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
