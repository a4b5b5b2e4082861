"""One configuration: time to the first token (new, in vLLM's own cache, from the host) and throughput. Medians."""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import time
from typing import Any

from benchmarks.vllm_gpu.engines import (
    SHAPES,
    Tokens,
    ask,
    asked,
    engine,
    leave,
    make_model,
    prompt,
    quire_counts,
    settle,
    tell,
    transfer_config,
)
from benchmarks.vllm_gpu.step_times import step_times

LONG = 65536  # tokens: a prompt that takes seconds to compute, so that few new ones are


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="8b")
    parser.add_argument("--connector", choices=["none", "quire", "offload"], default="none")
    parser.add_argument("--backend")
    parser.add_argument("--mode", choices=["eager", "graph", "default"], default="graph")
    parser.add_argument("--host-gb", type=float, default=24.0)
    parser.add_argument("--lengths", type=numbers, default=[2048, 8192, 32768, 131072])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--load", type=numbers, default=[64, 2048, 128], help="requests, prompt, output; 0: none")
    parser.add_argument("--load-trials", type=int, default=3)
    parser.add_argument(
        "--all-blocks", action="store_true", help="vLLM's connector keeps generated tokens, as Quire does"
    )
    parser.add_argument("--steps", action="store_true", help="the steps until a first token, and the hooks' share")
    parser.add_argument("--utilization", type=float, default=0.8)
    parser.add_argument("--batched", type=int, default=8192)
    return parser


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def make_room(size: float) -> None:
    """vLLM's host memory lies in /dev/shm, which is small in some containers."""
    if shutil.disk_usage("/dev/shm").total < size * 1.1:
        done = subprocess.run(["mount", "-o", f"remount,size={int(size * 1.3)}", "/dev/shm"], check=False)
        print("/dev/shm was too small;", "it could not be made larger" if done.returncode else "it is larger now")


class Bench:
    """One engine, and what is measured on it."""

    def __init__(self, args: argparse.Namespace) -> None:
        begin, more = time.time(), {}
        if args.all_blocks and args.connector == "offload":
            more["offload_prompt_only"] = False
        self.args, self.rng = args, random.Random(11)
        self.llm = engine(
            make_model(args.model, dummy=True), mode=args.mode, attention_backend=args.backend,
            connector=transfer_config(args.connector, int(args.host_gb * 1e9), more), load_format="dummy",
            gpu_memory_utilization=args.utilization, max_model_len=max(*args.lengths, sum(args.load[1:])) + 64,
            max_num_seqs=64, max_num_batched_tokens=args.batched,
        )  # fmt: skip
        tell(perf=args.model, connector=args.connector, mode=args.mode, start_s=round(time.time() - begin, 1))

    def prompt(self, length: int) -> Tokens:
        return prompt(self.rng, length, SHAPES[self.args.model]["vocab_size"])

    def first_token(self, text: Tokens) -> tuple[float, int]:
        """Seconds, and how many tokens were cached."""
        begin = time.perf_counter()
        (out,) = self.llm.generate(asked([text]), ask(1), use_tqdm=False)
        took = time.perf_counter() - begin
        settle(self.llm)
        return took, out.num_cached_tokens

    def first_tokens(self, length: int) -> None:
        """A new prompt, one that vLLM's own cache has, and one that only the host has."""
        trials, text = self.args.trials, self.prompt(length)
        self.first_token(self.prompt(length))  # kernels are made, allocators are warm
        new = [self.first_token(self.prompt(length)) for _ in range(trials if length < LONG else 1)]
        self.tell_first(length, "new prompt", new)
        self.first_token(text)
        self.tell_first(length, "vLLM's own cache", [self.first_token(text) for _ in range(trials)])
        self.tell_steps(length, "vLLM's own cache", text)
        if self.args.connector == "none":
            return
        found = []
        for _ in range(trials + 1):
            self.llm.reset_prefix_cache()
            found.append(self.first_token(text))
        self.tell_first(length, "from the host", found[1:])
        self.llm.reset_prefix_cache()
        self.tell_steps(length, "from the host", text)

    def tell_steps(self, length: int, kind: str, text: Tokens) -> None:
        """One more first token, step by step."""
        if self.args.steps:
            with step_times(self.llm) as times:
                self.llm.generate(asked([text]), ask(1), use_tqdm=False)
            tell(steps=length, connector=self.args.connector, kind=kind, ms=times.steps, hooks=times.hooks)
            settle(self.llm)

    def tell_first(self, length: int, kind: str, found: list[tuple[float, int]]) -> None:
        times = [1e3 * took for took, _ in found]
        tell(
            ttft=length, connector=self.args.connector, kind=kind, cached=min(had for _, had in found),
            median_ms=round(statistics.median(times), 1), least_ms=round(min(times), 1),
            most_ms=round(max(times), 1), n=len(times),
        )  # fmt: skip

    def load(self) -> None:
        """Many requests at once: new prompts each time, then the same again, which the device has no more."""
        count, length, output = self.args.load
        runs = []
        for _ in range(self.args.load_trials + 1):
            texts = asked([self.prompt(length) for _ in range(count)])
            runs.append(self.loaded(texts, output))
        self.tell_load("new prompts", runs[1:])
        self.tell_load("prompts come back", [self.loaded(texts, output) for _ in range(self.args.load_trials)])

    def loaded(self, texts: list[dict[str, Tokens]], output: int) -> tuple[float, int]:
        """Seconds, and how many tokens were cached, from an empty cache on the device."""
        self.llm.reset_prefix_cache()
        begin = time.perf_counter()
        outs = self.llm.generate(texts, ask(output), use_tqdm=False)
        took = time.perf_counter() - begin
        settle(self.llm)
        return took, sum(one.num_cached_tokens for one in outs)

    def tell_load(self, kind: str, runs: list[tuple[float, int]]) -> None:
        count, length, output = self.args.load
        rates = sorted(count * output / took for took, _ in runs)
        tell(
            load=self.args.load, connector=self.args.connector, kind=kind, all_blocks=self.args.all_blocks,
            cached=runs[-1][1], of=count * length, tokens_per_s=round(statistics.median(rates), 1),
            spread=[round(rate, 1) for rate in rates],
        )  # fmt: skip


def main() -> None:
    args: Any = options().parse_args()
    if args.connector != "none":
        make_room(args.host_gb * 1e9)
    bench = Bench(args)
    for length in args.lengths:
        bench.first_tokens(length)
    if len(args.load) == 3:
        bench.load()
    tell(perf=args.model, connector=args.connector, counts=quire_counts(bench.llm), done=True)
    leave()


if __name__ == "__main__":
    main()
