"""Time to first token: a prompt with 2,000 tokens that another has had before, computed and reused, on a real model.

    python benchmarks/engine_ttft.py            # the embedded SmolLM2-135M on the CPU, about a minute
    OMP_NUM_THREADS=1 python benchmarks/engine_ttft.py --json    # on a busy machine threads wait for each other

Each round is a scope of its own, so its first prompt finds nothing; the second shares the prefix and asks something
else. Then eight answers are decoded together. Besides the times: which part of a step is not the model's.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

from quire import Scope
from quire.cli.demo.demo_model import STORY
from quire.engine import Engine, EngineConfig, Model, Sampling, Stats, load
from quire.engine.model import smollm2

PREFIX = 2_000  # tokens
ANSWERS, LENGTH = 8, 32  # decoded together
SUFFIXES = (
    " What is the name of the dog, and what is it afraid of when it hides?",
    " Who brings the bread on Thursday, and what else is in the blue boat?",
)
AROUND = ("schedule", "moves", "pack", "advance")  # parts of a step that are not the model


def prompts(model: Model) -> list[list[int]]:
    """The same 2,000 tokens with different endings."""
    words = model.tokenizer
    prefix = (words(STORY)["input_ids"] * 8)[:PREFIX]
    return [prefix + words(suffix)["input_ids"] for suffix in SUFFIXES]


def first_token(engine: Engine, tokens: list[int], scope: Scope) -> tuple[float, int]:
    """Seconds until it came, and prompt tokens that were not computed."""
    run = engine.submit(tokens, Sampling(max_tokens=1), scope=scope)
    engine.drain()
    return run.time_to_first_token, run.reused


def around(stats: Stats) -> dict[str, float]:
    """Milliseconds per step by part, and the share of everything that is not the model."""
    parts = {part: 1e3 * spent / stats.num_steps for part, spent in stats.seconds.items()}
    outside = sum(parts[part] for part in AROUND)
    return {**parts, "share": outside / (outside + parts["model"])}


def measure(rounds: int) -> dict[str, Any]:
    """Every number of a run."""
    model = load(smollm2.folder())
    numbers: dict[str, Any] = {"prefix_tokens": PREFIX, "rounds": []}
    with Engine(model, EngineConfig((rounds + 2) * 160, max_length=4096)) as engine:
        engine.warm_up()
        cold, warm = prompts(model)
        for nth in range(rounds):
            (computed, none), (reused, found) = (first_token(engine, one, Scope(salt=nth)) for one in (cold, warm))
            assert none == 0 and found >= PREFIX
            row = {"cold_s": computed, "reused_s": reused, "times": computed / reused, "reused_tokens": found}
            numbers["rounds"].append(row)
        numbers["prompts_ms_per_step"] = around(engine.stats)
        engine.stats = Stats()
        for nth in range(ANSWERS):
            engine.submit(warm[-40 - nth :], Sampling(max_tokens=LENGTH, ignore_eos=True))
        engine.drain()
        numbers["decode_ms_per_step"] = around(engine.stats)
    numbers["times_sooner"] = median(row["times"] for row in numbers["rounds"])
    return numbers


def table(numbers: dict[str, Any]) -> str:
    """As Markdown."""
    lines = ["| round | computed, s | reused, s | times sooner | tokens reused |", "|---|---|---|---|---|"]
    for nth, row in enumerate(numbers["rounds"], start=1):
        times = f"{row['cold_s']:.2f} | {row['reused_s']:.3f} | {row['times']:.1f}"
        lines.append(f"| {nth} | {times} | {row['reused_tokens']:,} |")
    lines += ["", f"The first token after {PREFIX:,} shared ones: {numbers['times_sooner']:.1f} times sooner (median)"]
    parts = ("schedule", "moves", "pack", "model", "advance")
    lines += ["", f"| ms per step | {' | '.join(parts)} | not the model |", f"|---|{'---|' * len(parts)}---|"]
    for name, key in (("prompts", "prompts_ms_per_step"), (f"decoding {ANSWERS}", "decode_ms_per_step")):
        cells = " | ".join(f"{numbers[key][part]:.2f}" for part in parts)
        lines.append(f"| {name} | {cells} | {numbers[key]['share']:.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="numbers instead of a table")
    options = parser.parse_args()
    numbers = measure(options.rounds)
    print(json.dumps(numbers, indent=1) if options.json else table(numbers))


if __name__ == "__main__":
    main()
