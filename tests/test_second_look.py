"""Which failures get a second look, and that one which fails alone stays a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_look import KEPT, MOST, refusal

PAGE = "tests/viewer/test_page.py::test_it"


def test_few_that_wait_for_others_do() -> None:
    assert refusal([PAGE] * MOST) is None
    assert "at most 3" in str(refusal([PAGE] * (MOST + 1)))
    assert "nothing to look at" in str(refusal([]))


@pytest.mark.parametrize("folder", ["core", "engine", "tiers", "transfer", "scenarios", "museum"])
def test_what_compares_bytes_never_does(folder: str) -> None:
    name = f"tests/{folder}/test_a.py::test_b"
    assert name in str(refusal([PAGE, name]))


def test_a_file_that_does_not_load_stays_a_failure() -> None:
    assert refusal(["tests/viewer/test_page.py"])


@pytest.mark.parametrize(("body", "status"), [("pass", 0), ("assert 0", 1)])
def test_only_what_passes_alone_passes(tmp_path: Path, body: str, status: int) -> None:
    test = tmp_path / "tests" / "viewer" / "test_page.py"
    test.parent.mkdir(parents=True)
    test.write_text(f"def test_it() -> None:\n    {body}\n")
    kept = tmp_path / ".pytest_cache" / "v" / KEPT
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps([PAGE]))
    code = f"import sys; sys.path.insert(0, {str(Path.cwd())!r}); from tests.second_look import main; sys.exit(main())"
    bare = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # some take seconds to import
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert PAGE in ended.stdout.splitlines()[-1] and ("passed alone" in ended.stdout) is (status == 0)
