"""vLLM alone, on the rows of benchmarks/gpu_engine.py: the same shape of model, prompts, answers and clock.

Quire has no part in it: these are the numbers that its own engine is held against.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import Any

from benchmarks.vllm_gpu.engines import SHAPES, Tokens, ask, asked, engine, leave, make_model, prompt, tell

MODEL = "1b-wide"
VOCABULARY: int = SHAPES[MODEL]["vocab_size"]
CAPTURED = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256]


def seconds(llm: Any, prompts: list[Tokens], sampling: Any) -> float:
    """Until all are answered."""
    began = time.perf_counter()
    llm.generate(asked(prompts), sampling, use_tqdm=False)
    return time.perf_counter() - began


def decode(llm: Any, dice: random.Random, times: int) -> None:
    """Prompts of 128 tokens, answers of 256; the median of the runs behind a warm-up."""
    for count in (1, 32, 128, 256):
        took = [seconds(llm, [prompt(dice, 128, VOCABULARY) for _ in range(count)], ask(256)) for _ in range(1 + times)]
        tell(anchor="decode", sequences=count, tokens_per_s=round(count * 256 / median(took[1:])))


def shared(llm: Any, dice: random.Random, times: int) -> None:
    """16 sequences with 6,000 tokens in common and 50 of their own."""
    common, took = prompt(dice, 6000, VOCABULARY), []
    for _ in range(1 + times):
        took.append(seconds(llm, [common + prompt(dice, 50, VOCABULARY) for _ in range(16)], ask(256)))
    tell(anchor="16 at 6,000 in common", tokens_per_s=round(16 * 256 / median(took[1:])))
    whole, prompts = [
        median(
            [seconds(llm, [prompt(dice, 6000, VOCABULARY) for _ in range(16)], ask(n)) for _ in range(1 + times)][1:]
        )
        for n in (256, 1)
    ]
    tell(
        anchor="16 at 6,000 of their own", tokens_per_s=round(16 * 256 / whole),
        decoding_per_s=round(16 * 255 / max(whole - prompts, 1e-9)), prompts_ms=round(prompts * 1e3, 1),
    )  # fmt: skip


def first_token(llm: Any, dice: random.Random, times: int) -> None:
    """8,000 tokens: never seen, and again."""
    new = [seconds(llm, [prompt(dice, 8000, VOCABULARY)], ask(1)) for _ in range(1 + times)]
    text = prompt(dice, 8000, VOCABULARY)
    cached = [seconds(llm, [text], ask(1)) for _ in range(2 + times)]
    tell(anchor="first token", new_ms=round(median(new[1:]) * 1e3, 1), cached_ms=round(median(cached[2:]) * 1e3, 1))


def mix(llm: Any, times: int) -> None:
    """256 requests of 100 to 1,024 tokens in and out, seed 0."""
    dice = random.Random(0)
    prompts = [[dice.randint(3, 10_000) for _ in range(dice.randint(100, 1024))] for _ in range(256)]
    outputs = [dice.randint(100, 1024) for _ in range(256)]
    for temperature in (0.6, 0.0):
        took = []
        for _ in range(times):
            took.append(seconds(llm, prompts, [ask(count, temperature=temperature) for count in outputs]))
            llm.reset_prefix_cache()
        tell(anchor="mix", temperature=temperature, tokens_per_s=round(sum(outputs) / median(took)))


def main() -> None:
    """One engine, all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["graph", "default"], default="graph", help="default: torch.compile too")
    parser.add_argument("--backend", help="of attention (default: vLLM's choice)")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    began = time.time()
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": CAPTURED}
    llm = engine(
        make_model(MODEL, dummy=True), mode="default", attention_backend=args.backend, load_format="dummy",
        gpu_memory_utilization=0.6, max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=8192,
        compilation_config=graphs if args.mode == "graph" else None,
    )  # fmt: skip
    tell(anchor="start", mode=args.mode, seconds=round(time.time() - began, 1))
    dice = random.Random(1)
    decode(llm, dice, args.times)
    shared(llm, dice, args.times)
    first_token(llm, dice, args.times)
    mix(llm, args.times)
    leave()


if __name__ == "__main__":
    main()
