"""First tokens in time: how many bounds are kept, and how much is served in time, against taking all with time-outs.

    python benchmarks/deadlines.py                     a clock of its own: the engine's logic, steps of modelled length
    python benchmarks/deadlines.py --real --device cpu the engine as it is, on this machine's clock
    python benchmarks/deadlines.py --json              the numbers

The load: half of the prompts begin with one of 24 texts that are cached, half are new; each wants its first token
within one of three times. `capacity` is what the engine serves when requests never lack. Each row is a run of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine import EngineConfig, Model, Run, Sampling, TooLate, from_module
from quire.engine.deadlines.first_token import TokenDeadline
from quire.engine.runner.engine import Engine

LOADS, SHARES = (0.5, 1.0, 1.5, 2.0), (0.95, 0.99)
BASE, TOKEN, ROW, CONTEXT = 0.004, 2e-4, 3e-4, 1e-7  # seconds of a modelled step, and of what it does
WITHIN = (15, 30, 75)  # times 1 / capacity: when first tokens are wanted
TEXTS, TEXT = 24, 96  # cached beginnings, and their tokens
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 16}
MIDDLE = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}


class Case(NamedTuple):
    """One run. `share` None: all are taken, and leave when their time is over."""

    load: float
    share: float | None
    requests: int
    device: str  # "": a clock of its own
    capacity: float  # requests a second
    seed: int = 1


class Clock:
    """Seconds that pass as steps are computed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait_until(self, then: float) -> None:
        """Nothing is there to do."""
        self.now = max(self.now, then)


class RealClock(Clock):
    """The machine's."""

    def __call__(self) -> float:
        return time.perf_counter()

    def wait_until(self, then: float) -> None:
        """Nothing is there to do."""
        time.sleep(max(0.0, then - time.perf_counter()))


class ModelledSteps:
    """A model that computes nothing, in the time that one takes: a step in a hundred takes three times as long."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self._model, self._clock, self._dice = model, clock, random.Random(5)
        self.rows: Callable[[], tuple[int, float]] = lambda: (0, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, step: Any) -> torch.Tensor:
        """Logits that are all alike."""
        rows, context = self.rows()
        seconds = BASE + TOKEN * int(step.packed.ids.numel()) + ROW * rows + CONTEXT * context
        self._clock.now += seconds * self._dice.lognormvariate(0, 0.15) * (3 if self._dice.random() < 0.01 else 1)
        return torch.zeros((len(step.packed.wanted), 256))


def open_engine(case: Case) -> tuple[Engine, Clock]:
    """Of a tiny model on a clock of its own, or of a larger one on the machine's."""
    torch.manual_seed(0)
    shape = {"": SMALL, "cpu": MIDDLE}.get(case.device, LARGE)
    config = LlamaConfig(
        vocab_size=256, max_position_embeddings=512, num_key_value_heads=2, eos_token_id=1,
        **cast(Any, shape),
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    if case.device == "cuda":
        module = module.to("cuda", torch.bfloat16)
    model, clock = from_module(module), RealClock() if case.device else Clock()
    sizes = EngineConfig(1200, max_num_tokens=128 if case.device != "cuda" else 512, max_sequences=16,
                         max_length=320, deadlines=case.share, max_waiting=4096)  # fmt: skip
    timed = ModelledSteps(model, clock)
    engine = Engine(model if case.device else cast(Model, timed), sizes, clock=clock)
    lengths = engine.cache.progress().computed
    timed.rows = lambda: (engine.cache.num_sequences, float(lengths.sum()))
    return engine, clock


class Traffic:
    """Requests, one after the other."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        made = random.Random(99)
        self.texts = [[made.randrange(16, 256) for _ in range(TEXT)] for _ in range(TEXTS)]

    def prompt(self) -> list[int]:
        """Half of them begin with a text that others have."""
        dice = self.dice
        if dice.random() < 0.5:
            return [*dice.choice(self.texts), *(dice.randrange(16, 256) for _ in range(dice.randint(4, 24)))]
        return [dice.randrange(16, 256) for _ in range(dice.randint(16, 200))]

    def sampling(self) -> Sampling:
        """How long its answer is."""
        return Sampling(max_tokens=self.dice.randint(1, 24), ignore_eos=True)


def capacity(device: str, requests: int) -> float:
    """Requests a second where 48 are always inside."""
    engine, clock = open_engine(Case(0, None, requests, device, 0))
    traffic, left = Traffic(3), requests
    with engine:
        for text in traffic.texts:
            engine.submit(text, Sampling(max_tokens=2, ignore_eos=True))
        engine.drain()
        began = clock()
        while left or engine.runs:
            while left and len(engine.runs) < 48:
                engine.submit(traffic.prompt(), traffic.sampling())
                left -= 1
            engine.step()
        return requests / (clock() - began)


def play(case: Case) -> dict[str, Any]:
    """One run, to its end."""
    torch.set_num_threads(1 if not case.device else 4)
    engine, clock = open_engine(case)
    traffic, runs, refused = Traffic(case.seed), list[tuple[Run, float, float]](), 0
    with engine, torch.inference_mode():
        for text in traffic.texts:
            engine.submit(text, Sampling(max_tokens=2, ignore_eos=True))
        engine.drain()
        began = coming = clock()
        left, open_runs = case.requests, list[tuple[Run, float, float]]()
        while left or engine.runs:
            while left and coming <= clock():
                limit = traffic.dice.choice(WITHIN) / case.capacity
                try:
                    wanted = None if case.share is None else TokenDeadline(limit, coming)
                    run = engine.submit(traffic.prompt(), traffic.sampling(), ttft=wanted)
                    runs.append((run, coming, limit))
                    open_runs.append(runs[-1])
                except TooLate:
                    refused += 1
                coming += traffic.dice.expovariate(case.load * case.capacity)
                left -= 1
            if case.share is None:
                open_runs = [one for one in open_runs if not _left(engine, *one)]
            if engine.step() is None and left:
                clock.wait_until(coming)
        return result(case, engine, runs, refused, clock() - began)


def _left(engine: Engine, run: Run, asked: float, limit: float) -> bool:
    """Whether its client waits for its first token no longer: it has come, or its time is over."""
    if not run.times.first_token and engine.clock() > asked + limit:
        engine.cancel(run)
    return run.done or bool(run.times.first_token)


def result(
    case: Case, engine: Engine, runs: list[tuple[Run, float, float]], refused: int, seconds: float
) -> dict[str, Any]:
    """What came of it."""
    in_time = sum(0 < run.times.first_token - asked <= limit for run, asked, limit in runs if run.times.first_token)
    bounded = [run for run, _, _ in runs if run.times.bound]
    kept = sum(0 < run.times.first_token <= run.times.bound for run in bounded)
    side = engine.deadlines
    return {
        **case._asdict(), "accepted": len(runs), "refused": refused, "bounded": len(bounded), "kept": kept,
        "in_time": in_time, "goodput": in_time / seconds,
        "fates": None if side is None else side.door.counts.fates,
        "for_others": 0 if side is None else side.door.counts.refused_for_others,
    }  # fmt: skip


def table(found: list[dict[str, Any]], rate: float) -> str:
    """As Markdown."""
    lines = [
        f"Capacity: {rate:.1f} requests a second.", "",
        "| load | bounds kept | accepted | refused | in time of those | goodput, of capacity | taking all | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    all_taken = {one["load"]: one["goodput"] for one in found if one["share"] is None}
    for one in found:
        if one["share"] is None:
            continue
        kept, all_of = one["kept"] / max(1, one["bounded"]), all_taken[one["load"]]
        lines.append(
            f"| {one['load']:g} | {kept:.4f} of {one['bounded']} (aim {one['share']:g}) | {one['accepted']}"
            f" | {one['refused']} | {one['in_time'] / max(1, one['accepted']):.4f} | {one['goodput'] / rate:.2f}"
            f" | {all_of / rate:.2f} | {one['goodput'] / max(all_of, 1e-9):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4500, help="of each run")
    parser.add_argument("--real", action="store_true", help="the machine's clock and a model that computes")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--loads", type=float, nargs="*", default=LOADS)
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = options.device if options.real else ""
    with ProcessPoolExecutor(options.jobs) as pool:
        rate = pool.submit(capacity, device, 600).result()
        cases = [
            Case(load, share, options.requests, device, rate)
            for load in options.loads for share in (None, *options.shares)
        ]  # fmt: skip
        found = []
        for one in pool.map(play, cases):
            found.append(one)
            print(one, file=sys.stderr, flush=True)
    print(json.dumps({"capacity": rate, "runs": found}) if options.json else table(found, rate))


if __name__ == "__main__":
    main()
