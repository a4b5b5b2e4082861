"""Quire as the KV cache under vLLM: more of the prompt is found, in host memory, than vLLM's device blocks can keep.

    vLLM's scheduler ── hooks ──► QuireConnector ──► SchedulerSide ── Cache: what is where, what is held
          │ orders                                                          ▲ report
          ▼                                                                 │
    vLLM's workers ─── hooks ──► QuireConnector ──► WorkerSide ──► HostPages: the bytes, one part per rank

vLLM imports `quire.integrations.vllm` by name and takes QuireConnector from it; only that class needs vLLM itself.
docs/vllm.md says how to start it and what was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.integrations.vllm.connector import QuireConnector as QuireConnector

__all__ = ["QuireConnector"]


def __getattr__(name: str) -> object:
    """The connector comes with vLLM: it is imported when vLLM asks for it."""
    if name == "QuireConnector":
        from quire.integrations.vllm.connector import QuireConnector

        return QuireConnector
    raise AttributeError(f"module 'quire.integrations.vllm' has no attribute {name!r}")
