"""Builds the three pieces that bring vLLM's CUDA build and Quire to a GPU machine without a network (README.md).

    python -m benchmarks.vllm_gpu.make_kit [--quire CHECKOUT] [--out build/vllm_gpu] [--dry-run]

Downloads what requirements.txt names (x86_64 wheels, whatever this machine is), takes vLLM's wheel apart and writes
OUT/piece1, OUT/piece2 and OUT/piece3, each with a tar file and unpack.sh. What OUT/work has already is not made again,
except Quire, of which HEAD is packed each time.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

from benchmarks.vllm_gpu.trim_fatbin import trim

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 45 << 20  # bytes of one piece
GPU = 90  # sm_90: H100, H200
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (31, 28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
SECOND = ("apache-tvm-ffi", "llguidance", "pillow", "xgrammar")  # packages that piece 1 has no room for

KERNELS = "vllm/_C_stable_libtorch.abi3.so"
FLASH = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
FILES = "vllm/fs_io_C.abi3.so"  # small: how vLLM's file tier reads and writes
LEFT_OUT = (  # beside all libraries: kernels for other GPUs, tuning tables of MoE layers, a server's pages
    "vllm/third_party/deep_gemm/",
    "vllm/third_party/fmha_sm100/",
    "vllm/third_party/tml_fa4/",
    "vllm/kernels/helion/configs/",
    "vllm/model_executor/layers/fused_moe/configs/",
    "vllm/entrypoints/serve/instrumentator/static/swagger-ui",
    "vllm/vllm-rs",
)


def packages(text: str) -> list[str]:
    """The names that a requirements file has, without their versions."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [line.split("==")[0] for line in lines if line]


def piece_of(wheel: str) -> int:
    """The piece that a package, or its wheel, is carried in; vLLM itself is in all of them."""
    name = wheel.split("-")[0] if wheel.endswith(".whl") else wheel
    return 2 if name.replace("_", "-").lower() in SECOND else 1


def plan(text: str, commit: str) -> list[str]:
    """What would be carried, a line for each piece."""
    names = [name for name in packages(text) if name != "vllm"]
    rest = {number: " ".join(name for name in names if piece_of(name) == number) for number in (1, 2)}
    return [
        f"piece1: Quire {commit}, vLLM's Python files, {rest[1]}",
        f"piece2: vLLM's kernels for sm_{GPU}, {rest[2]}",
        "piece3: FlashAttention 3",
    ]


def download(at: Path) -> None:
    """Wheels for the GPU machine, by name from the package index that pip is set up for."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(at)]
    words += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"]
    for platform in PLATFORMS:
        words += ["--platform", platform]
    subprocess.run([*words, "--requirement", str(HERE / "requirements.txt")], check=True)


def pack_python(wheel: zipfile.ZipFile, to: Path) -> None:
    """vLLM without libraries (but FILES) and what LEFT_OUT names; the same bytes whoever packs it, and when."""
    with lzma.open(to, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in sorted(wheel.namelist()):
            if (not name.endswith((".so", "/")) and not name.startswith(LEFT_OUT)) or name == FILES:
                body, entry = wheel.read(name), tarfile.TarInfo(name)
                entry.size = len(body)
                tar.addfile(entry, BytesIO(body))


def pack_kernels(wheel: zipfile.ZipFile, to: Path) -> None:
    """vLLM's own kernels, for one GPU only."""
    data = bytearray(wheel.read(KERNELS))
    kept, zeroed = trim(data, GPU)
    print(f"{KERNELS}: device code {kept / 1e6:.1f} MB kept, {zeroed / 1e6:.1f} MB for other GPUs zeroed")
    if not zeroed:
        raise SystemExit(f"nothing to trim in {KERNELS}: has the layout of fatbins changed?")
    with lzma.open(to, "wb", preset=6) as packed:
        packed.write(data)


def pack_flash(wheel: zipfile.ZipFile, to: Path) -> None:
    """FlashAttention 3 as the wheel has it: the deflated bytes, not packed again."""
    entry = wheel.getinfo(FLASH)
    if entry.compress_type != zipfile.ZIP_DEFLATED or wheel.filename is None:
        raise SystemExit(f"{FLASH} is not deflated in this wheel")
    with open(wheel.filename, "rb") as file:
        file.seek(entry.header_offset + 26)  # where a local header has the lengths of its name and extra field
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        to.write_bytes(file.read(entry.compress_size))


def git(at: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(at), *words], stdout=subprocess.PIPE, check=True).stdout


def pack_quire(checkout: Path, to: Path) -> None:
    """What is committed there, and nothing else."""
    top = Path(git(checkout, "rev-parse", "--show-toplevel").decode().strip())
    to.write_bytes(lzma.compress(git(top, "archive", "--format=tar", "HEAD"), preset=6))


def once(make: Callable[[zipfile.ZipFile, Path], None], wheel: zipfile.ZipFile, to: Path) -> Path:
    """Makes a file unless it is there; half a file never is."""
    if not to.exists():
        part = to.with_suffix(".part")
        make(wheel, part)
        part.rename(to)
    return to


def write_piece(out: Path, number: int, parts: Iterable[Path]) -> int:
    """OUT/pieceN, with the parts in a tar file, and unpack.sh. Returns its size."""
    at = out / f"piece{number}"
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    with tarfile.open(at / f"piece{number}.tar", "w") as tar:
        for part in parts:
            tar.add(part, part.name)
    shutil.copy(HERE / "unpack.sh", at)
    size = sum(file.stat().st_size for file in at.iterdir())
    print(f"{at}: {size / (1 << 20):.1f} MiB")
    return size


def build(checkout: Path, out: Path) -> None:
    work, wheels = out / "work", out / "work" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    download(wheels)
    (vllm,) = wheels.glob("vllm-*.whl")
    with zipfile.ZipFile(vllm) as wheel:
        python = once(pack_python, wheel, work / "vllm-py.tar.xz")
        kernels = once(pack_kernels, wheel, work / f"{Path(KERNELS).name}.xz")
        flash = once(pack_flash, wheel, work / f"{Path(FLASH).name}.deflate")
    pack_quire(checkout, work / "quire.tar.xz")
    carried = sorted(one for one in wheels.glob("*.whl") if one != vllm)
    sizes = [
        write_piece(out, 1, [work / "quire.tar.xz", python, *(one for one in carried if piece_of(one.name) == 1)]),
        write_piece(out, 2, [kernels, *(one for one in carried if piece_of(one.name) == 2)]),
        write_piece(out, 3, [flash]),
    ]
    if max(sizes) > LIMIT:
        raise SystemExit(f"a piece is larger than {LIMIT >> 20} MiB: move a package to another piece (SECOND)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", type=Path, default=ROOT, help="a git checkout of Quire (default: this one)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "vllm_gpu")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be carried")
    args = parser.parse_args()
    commit = git(args.quire, "log", "-1", "--format=%h").decode().strip()
    print(*plan((HERE / "requirements.txt").read_text(), commit), sep="\n")
    if not args.dry_run:
        build(args.quire, args.out)


if __name__ == "__main__":
    main()
