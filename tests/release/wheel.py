"""A wheel and an sdist of what git tracks, built outside of the checkout; an environment that has the wheel alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
IN_WHEEL = ("quire/py.typed", "quire/core/store/reference/__init__.py", "quire/core/store/_compiled.pyx")
IN_SDIST = ("README.md", "docs/tutorial.md", "docs/live.png", "examples/engine.py", "tests/conftest.py", "Makefile")
TRIES = (
    ("quire", "--version"),
    ("quire", "demo", "--no-model"),
    ("quire", "replay", "--help"),
    ("python", "-m", "quire.viewer", "--port", "0", "--steps", "3", "--step", "0"),
)  # in an environment without any extra


def run(command: list[str], folder: Path, **more: str) -> str:
    """What it prints; nothing of this checkout is importable there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "QUIRE_STORE")}
    ran = subprocess.run(command, cwd=folder, env={**kept, **more}, capture_output=True, text=True, timeout=900)
    if ran.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: exit status {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        )
    return ran.stdout


def tracked(folder: Path) -> Path:
    """A copy of what git tracks: what is forgotten there is not released either."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if (ROOT / name).exists():  # or it is removed, and that is not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(source: Path, dist: Path) -> tuple[Path, Path]:
    """The wheel with its compiled module, and the sdist. With the build tools of this environment: no network."""
    dist.mkdir(parents=True, exist_ok=True)
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(dist.resolve()), "."]
    run([sys.executable, "-m", "pip", "wheel", *words], source, QUIRE_PURE="0")
    run([sys.executable, "-c", SDIST, str(dist.resolve())], source)
    newest = [max(dist.glob(pattern), key=lambda path: path.stat().st_mtime) for pattern in ("*.whl", "*.tar.gz")]
    return newest[0], newest[1]


def faults_of(wheel: Path, sdist: Path) -> list[str]:
    """What is missing in them, and what should not be there."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as packed:
        source = {name.partition("/")[2] for name in packed.getnames()}
    faults = [f"{wheel.name} lacks {name}" for name in IN_WHEEL if name not in inside]
    faults += [] if any("_compiled" in name and name.endswith(".so") for name in inside) else ["no compiled module"]
    faults += [f"{wheel.name} has {name}" for name in inside if name.split("/")[0] in ("tests", "fuzzing", "docs")]
    return faults + [f"{sdist.name} lacks {name}" for name in IN_SDIST if name not in source]


def install(wheel: Path, folder: Path) -> Path:
    """The programs of an empty environment with the wheel and what it needs, which the package index has."""
    run([sys.executable, "-m", "venv", str(folder)], folder.parent)
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)], folder.parent)
    return folder / "bin"


def try_all(programs: Path, folder: Path) -> dict[str, str]:
    """Run what a newcomer runs first; what each printed."""
    return {" ".join(words): run([str(programs / words[0]), *words[1:]], folder) for words in TRIES}
