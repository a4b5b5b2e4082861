"""How well `quire plan` predicts: rates of the bundled engine measured here, then three loads, predicted and measured.

    OMP_NUM_THREADS=1 python benchmarks/plan.py --out measured.json      # a small random Llama, a minute or two
    OMP_NUM_THREADS=1 python benchmarks/plan.py --smollm2 --requests 60  # the embedded SmolLM2-135M
    quire plan TRACE --measured measured.json                            # plans with these rates, if they predict

The engine's clock is the processor time of this process, and skips what nobody waits for: on a busy machine it runs as
it would alone. Where a predicted p95 first token is off by more than a quarter, there is no recommendation.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine import Engine, EngineConfig, Model, Sampling, load
from quire.engine.model import smollm2
from quire.engine.model.load import from_module
from quire.simulate.capacity.capacity_plan import MOST_OFF, PredictionCheck
from quire.simulate.capacity.fleet import Fleet, played
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.trace.read.trace import read_trace

PREFIX, QUESTION, ANSWER, DOCUMENTS = 320, 96, 12, 12  # tokens, and how many documents are asked about
BUDGET, PAGES, BLOCK, SEQUENCES = 256, 600, 16, 32  # of the engine
LOADS = (0.35, 0.55, 0.75)  # of what it can do


class Ask(NamedTuple):
    """One request: when, about which document, with which question."""

    time: float
    document: int
    number: int

    def tokens(self, vocabulary: int) -> list[int]:
        """Its prompt; token ids below 16 may mean something."""
        parts = [(self.document, PREFIX), (1000 + self.number, QUESTION)]
        draw = [np.random.default_rng(seed).integers(16, vocabulary, count) for seed, count in parts]
        return [int(token) for token in np.concatenate(draw)]


class ProcessorClock:
    """Seconds of processor time, and what was skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        """Now."""
        return time.process_time() + self._skipped

    def skip_to(self, when: float) -> None:
        """Nobody waits until then."""
        self._skipped += max(0.0, when - self())


class StepTime(NamedTuple):
    """What a step computed, and how long it took."""

    prompt: int
    decoding: int
    seconds: float


def serve(model: Model, asks: list[Ask]) -> tuple[list[float], list[StepTime]]:
    """Every request when it comes; seconds to each first token, and the steps."""
    clock, waits, steps = ProcessorClock(), [], []
    config = EngineConfig(PAGES, block_size=BLOCK, max_num_tokens=BUDGET, max_sequences=SEQUENCES, max_length=1024)
    with Engine(model, config, clock=clock) as engine:
        engine.warm_up()
        begin, left = clock() + 0.001, list(asks)
        runs = []
        while left or engine.runs:
            while left and begin + left[0].time <= clock():
                ask = left.pop(0)
                sampling = Sampling(max_tokens=ANSWER, ignore_eos=True)
                runs.append((begin + ask.time, engine.submit(ask.tokens(engine.vocabulary), sampling)))
            decoding = sum(run.times.first_token > 0 for run in engine.runs.values())
            before = clock()
            report = engine.step() if engine.runs else None
            if report is not None:
                steps.append(StepTime(report.num_tokens - decoding, decoding, clock() - before))
            elif left:
                clock.skip_to(begin + left[0].time)
        waits = [run.times.first_token - asked for asked, run in runs]
    return waits, steps


def fitted(steps: list[StepTime]) -> Pace:
    """The rates that explain the steps best."""
    table = np.array([[one.prompt, one.decoding > 0, one.decoding] for one in steps], np.float64)
    found = np.linalg.lstsq(table, np.array([one.seconds for one in steps]), rcond=None)[0]
    rate, turn, more = (float(number) for number in found)
    return Pace(1 / max(rate, 1e-9), max(turn * 1000, 1e-3), max(more * 1000, 0.0))


def asks_at(load_: float, pace: Pace | None, count: int, seed: int) -> list[Ask]:
    """Poisson arrivals at a share of what the engine can do; without rates all at once."""
    rng = np.random.default_rng(seed)
    gaps: NDArray[np.float64] = np.zeros(count)
    if pace is not None:
        tokens = QUESTION + PREFIX * DOCUMENTS / count
        work = tokens / pace.prefill_tokens_per_second + ANSWER * (pace.turn(4) / 4)
        gaps = rng.exponential(work / load_, count)
    first = 100 * seed  # other documents for every load
    return [
        Ask(float(when), first + int(rng.integers(DOCUMENTS)), first * 1000 + nth)
        for nth, when in enumerate(np.cumsum(gaps))
    ]


def predicted(asks: list[Ask], pace: Pace) -> float:
    """The p95 first token of the same requests, modelled."""
    lines = [
        {
            "time_ms": ask.time * 1000,
            "prompt": [[f"document {ask.document}", PREFIX], [f"question {ask.number}", QUESTION]],
            "output_tokens": ANSWER,
        }
        for ask in asks
    ]
    settings = ReplaySettings(
        tiers=(Memory("device", blocks=(PAGES,)),), block_size=BLOCK, token_budget=BUDGET, max_chunk=BUDGET,
        max_sequences=SEQUENCES, decode_stride=1, pace=pace,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        return played(read_trace(path), Fleet(1, "exact", settings)).ttft(95)


def small_llama() -> Model:
    """Random weights; large enough that the model takes most of a step."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048,
    )  # fmt: skip
    return from_module(LlamaForCausalLM(config).eval())


def main() -> int:
    """Measure, predict, compare."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--requests", type=int, default=120, help="of each load (default 120)")
    parser.add_argument("--out", metavar="FILE", help="write rates and checks as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load(smollm2.folder()) if options.smollm2 else small_llama()
    _, first = serve(model, asks_at(1, None, 16, 9))
    rough = fitted(first)
    _, second = serve(model, asks_at(0.6, rough, options.requests // 2, 8))
    pace = fitted([*first, *second])
    print(f"rates: {pace}", flush=True)
    checks = []
    for seed, load_ in enumerate(LOADS):
        asks = asks_at(load_, pace, options.requests, seed)
        waits, _ = serve(model, asks)
        check = PredictionCheck(predicted(asks, pace), float(np.percentile(waits, 95)))
        checks.append(check)
        said = f"p95 predicted {check.predicted:.3f} s, measured {check.measured:.3f} s: {check.off:.0%} off"
        print(f"load {load_:.0%}: {said}", flush=True)
    if options.out:
        names = ("prefill_tokens_per_second", "decode_ms", "decode_ms_per_sequence")
        rates = {name: getattr(pace, name) for name in names}
        rows = [{"predicted": one.predicted, "measured": one.measured} for one in checks]
        Path(options.out).write_text(json.dumps({"pace": rates, "checks": rows}, indent=1), encoding="utf-8")
    good = all(check.off <= MOST_OFF for check in checks)
    print("predictions are good enough to plan with" if good else "predictions are off: no recommendation from these")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
