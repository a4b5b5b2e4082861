"""Where the bundled engine and transformers part in bf16, on one GPU: every greedy token, and how near a tie it was.

    python -m benchmarks.gpu_divergence [--prompts 64] [--output 128]

The model is that of gpu_engine.py. Each answer of the engine (graphs, overlap, shared prompts) is read once by
transformers' own modules, in bf16 as well: a token that they would not have chosen is a divergence, and its gap is how
much higher their choice is, in steps of bf16 at that height (ulp). `control` asks the same of transformers against
itself: answers of `generate` with its cache, read by one forward.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_engine import VOCABULARY, modules
from quire.engine import Engine, EngineConfig, Sampling, from_module

CONTROLS = 8  # prompts that transformers answers itself


def gaps(module: Any, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """Of each token that the modules would not have chosen: how far it is behind their choice, in ulp."""
    text = torch.tensor([[*prompt, *answer[:-1]]], device="cuda")
    with torch.inference_mode():
        logits = module(text, use_cache=False, logits_to_keep=len(answer)).logits[0].double()
    chosen = logits.gather(1, torch.tensor(answer, device="cuda")[:, None])[:, 0]
    highest = logits.max(1).values
    ulp = 2.0 ** (torch.floor(torch.log2(highest.abs())) - 7)
    return [float(gap) for gap in ((highest - chosen) / ulp).tolist() if gap > 0]


def tell(what: str, count: int, found: Sequence[float]) -> None:
    """One line."""
    marks = np.percentile(found, [50, 99, 100]) if found else np.zeros(3)
    print(
        f"{what}: {count} tokens, {len(found)} not the modules' choice ({len(found) / count:.2%}); "
        f"gaps p50 {marks[0]:.1f}, p99 {marks[1]:.1f}, largest {marks[2]:.1f} ulp", flush=True,
    )  # fmt: skip


def main() -> None:
    """Answer, read, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    made, plain = from_module(modules(options.layers)), modules(options.layers)  # an engine's own modules are rewired
    dice = np.random.default_rng(5)
    common = dice.integers(3, VOCABULARY, 300).tolist()
    prompts = [
        common[: 300 * (nth % 2)] + dice.integers(3, VOCABULARY, int(dice.integers(20, 900))).tolist()
        for nth in range(options.prompts)
    ]
    with Engine(made, EngineConfig(20_000, block_size=16, max_num_tokens=4096, max_sequences=64)) as engine:
        sampling = Sampling(max_tokens=options.output, ignore_eos=True)
        runs = [engine.submit(prompt, sampling) for prompt in prompts]
        engine.drain()
        answers = [list(run.answers[0].tokens) for run in runs]
    found = [gap for prompt, answer in zip(prompts, answers, strict=True) for gap in gaps(plain, prompt, answer)]
    tell("engine", sum(map(len, answers)), found)
    wrong = [[*answer[:-1], (answer[-1] + 1) % VOCABULARY] for answer in answers]
    last = [max(gaps(plain, prompt, answer)) for prompt, answer in zip(prompts, wrong, strict=True)]
    print(f"a wrong last token: gaps from {min(last):.1f} ulp on, half above {np.median(last):.1f}", flush=True)
    found, count = [], 0
    for prompt in prompts[:CONTROLS]:
        with torch.inference_mode():
            text = plain.generate(torch.tensor([prompt], device="cuda"), max_new_tokens=options.output, do_sample=False)
        answer = text[0, len(prompt) :].tolist()
        found += gaps(plain, prompt, answer)
        count += len(answer)
    tell("control", count, found)


if __name__ == "__main__":
    main()
