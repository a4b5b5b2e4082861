"""The bundled engine on one GPU: tokens per second, first tokens, where a step's time goes.

    python -m benchmarks.gpu_engine                       # all rows, with graphs and overlap
    python -m benchmarks.gpu_engine --rows decode --graphs off --no-overlap --profile

A Llama of 1.1 B parameters with random weights in bf16: 16 layers, 2,048 wide, 32 heads over 8 KV heads, vocabulary
32,000. Prompts are random tokens; every answer has its full length. A row is the best of --times runs behind a warm-up.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from quire.engine import Engine, EngineConfig, Sampling, from_module
from quire.trace.read.trace import read_trace

VOCABULARY = 32_000
ROWS = ("decode", "shared", "first", "mix", "host", "sample")
SCALE = 8  # of the sample's prompts: a block of 512 tokens becomes one of 64
MEMORY = {  # of the sample: pages of 16 tokens on the device and in host memory, and whether anything is reused
    "no reuse": (4_000, 0, False), "reuse": (4_000, 0, True), "reuse, host memory": (4_000, 8_000, True),
}  # fmt: skip


def modules(layers: int) -> Any:
    """Random weights, the same each time; what they are does not matter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=VOCABULARY, max_position_embeddings=131_072,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        module = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    return module


class Bench:
    """One engine, and rows measured on it."""

    def __init__(self, engine: Engine, times: int, profile: bool) -> None:
        self.engine, self.times, self.profile = engine, times, profile
        self.dice = np.random.default_rng(1)

    def prompt(self, length: int) -> list[int]:
        """Random tokens."""
        return [int(token) for token in self.dice.integers(3, VOCABULARY, length)]

    def seconds(self, prompts: Sequence[list[int]], samplings: Sequence[Sampling]) -> float:
        """Until all are answered."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for prompt, sampling in zip(prompts, samplings, strict=True):
            self.engine.submit(prompt, sampling)
        self.engine.drain()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def best(self, make: Callable[[], tuple[Sequence[list[int]], Sequence[Sampling]]]) -> float:
        """Least seconds of some runs; the first warms up."""
        self.seconds(*make())
        return min(self.seconds(*make()) for _ in range(self.times))

    def where(self) -> str:
        """Milliseconds per step since the last call, by part."""
        stats = self.engine.stats
        parts = {name: spent / max(1, stats.num_steps) * 1e3 for name, spent in stats.seconds.items()}
        stats.seconds.clear()
        text = ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
        steps, stats.num_steps = stats.num_steps, 0
        return f"{steps} steps, ms each: {text}"

    def decode(self, counts: Sequence[int], output: int) -> None:
        """Prompts of 128 tokens."""
        for count in counts:
            sampling = [Sampling(max_tokens=output, ignore_eos=True)] * count
            self.seconds([self.prompt(128) for _ in range(count)], sampling)
            self.where()
            took = min(self.seconds([self.prompt(128) for _ in range(count)], sampling) for _ in range(self.times))
            print(f"decode {count:4d}: {count * output / took:8.0f} tokens/s   {self.where()}", flush=True)
            if self.profile:
                self.profiled(count)

    def profiled(self, count: int) -> None:
        """Kernels of 20 steps, by time."""
        sampling = Sampling(max_tokens=64, ignore_eos=True)
        for _ in range(count):
            self.engine.submit(self.prompt(128), sampling)
        for _ in range(30):
            self.engine.step()
        torch.cuda.synchronize()
        acts = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=acts) as seen:
            began = time.perf_counter()
            for _ in range(20):
                self.engine.step()
            torch.cuda.synchronize()
            took = time.perf_counter() - began
        kernels = [one for one in seen.key_averages() if one.device_type == torch.autograd.DeviceType.CUDA]
        kernels.sort(key=lambda one: -one.self_device_time_total)
        total = sum(one.self_device_time_total for one in kernels)
        idle = 1 - total / 1e6 / took
        print(f"   20 steps of {count}: {took / 20 * 1e3:.2f} ms each, kernels {total / 20e3:.2f} ms, idle {idle:.0%}")
        for one in kernels[:14]:
            print(f"   {one.self_device_time_total / 20e3:7.3f} ms {one.count / 20:6.1f} x  {one.key[:110]}")
        self.engine.drain()

    def shared(self) -> None:
        """16 sequences with 6,000 tokens in common and 50 of their own."""
        common, sampling = self.prompt(6000), [Sampling(max_tokens=256, ignore_eos=True)] * 16
        took = self.best(lambda: ([common + self.prompt(50) for _ in range(16)], sampling))
        print(f"16 at 6,000: {16 * 256 / took:8.0f} tokens/s   {self.where()}", flush=True)

    def first(self) -> None:
        """First token of 8,000: never seen, and again."""
        one = [Sampling(max_tokens=1, ignore_eos=True)]
        new = self.best(lambda: ([self.prompt(8000)], one))
        text = self.prompt(8000)
        cached = self.best(lambda: ([text], one))
        print(
            f"first token of 8,000: new {new * 1e3:.1f} ms, cached {cached * 1e3:.1f} ms   {self.where()}", flush=True
        )

    def mix(self) -> None:
        """256 requests of 100 to 1,024 tokens in and out, temperature 0.6, seed 0."""
        dice = random.Random(0)
        prompts = [[dice.randint(3, 10_000) for _ in range(dice.randint(100, 1024))] for _ in range(256)]
        outputs = [dice.randint(100, 1024) for _ in range(256)]
        for temperature in (0.6, 0.0):
            samplings = [Sampling(max_tokens=n, ignore_eos=True, temperature=temperature, seed=n) for n in outputs]
            self.where()
            took = self.seconds([[*one] for one in prompts], samplings)
            self.engine.cache.clear()
            print(f"mix, temperature {temperature}: {sum(outputs) / took:8.0f} tokens/s   {self.where()}", flush=True)


def host(made: Any, times: int) -> None:
    """First token of 8,000 whose pages are in host memory, since others have pushed them out."""
    config = EngineConfig(
        1_100, 2_200, block_size=16, max_num_tokens=8192, max_sequences=8, max_length=8448, eviction="lru"
    )
    with Engine(made, config) as engine:
        engine.warm_up()
        time.sleep(10)  # host memory is pinned meanwhile
        bench = Bench(engine, times, False)
        one, text, took = [Sampling(max_tokens=1, ignore_eos=True)], bench.prompt(8000), []
        bench.seconds([text], one)
        for _ in range(1 + times):
            bench.seconds([bench.prompt(8000)], one)
            bench.seconds([bench.prompt(8000)], one)
            took.append(bench.seconds([text], one))
        counts = engine.cache.stats()
        megabytes = 500 * engine.cache.config.groups[0].page_bytes / 1e6
        best = min(took[1:])
        print(
            f"first token of 8,000 from host memory: {best * 1e3:.1f} ms for {megabytes:.0f} MB "
            f"({megabytes / best / 1e3:.1f} GB/s with all around it), {counts.onboarded} pages brought up", flush=True,
        )  # fmt: skip


def sample(made: Any) -> None:
    """The 1,000 recorded requests that ship with Quire, scaled down, 64 at a time."""
    trace = read_trace("sample")
    dice = np.random.default_rng(2)
    blocks = dice.integers(3, VOCABULARY, (1 + max(int(one.parts.max()) for one in trace), 512 // SCALE))
    prompts = [[int(token) for token in blocks[one.parts].reshape(-1)[: max(1, one.length // SCALE)]] for one in trace]
    outputs = [max(1, one.output // 2) for one in trace]
    total = sum(map(len, prompts)) + sum(outputs)
    for name, (device, below, reuse) in MEMORY.items():
        config = EngineConfig(
            device, below, block_size=16, max_num_tokens=4096, max_sequences=64, max_length=16_384, reuse=reuse
        )
        with Engine(made, config) as engine:
            engine.warm_up()
            if below:
                time.sleep(30)  # host memory is pinned meanwhile
            runs = [
                engine.submit(prompt, Sampling(max_tokens=output, ignore_eos=True))
                for prompt, output in zip(prompts, outputs, strict=True)
            ]
            steps, began = [], time.perf_counter()
            while True:
                mark = time.perf_counter()
                if engine.step() is None:
                    break
                steps.append(1e3 * (time.perf_counter() - mark))
            took = time.perf_counter() - began
            reused, marks = sum(run.reused for run in runs), np.percentile(steps, [50, 95, 99])
            print(
                f"sample, {name}: {total / took:8.0f} tokens/s, {took:.1f} s, {reused / sum(map(len, prompts)):.1%} of "
                f"prompts reused; steps p50 {marks[0]:.2f}, p95 {marks[1]:.2f}, p99 {marks[2]:.2f} ms", flush=True,
            )  # fmt: skip


def main() -> None:
    """Make an engine and print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--counts", nargs="*", type=int, default=[1, 32, 128, 256])
    parser.add_argument("--output", type=int, default=256, help="tokens of each answer when decoding")
    parser.add_argument("--graphs", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    config = EngineConfig(
        40_000, block_size=16, max_num_tokens=8192, max_sequences=256, max_length=8448, graphs=options.graphs,
        overlap=options.overlap,
    )  # fmt: skip
    began = time.perf_counter()
    made = from_module(modules(options.layers))
    engine = Engine(made, config)
    engine.warm_up()
    print(f"{engine!r}, graphs {options.graphs}, overlap {options.overlap}: {time.perf_counter() - began:.1f} s")
    bench = Bench(engine, options.times, options.profile)
    if "decode" in options.rows:
        bench.decode(options.counts, options.output)
    for name in options.rows:
        if name in ("shared", "first", "mix"):
            getattr(bench, name)()
    engine.close()
    if "host" in options.rows:
        host(made, options.times)
    if "sample" in options.rows:
        sample(made)


if __name__ == "__main__":
    main()
