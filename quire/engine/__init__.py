"""Engine: a small real one over the cache. Re-exports what its users need. Needs torch and transformers."""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import CPU_BUILD, MissingExtra, install_line, say

    fact = f"it needs torch and transformers ({missing})"
    raise MissingExtra(say("quire.engine", fact, f"{install_line('torch')}; {CPU_BUILD}")) from missing

from quire.core.records.caller_arguments import renamed as _renamed
from quire.engine.llm import LLM, Output
from quire.engine.loop.engine_thread import Loop
from quire.engine.loop.feed import Piece
from quire.engine.loop.stream import AsyncStream, RunFailed, Stream
from quire.engine.memory.connector import Connector
from quire.engine.memory.disk_side import DiskConfig
from quire.engine.model.layers import Model
from quire.engine.model.load import from_module, load
from quire.engine.publishing import EnginePublisher
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.sampling.token_logprobs import TokenLogprobs
from quire.engine.setup.engine_config import EngineConfig, PrefillPeer
from quire.engine.setup.fitting import fitting
from quire.engine.setup.submission import EngineBusy, TokenPrompt
from quire.engine.step.runs.branch import Answer, Listener, Run
from quire.engine.step.runs.times import RunTimes
from quire.engine.step.step_report import Stats, StepReport
from quire.engine.structured_outputs.structured_outputs import StructuredOutputs

__all__ = [
    "LLM", "Answer", "AsyncStream", "Connector", "DiskConfig", "Engine", "EngineBusy", "EngineConfig",
    "EnginePublisher", "Listener", "Loop", "Model", "Output", "Piece", "PrefillPeer", "Run", "RunFailed", "RunTimes",
    "Sampling", "Stats", "StepReport", "Stream", "StructuredOutputs", "TokenLogprobs",
    "TokenPrompt", "fitting", "from_module", "load",
]  # fmt: skip

__getattr__ = _renamed("quire.engine", {"of": "from_module"})
