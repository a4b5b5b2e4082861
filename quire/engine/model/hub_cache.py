"""The hub cache: where models lie that were downloaded from the Hugging Face hub. Nothing is fetched.

Qwen/Qwen3-0.6B  ->  <cache>/models--Qwen--Qwen3-0.6B/refs/main       the commit that `main` was at that time
                     <cache>/models--Qwen--Qwen3-0.6B/snapshots/<commit>/config.json ...
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from quire.core.records.errors import InputError, say

_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_COMMIT = re.compile(r"\w{1,64}", re.ASCII)


def is_hub_id(name: object) -> bool:
    """Whether it has the form of a hub's model: owner/name."""
    return isinstance(name, str) and _ID.fullmatch(name) is not None and not name.startswith(".")


def cache_folder() -> Path:
    """$HF_HUB_CACHE, or hub in $HF_HOME, or huggingface/hub in the user's cache folder, as the hub's library says."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return _expanded("HF_HUB_CACHE", own)
    if home := os.environ.get("HF_HOME"):
        return _expanded("HF_HOME", home) / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or _expanded("HOME", "~") / ".cache") / "huggingface" / "hub"


def _expanded(variable: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        fact = "it begins in a home folder that does not exist"
        raise InputError(say(f"{variable} {value!r}", fact, f"set {variable} to a whole path")) from None


def snapshot_of(name: str) -> Path | None:
    """The folder of a downloaded model, at the commit that was its main branch; None: it was not downloaded."""
    repository = cache_folder() / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None
