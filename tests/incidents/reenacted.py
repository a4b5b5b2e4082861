"""What examples/incidents.py makes, for tests: three reports of other engines as files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "incidents.py"


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("example_incidents", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_made = _example()


def leaked_holds(folder: Path) -> Path:
    """Holds that nobody gives up."""
    return Path(_made.leaked_holds(folder))


def starved(folder: Path) -> Path:
    """Small requests behind a large one."""
    return Path(_made.starved(folder))


def lost_hits(folder: Path, host: int = 0) -> Path:
    """Conversations, with so much host memory."""
    return Path(_made.lost_hits(folder, host))
