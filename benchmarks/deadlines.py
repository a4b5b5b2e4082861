"""First tokens in time: how many bounds are kept, and how much is served in time, against taking all with time-outs.

    python benchmarks/deadlines.py                     a clock of its own: the engine's logic, steps of modelled length
    python benchmarks/deadlines.py --recorded          prompts and answers as long as those of the sample trace
    python benchmarks/deadlines.py --real              the embedded model as it is, on this machine's clock
    python benchmarks/deadlines.py --json              the numbers

The load: half of the prompts begin with one of 24 texts that are cached, half are new; each wants its first token
within one of three times. `--recorded`: what is new of a prompt, what was there before, and its answer are as long as
in a request of the sample trace, a sixteenth of it; all want their first token within one time. `capacity` is what the
engine serves when requests never lack. "At most" is what the cheapest requests are that fit into the time, all known
before, each step full: no policy serves more in time; beside it that bound by what taking all serves, which no ratio
exceeds. `--prices 0.85`: the cheapest so many of all are taken, by what each really costs, without a door: what a price
serves that never changes and knows how long each answer becomes. Each row is a run of its own. With `--real` none of
these is known; runs beside each other (`--jobs`) then share the cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine import EngineConfig, Model, Run, Sampling, TooLate, from_module, load
from quire.engine.deadlines.first_token import TokenDeadline
from quire.engine.model import smollm2
from quire.engine.runner.engine import Engine
from quire.simulate.capacity.bounds import new_tokens
from quire.trace.read.trace import read_trace

LOADS, SHARES = (0.5, 1.0, 1.5, 2.0), (0.95, 0.99)
BASE, TOKEN, ROW, CONTEXT = 0.004, 2e-4, 3e-4, 1e-7  # seconds of a modelled step, and of what it does
NOISE = 1.03  # of these seconds, the mean
WITHIN = {False: (15.0, 30.0, 75.0), True: (8.0,)}  # times 1 / capacity: when first tokens are wanted; True: recorded
TEXTS, TEXT = 24, 96  # cached beginnings, and their tokens
SCALE, LONGEST = 16, 4096  # of recorded lengths, and the tokens of a prompt and its answer
ROWS = 16  # sequences at once
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
PRICED = 4000  # requests whose costs make a price
CALIBRATING = 600  # requests, at most, that are served to know the capacity


class Case(NamedTuple):
    """One run. `share` None: all are taken, and leave when their time is over."""

    load: float
    share: float | None
    requests: int
    device: str  # "": a clock of its own
    capacity: float  # requests a second
    recorded: bool = False
    within: tuple[float, ...] = ()
    threads: int = 1
    price: float | None = None  # seconds above which none is taken, where no door is
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
    """Of a tiny model on a clock of its own, or of the embedded one on the machine's."""
    torch.set_num_threads(case.threads)
    longest = LONGEST if case.recorded else 320
    many = case.recorded or case.device == "cuda"
    sizes = EngineConfig(16_000 if case.recorded else 1200, max_num_tokens=512 if many else 128, max_sequences=ROWS,
                         max_length=longest, deadlines=case.share, max_waiting=4096)  # fmt: skip
    if case.device:
        dtype = "bfloat16" if case.device == "cuda" else "float32"
        clock: Clock = RealClock()
        return Engine(load(smollm2.folder(), device=case.device, dtype=dtype), sizes, clock=clock), clock
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, max_position_embeddings=max(512, longest), num_key_value_heads=2, eos_token_id=1,
        **cast(Any, SMALL),
    )  # fmt: skip
    clock = Clock()
    timed = ModelledSteps(from_module(LlamaForCausalLM(config).eval()), clock)
    engine = Engine(cast(Model, timed), sizes, clock=clock)
    lengths = engine.cache.progress().computed
    timed.rows = lambda: (engine.cache.num_sequences, float(lengths.sum()))
    return engine, clock


class Asked(NamedTuple):
    """One request, by its tokens."""

    cached: int
    new: int
    answer: int

    @property
    def seconds(self) -> float:
        """Of a modelled engine whose rows are all taken."""
        return NOISE * (TOKEN * self.new + self.answer * (ROW + BASE / ROWS))


class Traffic:
    """Requests, one after the other."""

    def __init__(self, seed: int, recorded: bool) -> None:
        self.dice, self._lengths = random.Random(seed), _recorded() if recorded else []
        made, longest = random.Random(99), max((one.cached for one in self._lengths), default=TEXT)
        self.texts = [[made.randrange(16, 256) for _ in range(longest)] for _ in range(TEXTS)]

    def ask(self) -> Asked:
        """How long the next one is. Half of them begin with a text that others have, if they are not as recorded."""
        dice = self.dice
        if self._lengths:
            return dice.choice(self._lengths)
        cached = TEXT * (dice.random() < 0.5)
        return Asked(cached, dice.randint(4, 24) if cached else dice.randint(16, 200), dice.randint(1, 24))

    def prompt(self, asked: Asked) -> list[int]:
        """Its tokens."""
        dice = self.dice
        return [*dice.choice(self.texts)[: asked.cached], *(dice.randrange(16, 256) for _ in range(asked.new))]


def _recorded() -> list[Asked]:
    """Of the sample trace. Beginnings end with a block, as what is cached does."""
    trace = read_trace("sample")
    found = []
    for request, new in zip(trace, new_tokens(trace).tolist(), strict=True):
        cached, rest = (request.length - new) // SCALE // 16 * 16, max(1, new // SCALE)
        answer = max(1, request.output // SCALE)
        if cached + rest + answer < LONGEST:
            found.append(Asked(cached, rest, answer))
    return found


def _sampling(asked: Asked) -> Sampling:
    return Sampling(max_tokens=asked.answer, ignore_eos=True)


def most(case: Case) -> float:
    """Requests a second that anything could serve of a run's load: the cheapest of them, without a pause."""
    traffic, seconds = Traffic(case.seed, case.recorded), case.requests / (case.load * case.capacity)
    costs = sorted(traffic.ask().seconds for _ in range(case.requests))
    return sum(total <= seconds for total in accumulate(costs)) / seconds


def capacity(case: Case) -> float:
    """Requests a second where 48 are always inside."""
    engine, clock = open_engine(case)
    requests = left = min(CALIBRATING, case.requests // (4 if case.device else 1))
    traffic = Traffic(3, case.recorded)
    with engine, torch.inference_mode():
        for text in traffic.texts:
            engine.submit(text, Sampling(max_tokens=2, ignore_eos=True))
        engine.drain()
        began = clock()
        while left or engine.runs:
            while left and len(engine.runs) < 48:
                asked = traffic.ask()
                engine.submit(traffic.prompt(asked), _sampling(asked))
                left -= 1
            engine.step()
        return requests / (clock() - began)


def play(case: Case) -> dict[str, Any]:
    """One run, to its end."""
    engine, clock = open_engine(case)
    traffic, runs, refused = Traffic(case.seed, case.recorded), list[tuple[Run, float, float]](), 0
    with engine, torch.inference_mode():
        for text in traffic.texts:
            engine.submit(text, Sampling(max_tokens=2, ignore_eos=True))
        engine.drain()
        began = coming = clock()
        left, open_runs = case.requests, list[tuple[Run, float, float]]()
        while left or engine.runs:
            while left and coming <= clock():
                limit = traffic.dice.choice(case.within) / case.capacity
                asked = traffic.ask()
                try:
                    if case.price is not None and asked.seconds > case.price:
                        raise TooLate("too dear", limit, limit)
                    wanted = None if case.share is None else TokenDeadline(limit, coming)
                    run = engine.submit(traffic.prompt(asked), _sampling(asked), ttft=wanted)
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
        **case._asdict(), "most": None if case.device else most(case), "accepted": len(runs), "refused": refused,
        "bounded": len(bounded), "kept": kept,
        "in_time": in_time, "goodput": in_time / seconds,
        "fates": None if side is None else side.door.counts.fates,
        "why_refused": None if side is None else side.door.counts.refused,
    }  # fmt: skip


def table(found: list[dict[str, Any]], rate: float) -> str:
    """As Markdown."""
    lines = [
        f"Capacity: {rate:.1f} requests a second.", "",
        "| load | bounds kept | accepted | refused | in time of those | goodput, of capacity | taking all | ratio"
        " | at most | its ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    all_taken = {one["load"]: one["goodput"] for one in found if one["share"] is None and one["price"] is None}
    for one in found:
        if one["share"] is None:
            if one["price"] is not None:
                price, ratio = one["price"], one["goodput"] / max(all_taken[one["load"]], 1e-9)
                lines.append(f"| {one['load']:g} | none above {price:.3f} s | {one['accepted']} | {one['refused']} |"
                             f" {one['in_time'] / max(1, one['accepted']):.4f} | {one['goodput'] / rate:.2f} | |"
                             f" {ratio:.2f} | | |")  # fmt: skip
            continue
        kept, all_of = one["kept"] / max(1, one["bounded"]), all_taken[one["load"]]
        lines.append(
            f"| {one['load']:g} | {kept:.4f} of {one['bounded']} (aim {one['share']:g}) | {one['accepted']}"
            f" | {one['refused']} | {one['in_time'] / max(1, one['accepted']):.4f} | {one['goodput'] / rate:.2f}"
            f" | {all_of / rate:.2f} | {one['goodput'] / max(all_of, 1e-9):.2f} |"
            + (
                " | |"
                if one["most"] is None
                else f" {one['most'] / rate:.2f} | {one['most'] / max(all_of, 1e-9):.2f} |"
            )
        )
    return "\n".join(lines)


def main() -> None:
    """Run all, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4500, help="of each run")
    parser.add_argument("--recorded", action="store_true", help="lengths as in the sample trace")
    parser.add_argument("--within", type=float, nargs="*", help="when first tokens are wanted, times 1 / capacity")
    parser.add_argument("--real", action="store_true", help="the machine's clock and a model that computes")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--loads", type=float, nargs="*", default=LOADS)
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES)
    parser.add_argument("--prices", type=float, nargs="*", default=[], help="shares of requests that are cheap enough")
    parser.add_argument("--jobs", type=int, help="runs beside each other (default: 2, with --real 1)")
    parser.add_argument(
        "--threads", type=int, help="of torch, of each run (default: 1, with --real the cores by --jobs)"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = options.device if options.real else ""
    within = tuple(options.within or WITHIN[options.recorded])
    jobs = options.jobs or (1 if options.real else 2)
    threads = options.threads or (max(1, (os.cpu_count() or 1) // jobs) if options.real else 1)
    plain = Case(0, None, options.requests, device, 0, options.recorded, within, threads)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        rate = pool.submit(capacity, plain).result()
        print(f"capacity {rate:.2f} requests a second, {threads} threads, {jobs} at once", file=sys.stderr, flush=True)
        cases = [
            plain._replace(load=load, share=share, capacity=rate)
            for load in options.loads for share in (None, *options.shares)
        ]  # fmt: skip
        traffic = Traffic(3, options.recorded)
        costs = sorted(traffic.ask().seconds for _ in range(PRICED))
        cases += [
            plain._replace(load=load, price=costs[int(share * len(costs)) - 1], capacity=rate)
            for load in options.loads for share in options.prices
        ]  # fmt: skip
        found = []
        for one in pool.map(play, cases):
            found.append(one)
            print(one, file=sys.stderr, flush=True)
    print(json.dumps({"capacity": rate, "runs": found}) if options.json else table(found, rate))


if __name__ == "__main__":
    main()
