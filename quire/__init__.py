"""Quire: the KV cache of an LLM engine, as a library."""

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from quire.core.admission.batch import Batch, Snapshot
from quire.core.admission.probe import Probe
from quire.core.cache import Cache
from quire.core.check import check
from quire.core.outside.find import Found
from quire.core.outside.prefetch import Prefetch
from quire.core.outside.writer import Writer
from quire.core.records.config import CacheConfig, TierConfig
from quire.core.records.encoder import Encoder
from quire.core.records.errors import (
    BrokenInvariant,
    ConfigWarning,
    InputError,
    MissingExtra,
    QuireError,
    SlowStoreWarning,
    StateError,
    UnknownError,
)
from quire.core.records.events import Cleared, Created, Event, EventBatch, Moved, Removed, Retained, Stored
from quire.core.records.groups import LayerGroup
from quire.core.records.identity import Media, Scope
from quire.core.records.plan import Kind, Move, Plan
from quire.core.records.reports.receipt import ClientMiss, ClientReceipt, Miss, Receipt
from quire.core.records.reports.stats import Counts, Usage
from quire.core.records.request import Request
from quire.core.records.retain import RetainRange, Retention
from quire.core.records.span import Span
from quire.core.sequences.setbacks import Finished, Setback
from quire.core.sequences.tables import Progress
from quire.core.split import LayerSplit, ModelLayer, split_layers
from quire.core.state.claim import Claim, Refusal
from quire.core.state.claims import Claims
from quire.core.state.hold import Hold
from quire.core.state.prepared import Prepared
from quire.core.state.registry import LaunchedStep
from quire.core.state.sequence import Sequence

if TYPE_CHECKING:
    from quire.engine import LLM as LLM
    from quire.viewer import Viewer as Viewer

logging.getLogger("quire").addHandler(logging.NullHandler())  # quiet, unless a program asks for what is logged

__version__ = "0.2.0.dev0"  # the only place: pyproject.toml reads it here
__all__ = [
    "Batch", "BrokenInvariant", "Cache", "CacheConfig", "Claim", "Claims", "Cleared", "ClientMiss", "ClientReceipt",
    "ConfigWarning", "Counts", "Created", "Encoder", "Event", "EventBatch", "Finished", "Found", "Hold", "InputError",
    "Kind", "LaunchedStep", "LayerGroup", "LayerSplit", "Media", "Miss", "MissingExtra", "ModelLayer", "Move",
    "Moved", "Plan", "Prefetch", "Prepared", "Probe", "Progress", "QuireError", "Receipt", "Refusal", "Removed",
    "Request", "RetainRange", "Retained", "Retention", "Scope", "Sequence", "Setback", "SlowStoreWarning", "Snapshot",
    "Span", "StateError", "Stored", "TierConfig", "UnknownError", "Usage", "Writer", "check", "split_layers",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """LLM comes with the engine, which needs torch, Viewer with a server: imported when they are asked for."""
    if name == "LLM":
        from quire.engine import LLM

        return LLM
    if name == "Viewer":
        from quire.viewer import Viewer

        return Viewer
    raise AttributeError(f"module 'quire' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is; LLM, which is not imported until it is used, only where it could be: help() asks for all of it."""
    return sorted({*globals(), "Viewer", *(("LLM",) if find_spec("torch") and find_spec("transformers") else ())})
