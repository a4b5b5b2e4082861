"""Contestants in processes of their own: they answer one line per round. Knows their protocol, not their insides."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]


class Peer:
    """A process that measures one round, or one row, for each line it reads and prints the result as JSON."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._into, self._from = self._process.stdin, self._process.stdout

    def round(self, row: str = "round") -> dict[str, float]:
        """The next round's numbers, or those of a row; empty when the process has died."""
        if self._process.poll() is not None:
            return {}
        with contextlib.suppress(BrokenPipeError):
            self._into.write(row + "\n")
            self._into.flush()
        for line in self._from:
            if line.startswith("{"):
                numbers: dict[str, float] = json.loads(line)
                return numbers
        return {}

    def close(self) -> None:
        """No more rounds."""
        self._into.close()
        self._process.wait(timeout=60)
        self._from.close()


def open_floor(rounds: int) -> Peer | None:
    """The flat-C floor, compiled now; None without its source or a compiler."""
    source, compiler = FOLDER / "floor.c", shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not source.exists():
        print("no floor: it needs a C compiler and a checkout of the project", file=sys.stderr)
        return None
    program = str(Path(tempfile.mkdtemp(prefix="quire-floor-")) / "floor")
    subprocess.run([compiler, "-O3", "-march=native", "-o", program, str(source)], check=True)
    return Peer([program, "--rounds", str(rounds)])


def open_vllm(python: str | None, rounds: int) -> Peer | None:
    """vLLM's own block manager, in the environment the caller names."""
    if python is None:
        return None
    environment = os.environ | {"VLLM_TARGET_DEVICE": "cpu"}
    return Peer([python, str(FOLDER / "vllm_rows.py"), "--rounds", str(rounds)], environment)
