"""On the GPU machine: $KIT/raw becomes $KIT/site (vLLM and wheels), and Quire is built. Can be repeated."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path

KERNELS, FLASH = "_C_stable_libtorch.abi3.so", "_vllm_fa3_C.abi3.so"


def unpack_vllm(raw: Path, site: Path) -> None:
    if not (site / "vllm" / "version.py").exists():
        with tarfile.open(raw / "vllm-py.tar.xz") as tar:
            tar.extractall(site, filter="tar")


def unpack_wheels(raw: Path, site: Path) -> None:
    for wheel in sorted(raw.glob("*.whl")):
        mark = raw / f"{wheel.name}.done"
        if not mark.exists():
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
            mark.touch()


def inflated(packed: Path) -> Iterator[bytes]:
    """The content of a file that has deflated bytes without a header, as a zip file has them."""
    body = zlib.decompressobj(-15)
    with open(packed, "rb") as source:
        while piece := source.read(1 << 22):
            yield body.decompress(piece)
    yield body.flush()


def unpack_library(packed: Path, target: Path) -> None:
    if target.exists() or not packed.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with open(part, "wb") as out:
        if packed.suffix == ".deflate":
            out.writelines(inflated(packed))
        else:
            with lzma.open(packed) as source:
                shutil.copyfileobj(source, out, 1 << 22)
    part.rename(target)


def build_quire(kit: Path) -> None:
    """The compiled store; without it answers are the same, and times are not."""
    words = [sys.executable, "setup.py", "build_ext", "--inplace"]
    env = os.environ | {"QUIRE_PURE": "0", "PYTHONPATH": str(kit / "quire/benchmarks/vllm_gpu/boot")}
    done = subprocess.run(words, cwd=kit / "quire", env=env, capture_output=True, text=True, check=False)
    (kit / "logs" / "build.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        print("QUIRE'S EXTENSION WAS NOT BUILT (it runs in plain Python, slower):", done.stderr[-1500:], sep="\n")


def versions(paths: list[str]) -> dict[str, str]:
    """Installed packages; the first on the path counts."""
    found: dict[str, str] = {}
    for one in distributions(path=paths):
        found.setdefault(one.metadata["Name"].lower().replace("_", "-"), one.version)
    return found


def tell_packages(site: Path) -> None:
    """Which are the machine's own, and which are used because it has none."""
    own = versions([path for path in sys.path if path.endswith(("site-packages", "dist-packages"))])
    carried = versions([str(site)])
    other = [name for name in sorted(carried) if own.get(name, carried[name]) != carried[name]]
    print("carried, because it is not here:", " ".join(sorted(carried.keys() - own.keys())))
    print("the machine's own wins:", "; ".join(f"{name} {own[name]} ({carried[name]})" for name in other))
    print("here:", ", ".join(f"{name} {own.get(name)}" for name in ("torch", "triton", "transformers", "numpy")))


def main() -> None:
    begin, kit = time.time(), Path(os.environ["KIT"])
    raw, site = kit / "raw", kit / "site"
    for name in ("site", "front", "logs", "models"):
        (kit / name).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(one, raw, site) for one in (unpack_vllm, unpack_wheels)]
        jobs.append(pool.submit(unpack_library, raw / f"{KERNELS}.xz", site / "vllm" / KERNELS))
        jobs.append(pool.submit(unpack_library, raw / f"{FLASH}.deflate", site / "vllm" / "vllm_flash_attn" / FLASH))
    for job in jobs:
        job.result()
    if not list((kit / "quire" / "quire" / "core" / "store").glob("_compiled*.so")):
        build_quire(kit)
    tell_packages(site)
    print(f"set up in {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
