"""What a decoding step costs the host: python -m benchmarks.engine_host [--rows 64 256] [--steps 300]

The real engine, with a model that computes nothing: its logits are made beforehand, and are the same in every step.
So all that is left is ours: schedule, pack, launch, choose, read, commit, tell. Microseconds by part, the least and
the median of single steps on one thread; `sampling` is the time inside `choose`, which a GPU computes beside the
host. `calls` are the calls of Python and C functions of one step, which no other job on the machine changes.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine import Engine, EngineConfig, Sampling, from_module
from quire.engine.model.layers import Model
from quire.engine.step import read_logits
from quire.engine.step.runs.branch import Run

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}
PARTS = ("schedule", "moves", "pack", "model", "advance")
PROMPT, WARM, LAST = 64, 8, 16  # tokens of a prompt; steps before and behind those that are measured


class Hearer:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.heard = 0

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        """New tokens."""
        self.heard += 1
        return False

    def over(self, run: Run) -> None:
        """The run is done."""


def silent_model(rows: int, vocabulary: int) -> Model:
    """Logits of so many rows, made once."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=8192,
    )  # fmt: skip
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    model = from_module(LlamaForCausalLM(config).eval())
    return replace(model, forward=lambda step: logits[: len(step.packed.wanted)])


def decoding(engine: Engine, rows: int, steps: int, fields: dict[str, Any]) -> None:
    """Only decoding is left to do, for so many steps."""
    rng = np.random.default_rng(0)
    for nth in range(rows):
        sampling = Sampling(max_tokens=steps + WARM + LAST, ignore_eos=True, seed=nth, **fields)
        engine.submit(rng.integers(3, engine.vocabulary, PROMPT).tolist(), sampling, listener=Hearer())
    while engine.scheduler.waiting or engine.scheduler.prompts:
        engine.step()
    for _ in range(WARM):
        engine.step()


@contextmanager
def sampling_timed() -> Iterator[list[float]]:
    """The seconds inside `choose`, call by call."""
    spent: list[float] = []
    choose: Callable[..., Any] = vars(read_logits)["choose"]

    def timed(*given: Any) -> Any:
        begun = perf_counter()
        chosen = choose(*given)
        spent.append(perf_counter() - begun)
        return chosen

    with patch.object(read_logits, "choose", timed):
        yield spent


def times_of(engine: Engine, steps: int) -> dict[str, list[float]]:
    """Of each step the microseconds of its parts, of sampling, and of all but that."""
    times: dict[str, list[float]] = defaultdict(list)
    with sampling_timed() as sampling:
        for _ in range(steps):
            begun = perf_counter()
            report = engine.step()
            whole = perf_counter() - begun
            assert report is not None
            for part in PARTS:
                times[part].append(1e6 * report.seconds[part])
            times["sampling"].append(1e6 * sampling[-1])
            times["host"].append(1e6 * (whole - sampling[-1]))
    return times


def calls_of(engine: Engine) -> Counter[str]:
    """Function calls of one step, by the function."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[getattr(argument, "__qualname__", str(argument))] += 1

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return calls


def measured(rows: int, steps: int, overlap: bool, kind: str, vocabulary: int) -> tuple[dict[str, list[float]], Any]:
    """One engine."""
    pages = rows * (-(-(PROMPT + steps + WARM + LAST) // 16) + 2)
    config = EngineConfig(
        pages, max_num_tokens=16384, max_sequences=rows, max_length=4096, overlap=overlap, wait_for_reuse=False,
        max_waiting=rows,
    )  # fmt: skip
    with Engine(silent_model(rows, vocabulary), config) as engine:
        decoding(engine, rows, steps, KINDS[kind])
        times = times_of(engine, steps)
        return times, calls_of(engine)


def in_words(name: str, times: dict[str, list[float]], calls: Counter[str]) -> str:
    """One line: the least and the median of every part."""
    parts = [f"{part} {min(times[part]):.0f}/{median(times[part]):.0f}" for part in (*PARTS, "sampling", "host")]
    return f"{name:24}" + "  ".join(parts) + f"  calls {calls.total()}"


def main(given: Iterable[str] | None = None) -> None:
    """Measure and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--vocabulary", type=int, default=64)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--most-called", type=int, default=0, help="print so many functions by their calls")
    options = parser.parse_args(None if given is None else list(given))
    torch.set_num_threads(1)
    gc.disable()
    for overlap in (False, True):
        for kind in options.kinds:
            for rows in options.rows:
                times, calls = measured(rows, options.steps, overlap, kind, options.vocabulary)
                print(in_words(f"{'overlap' if overlap else 'sync'} {kind} {rows}", times, calls), flush=True)
                for name, count in calls.most_common(options.most_called):
                    print(f"{count:10} {name}")


if __name__ == "__main__":
    main()
