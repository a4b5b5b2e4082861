"""Write: packs made into a file, in a process of its own, so that the serving one goes on.

python -m quire.incidents.files.write    reads what `write_apart` sends, and nothing else
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from quire.core.records.config import CacheConfig
from quire.core.records.errors import StateError, say
from quire.incidents.files.incident_file import Incident, config_data, config_of
from quire.incidents.files.name_lines import NameLines
from quire.incidents.record.encode import unpack

PATIENCE = 600.0  # seconds


def write(path: Path, reason: str, made: str, config: CacheConfig, packs: list[bytes], is_whole: bool) -> None:
    """Name everything, and write it."""
    lines = [line for pack in packs for line in unpack(pack)]
    calls = list(NameLines(config).lines(lines))
    Incident(reason, made, config, calls, None if is_whole else "cut").save(path)


def write_apart(path: Path, reason: str, made: str, config: CacheConfig, packs: list[bytes], is_whole: bool) -> None:
    """The same in another process."""
    sent = marshal.dumps((str(path), reason, made, marshal.dumps(config_data(config)), packs, is_whole))
    path_there = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    command, env = [sys.executable, "-m", "quire.incidents.files.write"], os.environ | {"PYTHONPATH": path_there}
    done = subprocess.run(command, input=sent, env=env, capture_output=True, timeout=PATIENCE, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        fact = lines[-1] if lines else f"it ended with {done.returncode}"
        raise StateError(say(f"writing incident {str(path)!r}", fact, "look at the folder and its room"))


def main() -> int:
    """Write what is sent."""
    parts: tuple[Any, ...] = marshal.loads(sys.stdin.buffer.read())
    path, reason, made, config, packs, is_whole = parts
    write(Path(path), reason, made, config_of(marshal.loads(config), path), packs, is_whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
