"""Real processes over real links, one of them killed in the middle: the other recovers in time, no page is lost."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from .survivor import KILLED, ROOT

MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 20)]
needs_nixl = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="nixl is not installed")
# Over TCP, or a READ is over before anybody is killed. Without InfiniBand: the libnl of NIXL's wheel may crash at exit.
PAGE_BY_PAGE = os.environ | {"UCX_TLS": "tcp,self", "UCX_MODULES": "^ib"}


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), *MORE])
def test_the_other_is_killed_over_tcp(killed: str, seed: int) -> None:
    KILLED[killed]("tcp", seed)


@needs_nixl
@pytest.mark.parametrize("killed", ["sender", pytest.param("receiver", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), *MORE])  # each starts torch three times
def test_the_other_is_killed_over_nixl(killed: str, seed: int) -> None:
    """In a process of its own: UCX over plain TCP may crash when its peer dies, which is not ours to mend."""
    command = [sys.executable, "-m", "tests.transfer.survivor", killed, "nixl", str(seed)]
    ran = subprocess.run(command, cwd=ROOT, env=PAGE_BY_PAGE, capture_output=True, text=True, timeout=300)
    if ran.returncode == -signal.SIGSEGV and "quire/transfer/links/nixl.py" in ran.stderr:
        pytest.xfail(f"UCX has crashed:\n{ran.stderr[-2000:]}")
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.parametrize("link", ["tcp", pytest.param("nixl", marks=[needs_nixl, pytest.mark.slow])])
def test_a_sender_that_freezes_and_goes_on_leaves_nothing_stuck(link: str) -> None:
    command = [sys.executable, "-m", "tests.transfer.frozen", link]
    ran = subprocess.run(command, cwd=ROOT, env=PAGE_BY_PAGE, capture_output=True, text=True, timeout=240)
    if ran.returncode == -signal.SIGSEGV and "quire/transfer/links/nixl.py" in ran.stderr:
        pytest.xfail(f"UCX has crashed:\n{ran.stderr[-2000:]}")
    assert ran.returncode == 0, ran.stderr[-4000:]
