"""nano-vllm's own scheduler and block manager in a step that decodes, for host_step.py; from a folder of its sources.

Run as they are: `engine/scheduler.py`, `block_manager.py`, `sequence.py`, `sampling_params.py`, `utils/context.py` and,
of `engine/model_runner.py`, `prepare_decode` with its block tables. In place of the rest that these import: `nanovllm`
itself is the folder alone (its `__init__` imports the engine); `transformers`, `torch.distributed`, `models.qwen3`,
`layers.sampler` and `utils.loader` are modules with names that nothing calls; `torch.tensor(...).cuda()` is a NumPy
array of the same type. Its config is the five numbers that the scheduler reads. xxhash is the real one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

NAMES: dict[str, tuple[str, ...]] = {  # of what is stubbed, and what is imported from there
    "transformers": ("AutoConfig",),
    "torch": (),
    "torch.distributed": (),
    "nanovllm.models.qwen3": ("Qwen3ForCausalLM",),
    "nanovllm.layers.sampler": ("Sampler",),
    "nanovllm.utils.loader": ("load_model",),
}


class _Array(np.ndarray[Any, Any]):
    """What stands for a tensor."""

    def cuda(self, **_: Any) -> _Array:
        return self


def by_nano_vllm(folder: Path, num_sequences: int, steps: int, block: int, prompt: int) -> dict[str, float]:
    """Medians of the parts of a step, in microseconds, while all decode."""
    scheduler, runner, sequence = _modules(folder)
    sequence.Sequence.block_size = block
    pages = num_sequences * -(-(prompt + steps + 2) // block)
    made = scheduler.Scheduler(
        SimpleNamespace(
            max_num_seqs=num_sequences, max_num_batched_tokens=1 << 30, eos=-1, kvcache_block_size=block,
            num_kvcache_blocks=pages,
        )
    )  # fmt: skip
    own = SimpleNamespace(block_size=block)
    own.prepare_block_tables = lambda seqs: runner.ModelRunner.prepare_block_tables(own, seqs)
    sampling = sequence.SamplingParams(max_tokens=1 << 30, ignore_eos=True)
    for nth in range(num_sequences):
        made.add(sequence.Sequence([1000 * nth + at for at in range(prompt)], sampling))
    tokens = [1] * num_sequences
    seqs, prefill = made.schedule()
    made.postprocess(seqs, tokens, prefill)
    times: dict[str, list[int]] = {"schedule": [], "tables": [], "postprocess": []}
    for _ in range(steps):
        marks = [perf_counter_ns()]
        seqs, prefill = made.schedule()
        marks.append(perf_counter_ns())
        runner.ModelRunner.prepare_decode(own, seqs)
        marks.append(perf_counter_ns())
        made.postprocess(seqs, tokens, prefill)
        marks.append(perf_counter_ns())
        assert len(seqs) == num_sequences and not prefill
        for name, one, other in zip(times, marks, marks[1:], strict=False):
            times[name].append(other - one)
    whole = [sum(step) for step in zip(*times.values(), strict=True)]
    return {name: median(some) / 1000 for name, some in times.items()} | {"all": median(whole) / 1000}


def _modules(folder: Path) -> tuple[Any, Any, Any]:
    """Its scheduler, model runner and sequence; what was imported under the stubs' names comes back."""
    before = {name: sys.modules.get(name) for name in NAMES}
    package = ModuleType("nanovllm")
    package.__path__ = [str(folder / "nanovllm")]
    sys.modules["nanovllm"] = package
    for name, inside in NAMES.items():
        sys.modules[name] = stub = ModuleType(name)
        vars(stub).update(dict.fromkeys(inside, object))
    torch: Any = sys.modules["torch"]
    torch.distributed = sys.modules["torch.distributed"]
    torch.Tensor, torch.int64, torch.int32 = _Array, np.int64, np.int32
    torch.tensor = lambda values, dtype, **_: np.array(values, dtype).view(_Array)
    torch.inference_mode = lambda: lambda function: function
    try:
        from nanovllm.engine import model_runner, scheduler, sequence  # type: ignore[import-not-found]
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return scheduler, model_runner, sequence
