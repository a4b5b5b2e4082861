"""The storage under SGLang's real factory and host pools, where its package lies in .sglang (docs/sglang.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.integrations.sglang.hicache_options import DRAFT, FILES, SAID
from tests.tiers.shared.redis_server import BINARY

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(os.environ.get("QUIRE_SGLANG", ROOT / ".sglang"))


@pytest.mark.skipif(not (PACKAGE / "sglang").exists(), reason="no SGLang: make sglang-package")
def test_the_arguments_that_say_whose_pages_they_are_are_sglangs() -> None:
    srt = PACKAGE / "sglang" / "srt"
    text = "".join(path.read_text() for path in (srt / "arg_groups" / "fields").glob("*.py"))
    known = set(re.findall(r"^    (\w+): A\[", text, flags=re.MULTILINE))
    assert {"model_path", "revision", *SAID, *FILES, *DRAFT} <= known
    assert re.search(r"^def get_server_args\(\)", (srt / "runtime_context.py").read_text(), flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(not (PACKAGE / "sglang").exists(), reason="no SGLang: make sglang-package")
def test_lives_under_sglangs_own_classes() -> None:
    command = [sys.executable, "-m", "tests.integrations.sglang.hicache_lives", "--package", str(PACKAGE)]
    command += ["--redis"] if BINARY else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
