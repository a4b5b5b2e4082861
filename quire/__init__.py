"""Quire: the KV cache of an LLM engine, as a library."""

from typing import TYPE_CHECKING

from quire.core.admit import Batch
from quire.core.cache import Cache
from quire.core.check import check
from quire.core.claim import Claim, Refusal
from quire.core.claims import Claims
from quire.core.config import CacheConfig, TierConfig
from quire.core.encoder import Encoder
from quire.core.errors import BrokenInvariant, ConfigWarning, InputError, QuireError, StateError, UnknownError
from quire.core.events import Cleared, Created, Event, EventBatch, Moved, Removed, Retained, Stored
from quire.core.finish import Finished, Setback
from quire.core.groups import LayerGroup
from quire.core.hold import Hold
from quire.core.identity import Media, Scope
from quire.core.plan import Kind, Move, Plan
from quire.core.prepare import Prepared
from quire.core.probe import Probe
from quire.core.request import Request
from quire.core.retain import RetainRange, Retention
from quire.core.sequence import Sequence
from quire.core.span import Span
from quire.core.stats import Counts, Usage

if TYPE_CHECKING:
    from quire.engine import LLM as LLM

__version__ = "0.1.0"
__all__ = [
    "Batch", "BrokenInvariant", "Cache", "CacheConfig", "Claim", "Claims", "Cleared", "ConfigWarning", "Counts",
    "Created", "Encoder", "Event", "EventBatch", "Finished", "Hold", "InputError", "Kind", "LayerGroup", "Media",
    "Move", "Moved", "Plan", "Prepared", "Probe", "QuireError", "Refusal", "Removed", "Request", "RetainRange",
    "Retained", "Retention", "Scope", "Sequence", "Setback", "Span", "StateError", "Stored", "TierConfig",
    "UnknownError", "Usage", "check",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """LLM comes with the engine, which needs torch: it is imported when somebody asks for it."""
    if name == "LLM":
        from quire.engine import LLM

        return LLM
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
