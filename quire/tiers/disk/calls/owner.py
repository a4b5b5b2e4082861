"""Where one model's pages are, in a folder of many models."""

from __future__ import annotations

from pathlib import Path


def model_folder(folder: Path, fingerprint: bytes) -> Path:
    """Where one model's pages are."""
    return folder / fingerprint.hex()
