"""A worker in a process of its own, that is asked and killed: `disk_worker` or `shared_worker`. Knows no answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class WorkerProcess:
    """`python -m tests.engine.MODULE MODEL PLACE`; it has opened its place when this returns."""

    def __init__(self, module: str, model: str, place: str | Path) -> None:
        command = [sys.executable, "-m", f"tests.engine.{module}", model, str(place)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def ask(self, prompt: object, count: int) -> dict[str, Any]:
        """What it answered to a prompt (text or token ids) with so many tokens, and what it told about it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([prompt, count]) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def kill(self) -> None:
        """As the kernel would."""
        self.process.kill()
        self.process.communicate()
        assert self.process.returncode == -signal.SIGKILL
