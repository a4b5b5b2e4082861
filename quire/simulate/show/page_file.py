"""The file of a page: whether it can be written, told before minutes of work, and writing it. Knows no markup."""

from __future__ import annotations

import sys
from pathlib import Path

from quire import InputError
from quire.core.records.errors import say


def check_page(path: str | None) -> None:
    """Before minutes of work: can the page be written?"""
    if path is None:
        return
    if not path or Path(path).is_dir():
        raise InputError(say(f"--html {path!r}", "it is a folder", "name a file in it"))
    if not Path(path).absolute().parent.is_dir():
        raise InputError(say(f"--html {path}", "there is no such folder", "name a file in one that exists"))


def write_page(path: str, text: str, tool: str) -> bool:
    """Write it, or say why not; what was counted is shown all the same."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = say(f"--html {path}", f"{error.strerror or error}", "name a file that can be written")
        print(f"{tool}: {reason}", file=sys.stderr)
        return False
    return True
