"""Versions of vLLM that the plugs were run with; any other is refused, unless its user says otherwise."""

from __future__ import annotations

import os

from quire.core.records.errors import StateError, say, shown

TESTED = ("0.32", "0.33")
ANY = "QUIRE_ANY_VLLM"  # an environment variable: vLLM gives a policy nothing but its size


def check_plug_version(what: str, found: str) -> None:
    """Refuse a vLLM with whose offloading a plug was never tried."""
    if os.environ.get(ANY, "") != "1" and ".".join(found.split(".")[:2]) not in TESTED:
        fact = f"it was run with {' and '.join(TESTED)} only, and vLLM calls this interface experimental"
        raise StateError(say(f"{what} under vLLM {shown(found)}", fact, f"use those, or set {ANY}=1"))
