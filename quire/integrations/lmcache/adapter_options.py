"""Options of QuireL2Adapter: "adapter_params" of LMCache's plugin, checked by name; and whose pages they are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.memory import parse_bytes
from quire.integrations.places.place_options import PlaceOptions
from quire.integrations.vllm.common.memory_sizes import disk_bytes

TESTED = "0.5.6"
ANY = "QUIRE_ANY_LMCACHE"
LEAST_PIECE, MOST_PIECE = 4 << 10, 64 << 20


@dataclass(frozen=True, slots=True)
class AdapterOptions(PlaceOptions):
    """Where the objects lie, in what pieces, and how much of them may wait."""

    plug: ClassVar[str] = "QuireL2Adapter"
    up_to: ClassVar[tuple[tuple[str, float], ...]] = (*PlaceOptions.up_to, ("waiting", 1.0))

    piece: int | str = 1 << 20  # bytes of a page; an object is cut into those, and its last one is filled up
    waiting: float = 0.25  # share of LMCache's L1 memory that stores under way may pin

    @property
    def piece_bytes(self) -> int:
        """`piece` as a number."""
        return parse_bytes(self.piece, "a piece")


def read_adapter_options(given: Mapping[str, Any]) -> AdapterOptions:
    """The options of a plugin's config; its disk may be a percentage of a file system."""
    options = AdapterOptions.read(given)
    if not options.namespace:
        fact = "LMCache's keys say a model's name, not which weights it has, nor how they are used"
        cure = 'write "namespace": "...", and another one whenever either changes'
        raise InputError(say("QuireL2Adapter without 'namespace'", fact, cure))
    if not LEAST_PIECE <= options.piece_bytes <= MOST_PIECE:
        fact = f"pieces have {LEAST_PIECE} to {MOST_PIECE} bytes"
        raise InputError(say(f"piece {shown(options.piece)}", fact, "leave it out: it is 1 MiB then"))
    return replace(options, bytes=disk_bytes(options.bytes, options.folder)) if options.folder else options


def check_lmcache_version(found: str) -> None:
    """Refuse an LMCache with which this was never tried."""
    if os.environ.get(ANY, "") != "1" and ".".join(found.split(".")[:3]) != TESTED:
        fact = f"it was run with {TESTED} only"
        raise StateError(say(f"QuireL2Adapter under LMCache {shown(found)}", fact, f"use that, or set {ANY}=1"))


def objects_print(options: AdapterOptions, version: str) -> bytes:
    """32 bytes for the weights, as their user names them, LMCache's version and the size of a piece: pages of another
    print are never found. Tokens, salt, model and rank are in LMCache's keys, the form of an object in ours."""
    facts = {
        "lmcache": ".".join(version.split(".")[:2]),
        "namespace": options.namespace,
        "piece": options.piece_bytes,
    }
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32, person=b"quire-lmcache").digest()
