"""A step in the model: our forward beside transformers' own code, over the same weights, in one run.

    python benchmarks/forward.py              # the embedded SmolLM2-135M, one thread of the CPU, a minute
    python benchmarks/forward.py --model FOLDER --device cuda --dtype bfloat16

Rounds alternate; the least of all is compared. On the CPU it is processor time of one thread, so that other jobs on
the machine count little; on a GPU the time until the device is done.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from quire.engine import Engine, EngineConfig, Sampling, load
from quire.engine.model import smollm2

WAYS = ("transformers", "own")
ROWS = ((1, 32), (8, 32), (32, 32), (1, 512))  # requests, and tokens of each prompt
ANSWER = 12  # tokens
CONFIG = EngineConfig(600, block_size=16, max_num_tokens=2048, max_sequences=32, max_length=1024)


def measured(engine: Engine, times: list[tuple[int, float]]) -> Callable[[Any], Any]:
    """The engine's forward, that notes how many tokens a step had and how long it took."""
    run, gpu = engine._run, engine.model.device.type == "cuda"
    clock = time.perf_counter if gpu else time.thread_time

    def one(packed: Any) -> Any:
        begun = clock()
        logits = run(packed)
        if gpu:
            torch.cuda.synchronize()
        times.append((packed.num_tokens, clock() - begun))
        return logits

    return one


def play(engine: Engine, requests: int, length: int, seed: int) -> None:
    """Prompts of random tokens, computed and answered together."""
    rng = np.random.default_rng(seed)
    for _ in range(requests):
        engine.submit(rng.integers(100, 1000, length).tolist(), Sampling(max_tokens=ANSWER, ignore_eos=True))
    engine.drain()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder; the embedded model if none is named")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    folder = options.model or smollm2.folder()
    times: dict[str, list[tuple[int, float]]] = {way: [] for way in WAYS}
    engines = {}
    for way in WAYS:
        engines[way] = Engine(load(folder, device=options.device, dtype=options.dtype, forward=way), CONFIG)
        engines[way]._run = measured(engines[way], times[way])  # type: ignore[method-assign, assignment]
    least: dict[tuple[str, int, int, str], float] = defaultdict(lambda: float("inf"))
    for nth in range(options.rounds):
        for requests, length in ROWS:
            for way in WAYS:
                times[way].clear()
                play(engines[way], requests, length, seed=nth)
                for tokens, spent in times[way]:
                    kind = "decode" if tokens == requests else "prompt"
                    least[way, requests, length, kind] = min(least[way, requests, length, kind], 1e3 * spent)
    print(f"{'step':<32}{'transformers, ms':>18}{'own, ms':>12}{'own / theirs':>14}")
    for requests, length in ROWS:
        for kind, words in (("prompt", f"{requests} prompts of {length}"), ("decode", f"decoding {requests}")):
            theirs, ours = (least[way, requests, length, kind] for way in WAYS)
            print(f"{words:<32}{theirs:>18.1f}{ours:>12.1f}{ours / theirs:>14.2f}")


if __name__ == "__main__":
    main()
