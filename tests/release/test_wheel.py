"""The wheel works where nothing else is installed: no checkout, no extra, no compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import quire

from . import wheel
from .__main__ import signed

USE = """
import numpy, quire
from quire.core.store import open_store
assert open_store("auto").__name__.endswith("_compiled"), open_store("auto")
print(quire.__file__)
"""


@pytest.mark.slow
def test_the_wheel_installs_in_an_empty_environment_and_runs(tmp_path: Path) -> None:
    built, sdist = wheel.build(wheel.tracked(tmp_path / "source"), tmp_path / "dist")
    assert wheel.faults_of(built, sdist) == []
    programs = wheel.install(built, tmp_path / "env")
    assert str(tmp_path / "env") in wheel.run([str(programs / "python"), "-c", USE], tmp_path)
    printed = wheel.try_all(programs, tmp_path)
    assert printed["quire --version"].strip() == quire.__version__
    assert "The budget was 8: kept." in printed["quire demo --no-model"]


def test_the_list_to_sign_says_what_is_missing(tmp_path: Path) -> None:
    """On a checkout of its own: what is not done is not signed, and what is done is."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (unreleased)\n")
    assert list(signed("1.2.3.dev0", tmp_path).values()) == [False] * 5
    assert list(signed("1.2.3", tmp_path).values()) == [True, False, False, False, False]
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-11-18)\n")
    (tmp_path / "tests" / "golden" / "1.2.3").mkdir(parents=True)
    (tmp_path / "tests" / "golden" / "1.2.3" / "config.json").touch()
    git("add", ".")
    git("commit", "--quiet", "--message", "Release")
    assert list(signed("1.2.3", tmp_path).values()) == [True, True, True, True, False]
    git("tag", "v1.2.3")
    assert all(signed("1.2.3", tmp_path).values())
