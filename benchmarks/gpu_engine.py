"""The bundled engine on one GPU: tokens per second, first tokens, where a step's time goes.

    python -m benchmarks.gpu_engine                       # all rows, with graphs and overlap
    python -m benchmarks.gpu_engine --rows decode --graphs off --no-overlap --profile

A Llama of 1.1 B parameters with random weights in bf16: 16 layers, 2,048 wide, 32 heads over 8 KV heads, vocabulary
32,000. Prompts are random tokens; every answer has its full length. A row is the median of --times runs behind a
warm-up, as `drive anchor --times 5` has it for vLLM. `--tiny` runs all of it on a processor in seconds, to try it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
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


def modules(layers: int, tiny: bool = False) -> Any:
    """Random weights, the same each time; what they are does not matter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, inner, heads, kv_heads, dim = (32, 64, 4, 2, 8) if tiny else (2048, 8192, 32, 8, 64)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=dim, vocab_size=VOCABULARY, max_position_embeddings=131_072,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cpu" if tiny else "cuda"):
        torch.set_default_dtype(torch.float32 if tiny else torch.bfloat16)
        module = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    return module


def finish_kernels() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Gaps:
    """Time in which the GPU had computed all that it was given: from a step's last kernel to the next one's first.

    What it waits inside a step that is launched kernel by kernel is not counted. On a processor: time between steps.
    """

    def __init__(self, engine: Engine) -> None:
        self._launch, self._on_gpu = engine.in_flight.launch, engine.model.device.type == "cuda"
        self._marks: list[Any] = []
        setattr(engine.in_flight, "launch", self._marked)  # noqa: B010

    def _mark(self) -> None:
        if not self._on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def _marked(self, *parts: Any) -> None:
        self._mark()
        self._launch(*parts)
        self._mark()

    def _between(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second) / 1e3 if self._on_gpu else second - first)

    def share(self) -> float:
        """Of the time from the first step to the last."""
        finish_kernels()
        gaps = sum(map(self._between, self._marks[1:-1:2], self._marks[2::2]))
        return gaps / self._between(self._marks[0], self._marks[-1])


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
        finish_kernels()
        began = time.perf_counter()
        for prompt, sampling in zip(prompts, samplings, strict=True):
            self.engine.submit(prompt, sampling)
        self.engine.drain()
        finish_kernels()
        return time.perf_counter() - began

    def median(self, make: Callable[[], tuple[Sequence[list[int]], Sequence[Sampling]]]) -> float:
        """Seconds of some runs, in the median; one before them warms up."""
        self.seconds(*make())
        self.where()
        return median(self.seconds(*make()) for _ in range(self.times))

    def where(self) -> str:
        """Milliseconds per step since the last call, by part."""
        stats = self.engine.stats
        parts = {name: spent / max(1, stats.num_steps) * 1e3 for name, spent in stats.seconds.items()}
        stats.seconds.clear()
        text = ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
        steps, stats.num_steps = stats.num_steps, 0
        return f"{steps} steps, ms each: {text}"

    def short(self, count: int, samplings: list[Sampling]) -> tuple[list[list[int]], list[Sampling]]:
        """Prompts of 128 tokens."""
        return [self.prompt(128) for _ in range(count)], samplings

    def decode(self, counts: Sequence[int], output: int) -> None:
        """Prompts of 128 tokens."""
        for count in counts:
            sampling = [Sampling(max_tokens=output, ignore_eos=True)] * count
            took = self.median(partial(self.short, count, sampling))
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

    def shared(self, count: int = 16, length: int = 6_000, output: int = 256) -> None:
        """Sequences with 6,000 tokens in common and 50 of their own; and of which each has 6,000 of its own.

        Of the latter also what decoding alone takes: less what the same prompts take for one token each.
        """
        common, sampling = self.prompt(length), [Sampling(max_tokens=output, ignore_eos=True)] * count
        took = self.median(lambda: ([common + self.prompt(50) for _ in range(count)], sampling))
        print(f"{count} at {length:,} in common: {count * output / took:8.0f} tokens/s   {self.where()}", flush=True)
        took = self.median(lambda: ([self.prompt(length) for _ in range(count)], sampling))
        steps, one = self.where(), [Sampling(max_tokens=1, ignore_eos=True)] * count
        prompts = self.median(lambda: ([self.prompt(length) for _ in range(count)], one))
        self.where()
        decoding = count * (output - 1) / max(took - prompts, 1e-9)
        print(
            f"{count} at {length:,} of their own: {count * output / took:8.0f} tokens/s, decoding {decoding:8.0f}, "
            f"prompts {prompts * 1e3:.1f} ms   {steps}", flush=True,
        )  # fmt: skip

    def first(self, length: int = 8_000) -> None:
        """First token of 8,000: never seen, and again."""
        one = [Sampling(max_tokens=1, ignore_eos=True)]
        new = self.median(lambda: ([self.prompt(length)], one))
        text = self.prompt(length)
        cached = self.median(lambda: ([text], one))
        print(
            f"first token of {length:,}: new {new * 1e3:.1f} ms, cached {cached * 1e3:.1f} ms   {self.where()}",
            flush=True,
        )  # fmt: skip

    def mix(self, count: int = 256, least: int = 100, most: int = 1024) -> None:
        """256 requests of 100 to 1,024 tokens in and out, temperature 0.6, seed 0."""
        dice = random.Random(0)
        prompts = [[dice.randint(3, 10_000) for _ in range(dice.randint(least, most))] for _ in range(count)]
        outputs = [dice.randint(least, most) for _ in range(count)]
        for temperature in (0.6, 0.0):
            samplings = [Sampling(max_tokens=n, ignore_eos=True, temperature=temperature, seed=n) for n in outputs]
            self.where()
            seconds = []
            for _ in range(self.times):
                seconds.append(self.seconds([[*one] for one in prompts], samplings))
                self.engine.cache.clear()
            took = median(seconds)
            print(f"mix, temperature {temperature}: {sum(outputs) / took:8.0f} tokens/s   {self.where()}", flush=True)


def host(made: Any, times: int, length: int = 8_000, rest: float = 10) -> None:
    """First token of 8,000 whose pages are in host memory, since others have pushed them out."""
    pages, step = length * 11 // 160, length + length // 40  # of 16 tokens: two such prompts do not fit
    config = EngineConfig(
        pages, 2 * pages, block_size=16, max_num_tokens=step, max_sequences=8, max_length=step + 256, eviction="lru"
    )
    with Engine(made, config) as engine:
        engine.warm_up()
        time.sleep(rest)  # host memory is pinned meanwhile
        bench = Bench(engine, times, False)
        one, text, took = [Sampling(max_tokens=1, ignore_eos=True)], bench.prompt(length), []
        bench.seconds([text], one)
        for _ in range(1 + times):
            bench.seconds([bench.prompt(length)], one)
            bench.seconds([bench.prompt(length)], one)
            took.append(bench.seconds([text], one))
        counts = engine.cache.stats()
        megabytes = length // 16 * engine.cache.config.groups[0].page_bytes / 1e6
        middle = median(took[1:])
        print(
            f"first token of {length:,} from host memory: {middle * 1e3:.1f} ms for {megabytes:.0f} MB "
            f"({megabytes / middle / 1e3:.1f} GB/s with all around it), {counts.onboarded} pages brought up",
            flush=True,
        )  # fmt: skip


def sample(made: Any, count: int = 1_000, share: int = 1, rest: float = 30) -> None:
    """The 1,000 recorded requests that ship with Quire, scaled down, 64 at a time. `share`: of answers and memory."""
    trace = read_trace("sample")
    dice = np.random.default_rng(2)
    blocks = dice.integers(3, VOCABULARY, (1 + max(int(one.parts.max()) for one in trace), 512 // SCALE // share))
    few = list(trace)[:count]
    prompts = [
        [int(token) for token in blocks[one.parts].reshape(-1)[: max(1, one.length // SCALE // share)]] for one in few
    ]
    outputs = [max(1, one.output // 2 // share) for one in few]
    total = sum(map(len, prompts)) + sum(outputs)
    for name, (device, below, reuse) in MEMORY.items():
        config = EngineConfig(
            device // share, below // share, block_size=16, max_num_tokens=4096, max_sequences=64,
            max_length=min(16_384, 16 * device // share), reuse=reuse,
        )  # fmt: skip
        with Engine(made, config) as engine:
            engine.warm_up()
            if below:
                time.sleep(rest)  # host memory is pinned meanwhile
            gaps = Gaps(engine)
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
                f"prompts reused; steps p50 {marks[0]:.2f}, p95 {marks[1]:.2f}, p99 {marks[2]:.2f} ms; "
                f"{gaps.share():.1%} of the time the GPU had nothing to do", flush=True,
            )  # fmt: skip


def tiny_rows(made: Any) -> None:
    """Every row on a processor, far smaller: its numbers say nothing."""
    config = EngineConfig(400, block_size=16, max_num_tokens=512, max_sequences=8, max_length=256)
    with Engine(made, config) as engine:
        bench = Bench(engine, 2, False)
        bench.decode([1, 3], 4)
        bench.shared(3, 64, 4)
        bench.first(160)
        bench.mix(4, 3, 9)
    host(made, 2, 640, 0)
    sample(made, 12, 32, 0)


def main() -> None:
    """Make an engine and print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--counts", nargs="*", type=int, default=[1, 32, 128, 256])
    parser.add_argument("--output", type=int, default=256, help="tokens of each answer when decoding")
    parser.add_argument("--graphs", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--times", type=int, default=5, help="runs behind the warm-up, of which the median counts")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="all rows in seconds on a processor, to try them")
    options = parser.parse_args()
    if options.tiny:
        tiny_rows(from_module(modules(2, tiny=True)))
    else:
        run_rows(options)


def run_rows(options: argparse.Namespace) -> None:
    """The rows asked for."""
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
