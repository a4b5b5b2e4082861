"""Engine: a small real one over the cache. Re-exports what its users need. Needs torch and transformers."""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import CPU_BUILD, MissingExtra, install_line, say

    fact = f"it needs torch and transformers ({missing})"
    raise MissingExtra(say("quire.engine", fact, f"{install_line('torch')}; {CPU_BUILD}")) from missing

from quire.engine.choose.logprobs import TokenLogprobs
from quire.engine.choose.sampling import Sampling
from quire.engine.choose.structured import StructuredOutputs
from quire.engine.front.feed import Piece
from quire.engine.front.loop import Loop
from quire.engine.front.stream import AsyncStream, RunFailed, Stream
from quire.engine.llm import LLM, Output
from quire.engine.model.layers import Model
from quire.engine.model.load import load, of
from quire.engine.outer.connector import Connector
from quire.engine.outer.disk_side import DiskConfig
from quire.engine.publishing import EnginePublisher
from quire.engine.runner.engine import Engine
from quire.engine.setup.fitting import fitting
from quire.engine.setup.settings import EngineConfig, PrefillPeer
from quire.engine.setup.submission import EngineBusy, TokenPrompt
from quire.engine.step.report import Stats, StepReport
from quire.engine.step.runs.branch import Answer, Listener, Run
from quire.engine.step.runs.times import RunTimes

__all__ = [
    "LLM", "Answer", "AsyncStream", "Connector", "DiskConfig", "Engine", "EngineBusy", "EngineConfig",
    "EnginePublisher", "Listener", "Loop", "Model", "Output", "Piece", "PrefillPeer", "Run", "RunFailed", "RunTimes",
    "Sampling", "Stats", "StepReport", "Stream", "StructuredOutputs", "TokenLogprobs",
    "TokenPrompt", "fitting", "load", "of",
]  # fmt: skip
