"""Fair turns: how long ten small tenants wait for their first token beside a greedy one, and what the scheduler costs.

    python benchmarks/fair.py                      # the embedded SmolLM2-135M on the CPU, a few minutes
    python benchmarks/fair.py --tiny               # random weights of a small Llama: seconds
    python benchmarks/fair.py --cost               # the scheduler's part of a step with 256 running sequences
    python benchmarks/fair.py --cost --against ../older    # and that of another checkout, in turns in one run

The greedy tenant asks for 32 long answers to one prompt, more than there are sequences. When it has all of them, ten
others ask at once, in a few rounds, each round when the one before is answered. They are measured alone, beside the
greedy one in turns, and beside it first come, first served. Times are the process's own, on one thread, so that other
jobs of the machine do not count; steps until the first token do not depend on the machine at all. The cost of a step is
measured with 256 sequences: alone, with 256 more requests that wait, and with all of them shared by 32 tenants.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import torch

from quire.engine import Engine, EngineConfig, Model, Sampling, Stats

SMALL, PROMPT, ANSWER = 10, 24, 4  # tenants, tokens
ROWS, TOKENS = 16, 256  # sequences and tokens of a step
RUNNING = 256  # sequences, for what the scheduler costs
STEPS = 40  # that are measured of them


def tiny() -> Model:
    """A small Llama with random weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from quire import engine

    from_module = getattr(engine, "from_module", None) or engine.of  # a checkout of before 0.2

    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024,
    )  # fmt: skip
    return from_module(AutoModelForCausalLM.from_config(shape).eval().requires_grad_(False))


def embedded() -> Model:
    """SmolLM2."""
    from quire.engine import load
    from quire.engine.model import smollm2

    return load(smollm2.folder())


# -- first tokens ------------------------------------------------------------------------------------------------------


def words(start: int, count: int) -> list[int]:
    """A prompt that shares nothing with others."""
    return [16 + (start * 37 + place * (start % 7 + 1)) % 200 for place in range(count)]


def first_tokens(model: Model, scheduling: str, *, greedy: bool, rounds: int, length: int) -> dict[str, float]:
    """Of all small requests: seconds and steps until the first token came."""
    settings: Any = {"scheduling": scheduling, "max_num_tokens": TOKENS, "max_sequences": ROWS, "max_length": 512}
    seconds, steps = [], []
    with Engine(model, EngineConfig(1200, **settings), clock=time.process_time) as engine:
        engine.warm_up()
        if greedy:
            ask = Sampling(max_tokens=length, n=32, temperature=1.0, seed=1, ignore_eos=True)
            engine.submit(words(1, PROMPT), ask, tenant="greedy")
            while engine.cache.num_sequences < ROWS:
                engine.step()
        for nth in range(rounds):
            ask = Sampling(max_tokens=ANSWER, ignore_eos=True)
            asked = engine.stats.num_steps
            runs = {
                one: engine.submit(words(100 * nth + 10 + one, PROMPT), ask, tenant=f"small {one}")
                for one in range(SMALL)
            }
            came = dict.fromkeys(runs, 0)
            while not all(run.done for run in runs.values()):
                engine.step()
                for one, run in runs.items():
                    came[one] = came[one] or (engine.stats.num_steps - asked if run.times.first_token else 0)
            seconds += [run.time_to_first_token for run in runs.values()]
            steps += list(came.values())
        preempted = engine.scheduler.num_preemptions
    return {"s": median(seconds), "worst_s": max(seconds), "steps": median(steps), "worst_steps": max(steps),
            "preempted": preempted}  # fmt: skip


def measure(model: Model, rounds: int, length: int) -> dict[str, Any]:
    """All three, in turns, so that a machine that slows down slows down all."""
    ways = {"alone": ("fair", False), "beside it, fair": ("fair", True), "beside it, fcfs": ("fcfs", True)}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for nth in range(3):
        for way, (scheduling, greedy) in ways.items():
            if nth and scheduling == "fcfs":
                continue  # it takes long, and its steps are always the same
            found[way].append(first_tokens(model, scheduling, greedy=greedy, rounds=rounds, length=length))
    best = {way: min(ones, key=lambda one: one["s"]) for way, ones in found.items()}
    times = best["beside it, fair"]["s"] / best["alone"]["s"]
    return {"ways": best, "times_longer": times, "all": found}


def table(numbers: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [
        "| ten small tenants | first token, s | worst, s | steps | worst | preempted |",
        "|---|---|---|---|---|---|",
    ]
    for way, one in numbers["ways"].items():
        times = f"{one['s']:.3f} | {one['worst_s']:.3f} | {one['steps']:g} | {one['worst_steps']:g}"
        lines.append(f"| {way} | {times} | {one['preempted']:g} |")
    return "\n".join([*lines, "", f"Beside the greedy one: {numbers['times_longer']:.2f} times as long (medians)"])


# -- what it costs -----------------------------------------------------------------------------------------------------


def cost(scheduling: str) -> dict[str, float]:
    """Microseconds of the scheduler per step, with 256 running sequences: alone, and with 256 more that wait."""
    model, found = tiny(), {}
    sys.modules[Stats.__module__].perf_counter = time.process_time  # type: ignore[attr-defined]  # what other jobs take does not count
    settings: Any = {"max_num_tokens": 512, "max_sequences": RUNNING, "max_length": 512, "max_waiting": 2000}
    fair = "scheduling" in {one.name for one in fields(EngineConfig)}  # or it is a checkout without turns
    if fair:
        settings["scheduling"] = scheduling
    for name, waiting, tenants in (
        ("running", 0, 0), ("and as many wait", RUNNING, 0), ("the same of 32 tenants", RUNNING, 32)
    ):  # fmt: skip
        with Engine(model, EngineConfig(20_000, **settings)) as engine:
            for nth in range(RUNNING + waiting):
                whose: Any = {"tenant": f"tenant {nth % tenants}"} if tenants and fair else {}
                engine.submit(words(nth, 8), Sampling(max_tokens=STEPS + 40, ignore_eos=True), **whose)
            while len(engine.scheduler.ready) < RUNNING:
                engine.step()
            spent = []
            for _ in range(STEPS):
                engine.stats = Stats()
                engine.step()
                spent.append(1e6 * engine.stats.seconds["schedule"])
            found[name] = median(sorted(spent)[: STEPS // 2])  # a busy machine only adds
    return found


def compare(against: str | None, rounds: int) -> dict[str, dict[str, float]]:
    """The least of some rounds; another checkout runs in a process of its own, as this one does then."""
    here = Path(__file__).resolve()
    trees = {"this": here.parent.parent} | ({} if against is None else {"against": Path(against).resolve()})
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, tree in trees.items():
            for scheduling in ("fair", "fcfs") if name == "this" else ("as it was",):
                command = [sys.executable, str(here), "--cost-of", scheduling]
                out = subprocess.run(
                    command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, check=True
                )
                found.setdefault(scheduling, []).append(json.loads(out.stdout))
    return {way: {part: min(one[part] for one in ones) for part in ones[0]} for way, ones in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--length", type=int, default=64, help="tokens of each answer of the greedy one")
    parser.add_argument("--tiny", action="store_true", help="a small model with random weights")
    parser.add_argument("--cost", action="store_true", help="the scheduler's part of a step instead")
    parser.add_argument("--against", metavar="FOLDER", help="another checkout, for --cost")
    parser.add_argument("--cost-of", metavar="ORDER", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="numbers instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost_of:
        print(json.dumps(cost(options.cost_of)))
    elif options.cost:
        for way, parts in compare(options.against, options.rounds).items():
            print(f"{way}: " + ", ".join(f"{part} {spent:.0f} us" for part, spent in parts.items()))
    else:
        numbers = measure(tiny() if options.tiny else embedded(), options.rounds, options.length)
        print(json.dumps(numbers, indent=1) if options.json else table(numbers))


if __name__ == "__main__":
    main()
