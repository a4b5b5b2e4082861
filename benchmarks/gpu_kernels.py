"""Kernels of the engine's forward on a GPU: python benchmarks/gpu_kernels.py [--heads 16 --kv-heads 8 --dim 128]

First each kernel is compared with its plain form over fresh random inputs (the run fails if one differs); then times:
medians of replayed CUDA graphs, with the bytes or operations that the task needs at least over that time. Under a
minute with compiling. `--sweep decode` and `--sweep prompt` time other tiles.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench_cudagraph

from quire.engine.model.forward.parts import RmsNorm, Rotary
from quire.engine.model.kernels import decoding as decode_file
from quire.engine.model.kernels import plain
from quire.engine.model.kernels import prompt as prompt_file
from quire.engine.model.kernels.decoding import decode, place_and_decode
from quire.engine.model.kernels.gates import gated
from quire.engine.model.kernels.heads import BySlot, ByTable, place_heads, turns
from quire.engine.model.kernels.norms import add_norm
from quire.engine.model.kernels.prompt import attend
from quire.engine.model.kernels.rules import Rule

CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BLOCK = 16
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")  # there: the interpreter, checks
DECODING = ((1, 200), (32, 250), (128, 250), (256, 250), (256, 400), (16, 6000), (1, 100_000))  # rows, tokens of each
PROMPTS = ((8192, 0), (2048, 6144), (512, 7500), (64, 8000), (1024, 0))  # tokens to compute, tokens before them


class Heads(NamedTuple):
    """What a model's attention looks like."""

    q: int
    kv: int
    dim: int


class Rows(NamedTuple):
    """Pages of one layer of two, and the way to them."""

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    starts: torch.Tensor


def rows_of(starts: list[int], heads: Heads, dtype: torch.dtype, room: int = 0) -> Rows:
    """Random pages for rows whose last token stands at `starts`, scattered; -1 is padding."""
    columns = [start // BLOCK + 1 for start in starts]
    slots = torch.randperm(sum(columns), device=DEVICE, dtype=torch.int32)
    pages = torch.randn(max(1, len(slots)), 2, 2, BLOCK, heads.kv, heads.dim, device=DEVICE, dtype=dtype)
    table = torch.full((len(starts), max(max(columns), room)), -1, dtype=torch.int32, device=DEVICE)
    for row, mine in enumerate(slots.split(columns)):
        table[row, : len(mine)] = mine
    return Rows(pages[:, 1, 0], pages[:, 1, 1], table, torch.tensor(starts, dtype=torch.int32, device=DEVICE))


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def same(name: str, ours: torch.Tensor, theirs: torch.Tensor, atol: float) -> None:
    """Compare, and say how near they are."""
    apart = (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0
    unequal = (ours != theirs).float().mean().item()
    print(f"  {name:<58} furthest apart {apart:9.2e}, unequal {100 * unequal:6.3f} %", flush=True)
    assert apart <= atol, f"{name}: {apart} > {atol}"


def check_attention(heads: Heads) -> None:
    """Both kernels of attention, in three dtypes, with windows and softcap, and shapes by chance."""
    for dtype, rule, splits in (
        (torch.bfloat16, Rule(heads.dim**-0.5), None),
        (torch.bfloat16, Rule(heads.dim**-0.5, 300, 30.0), 3),
        (torch.float16, Rule(heads.dim**-0.5), 4),
        (torch.float32, Rule(heads.dim**-0.5, 300), 2),
    ):
        starts = [*torch.randint(0, 3000, (6,)).tolist(), -1, 0, 15, 16]
        rows, q = rows_of(starts, heads, dtype, 400), randn(len(starts), heads.q, heads.dim, dtype=dtype)
        given = (q, rows.k, rows.v, rows.table, rows.starts)
        ours, wanted = decode(*given, rule=rule, splits=splits), plain.decode(*given, rule=rule)
        same(f"decode {str(dtype)[6:]} window {rule.window} softcap {rule.softcap}", ours, wanted, CLOSE[dtype])
    for dtype, rule in (
        (torch.bfloat16, Rule(heads.dim**-0.5)),
        (torch.bfloat16, Rule(heads.dim**-0.5, 300)),
        (torch.float32, Rule(heads.dim**-0.5)),
    ):
        counts = [*torch.randint(1, 700, (3,)).tolist(), 1, 129]
        starts = [*torch.randint(0, 900, (4,)).tolist(), 0]
        rows = rows_of([start + count - 1 for start, count in zip(starts, counts, strict=True)], heads, dtype)
        offsets = torch.tensor([0, *counts], device=DEVICE).cumsum(0).int()
        given = (randn(sum(counts), heads.q, heads.dim, dtype=dtype), rows.k, rows.v, rows.table, offsets)
        begins = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
        ours = attend(*given, begins, rule=rule, max_query=max(counts))
        wanted = plain.attend(*given, begins, rule=rule, max_query=max(counts))
        same(f"prompt {str(dtype)[6:]} window {rule.window}", ours, wanted, CLOSE[dtype])


def check_parts(heads: Heads, width: int) -> None:
    """What stands between two products: equal but for sums in another order."""
    frequencies = 1 / 500000 ** (torch.arange(0, heads.dim, 2, device=DEVICE) / heads.dim)
    for dtype, ulp in ((torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-7)):
        name = str(dtype)[6:]
        starts = [*torch.randint(0, 5000, (30,)).tolist(), -1, 131071]
        rows = rows_of([min(start, 6000) for start in starts], heads, dtype, 8192)
        rows.table[-1, -1] = rows.table[-1, 0]
        positions = torch.tensor(starts, device=DEVICE)
        angles = turns(positions, Rotary(frequencies, 1.0), dtype)
        wanted_angles = plain.turns(positions, Rotary(frequencies, 1.0), dtype)
        same(f"angles {name}", torch.cat(angles), torch.cat(wanted_angles), 4 * ulp)
        qkv = randn(len(starts), (heads.q + 2 * heads.kv) * heads.dim, dtype=dtype)
        for norm in (None, RmsNorm(1 + randn(heads.q + heads.kv, heads.dim, dtype=dtype), 1e-6)):
            where = ByTable(rows.table, positions.int())
            k, v = rows.k.clone(), rows.v.clone()
            wanted = plain.place_heads(qkv, wanted_angles, norm, k, v, where)
            real = positions >= 0
            ours = place_heads(qkv, angles, norm, rows.k, rows.v, where)
            what = "" if norm is None else " and norm"
            same(f"heads{what} {name}: queries", ours[real], wanted[real], 64 * ulp)
            same(f"heads{what} {name}: keys", rows.k, k, 64 * ulp)
            same(f"heads{what} {name}: values", rows.v, v, 0)
        check_both(heads, dtype, frequencies)
        near, wide = randn(33, width, dtype=dtype), randn(33, width, dtype=dtype)
        kinds = {"": RmsNorm(1 + randn(width, dtype=dtype), 1e-6)}
        kinds[", weight first"] = RmsNorm(1 + randn(width, dtype=torch.float32), 1e-6, scale_first=True)
        for what, norm in kinds.items():
            total, out = add_norm(near, wide, norm, norm if what else None)
            wanted_total, wanted = plain.add_norm(near, wide, norm, norm if what else None)
            same(f"sum and norm{what} {name}: sum", total, wanted_total, 64 * ulp if what else 0)
            same(f"sum and norm{what} {name}: norm", out, wanted, 128 * ulp)
        gate_up = 4 * randn(33, 2 * 1536, dtype=dtype)
        same(f"silu {name}", gated(gate_up, "silu"), plain.gated(gate_up, "silu"), 128 * ulp)
        same(f"gelu {name}", gated(gate_up, "gelu_tanh"), plain.gated(gate_up, "gelu_tanh"), 128 * ulp)


def check_both(heads: Heads, dtype: torch.dtype, frequencies: torch.Tensor) -> None:
    """Heads and attention in one launch: what it answers, and what it leaves in the pages."""
    starts = [*torch.randint(0, 3000, (6,)).tolist(), -1, 0, 15, 16]
    rows = rows_of(starts, heads, dtype, 200)
    qkv = randn(len(starts), (heads.q + 2 * heads.kv) * heads.dim, dtype=dtype)
    angles = plain.turns(rows.starts, Rotary(frequencies, 1.0), dtype)
    where, rule = ByTable(rows.table, rows.starts), Rule(heads.dim**-0.5, 1000)
    for norm in (None, RmsNorm(1 + randn(heads.q + heads.kv, heads.dim, dtype=dtype), 1e-6)):
        k, v = rows.k.clone(), rows.v.clone()
        wanted = plain.place_and_decode(qkv, angles, norm, k, v, where, rule=rule)
        ours = place_and_decode(qkv, angles, norm, rows.k, rows.v, where, rule=rule, splits=3)
        what = f"heads and decode {str(dtype)[6:]}{'' if norm is None else ' and norm'}"
        same(what, ours, wanted, CLOSE[dtype] * 2)
        same(f"{what}: keys", rows.k, k, 64 * (2.0**-7 if dtype == torch.bfloat16 else 2.0**-23))
        same(f"{what}: values", rows.v, v, 0)


def micros(act: Callable[[], object]) -> float:
    """Median microseconds of one call in a replayed graph."""
    return 1e3 * float(do_bench_cudagraph(act, rep=20, return_mode="median"))


def say_rate(name: str, took: float, amount: float, unit: str, beside: str = "") -> None:
    """A line of the table: amounts are bytes or operations."""
    rate = amount / took / 1e6
    print(f"  {name:<52}{took:>10.1f} us{rate if unit == 'TFLOP/s' else 1e3 * rate:>10.1f} {unit} {beside}", flush=True)


def time_decode(heads: Heads, room: int = 0) -> None:
    """Attention of single tokens; bytes are K and V read once."""
    for rows, tokens in DECODING:
        memory = rows_of([tokens - 1] * rows, heads, torch.bfloat16, room)
        q, rule = randn(rows, heads.q, heads.dim), Rule(heads.dim**-0.5)
        took = micros(lambda: decode(q, memory.k, memory.v, memory.table, memory.starts, rule=rule))  # noqa: B023
        say_rate(f"decode {rows} x {tokens}", took, 4.0 * rows * tokens * heads.kv * heads.dim, "GB/s")
        qkv = randn(rows, (heads.q + 2 * heads.kv) * heads.dim)
        angles, where = (randn(rows, heads.dim // 2),) * 2, ByTable(memory.table, memory.starts)
        took = micros(lambda: place_and_decode(qkv, angles, None, memory.k, memory.v, where, rule=rule))  # noqa: B023
        say_rate(f"heads and decode {rows} x {tokens}", took, 4.0 * rows * tokens * heads.kv * heads.dim, "GB/s")
    lengths = [*[200] * 60, *[8000] * 4]
    memory, q = rows_of(lengths, heads, torch.bfloat16, room), randn(64, heads.q, heads.dim)
    took = micros(lambda: decode(q, memory.k, memory.v, memory.table, memory.starts, rule=rule))
    say_rate("decode 60 x 200 and 4 x 8000", took, 4.0 * sum(lengths) * heads.kv * heads.dim, "GB/s")


def time_prompts(heads: Heads) -> None:
    """Attention of prompts beside torch's own over keys and values without pages."""
    for count, before in PROMPTS:
        memory = rows_of([before + count - 1], heads, torch.bfloat16)
        q = randn(count, heads.q, heads.dim)
        offsets = torch.tensor([0, count], dtype=torch.int32, device=DEVICE)
        starts = torch.tensor([before], dtype=torch.int32, device=DEVICE)
        given, rule = (q, memory.k, memory.v, memory.table, offsets, starts), Rule(heads.dim**-0.5)
        took = micros(lambda: attend(*given, rule=rule, max_query=count))  # noqa: B023
        work = 4.0 * heads.q * heads.dim * (count * before + count * (count + 1) / 2)
        theirs = _theirs(heads, count, before)
        beside = f"torch {theirs:.1f} us, ours at {100 * theirs / took:.0f} % of its rate"
        say_rate(f"prompt of {count} behind {before}", took, work, "TFLOP/s", beside)


def _theirs(heads: Heads, count: int, before: int) -> float:
    """torch's flash attention of the same queries; masked at the right end."""
    from torch.nn.attention.bias import causal_lower_right

    q = randn(1, heads.q, count, heads.dim)
    k, v = (randn(1, heads.q, before + count, heads.dim) for _ in range(2))
    if not before:
        return micros(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    mask = causal_lower_right(count, before + count)
    return micros(lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask))


def time_parts(heads: Heads, width: int) -> None:
    """What stands between two products; bytes are inputs and outputs once."""
    inner, every = 3 * width, (heads.q + 2 * heads.kv) * heads.dim
    frequencies = 1 / 500000 ** (torch.arange(0, heads.dim, 2, device=DEVICE) / heads.dim)
    for rows in (1, 32, 256, 8192):
        near, wide, gate_up, qkv = randn(rows, width), randn(rows, width), randn(rows, 2 * inner), randn(rows, every)
        norm = RmsNorm(randn(width), 1e-6)
        took, eager = micros(lambda: add_norm(near, wide, norm)), micros(lambda: plain.add_norm(near, wide, norm))  # noqa: B023
        say_rate(f"sum and norm of {rows}", took, 8.0 * near.numel(), "GB/s", f"in torch {eager:.1f} us")
        took, eager = micros(lambda: gated(gate_up, "silu")), micros(lambda: plain.gated(gate_up, "silu"))  # noqa: B023
        say_rate(f"silu of {rows}", took, 3.0 * gate_up.numel(), "GB/s", f"in torch {eager:.1f} us")
        positions = torch.arange(rows, device=DEVICE)
        took = micros(lambda: turns(positions, Rotary(frequencies, 1.0), torch.bfloat16))  # noqa: B023
        say_rate(f"angles of {rows}", took, 2.0 * rows * heads.dim, "GB/s")
        angles = turns(positions, Rotary(frequencies, 1.0), torch.bfloat16)
        memory = rows_of([rows - 1] if rows > 256 else [20] * rows, heads, torch.bfloat16)
        where: BySlot | ByTable = ByTable(memory.table, memory.starts)
        if rows > 256:
            where = BySlot(memory.table[0, positions // BLOCK].long(), positions % BLOCK)
        took = micros(lambda: place_heads(qkv, angles, None, memory.k, memory.v, where))  # noqa: B023
        say_rate(f"heads of {rows}", took, 4.0 * qkv.numel(), "GB/s")


@contextmanager
def patched(file: Any, **names: Any) -> Iterator[None]:
    """Other constants of a file."""
    before = {name: getattr(file, name) for name in names}
    for name, value in names.items():
        setattr(file, name, value)
    yield
    for name, value in before.items():
        setattr(file, name, value)


def sweep_decode(heads: Heads, budget: float) -> None:
    """Other tiles, warps, stages, and programs per processor; best first at the end."""
    found: list[tuple[float, float, str]] = []
    memories = [rows_of([tokens - 1] * rows, heads, torch.bfloat16) for rows, tokens in ((16, 6000), (256, 400))]
    begun = time.monotonic()
    for keys, warps, stages in itertools.product((64, 32, 128), (4, 2, 8), (3, 2, 4, 5)):
        options = {"num_warps": warps, "num_stages": stages}
        with patched(decode_file, TILE_BYTES=2 * keys * heads.dim, OPTIONS=options):
            for programs in (4, 8, 16):
                with patched(decode_file, PROGRAMS=programs):
                    try:
                        took = [_one(memory, heads) for memory in memories]
                    except Exception as wrong:  # more shared memory than there is
                        print(keys, warps, stages, programs, repr(wrong)[:80])
                        continue
                found.append((took[0], took[1], f"keys {keys} warps {warps} stages {stages} programs {programs}"))
        if time.monotonic() - begun > budget:
            print("out of time: not all were tried")
            break
    for nth, what in enumerate(("16 x 6000", "256 x 400")):
        print(what, *(f"\n  {row[nth]:8.1f} us  {row[2]}" for row in sorted(found, key=lambda row: row[nth])[:12]))


def _one(memory: Rows, heads: Heads) -> float:
    q, rule = randn(len(memory.starts), heads.q, heads.dim), Rule(heads.dim**-0.5)
    return micros(lambda: decode(q, memory.k, memory.v, memory.table, memory.starts, rule=rule))


def sweep_prompt(heads: Heads, budget: float) -> None:
    """Other tiles, warps, stages and bounds on registers."""
    count, before = 2048, 6144
    memory, q = rows_of([before + count - 1], heads, torch.bfloat16), randn(count, heads.q, heads.dim)
    offsets = torch.tensor([0, count], dtype=torch.int32, device=DEVICE)
    starts = torch.tensor([before], dtype=torch.int32, device=DEVICE)
    begun, found = time.monotonic(), []
    for rows, keys, warps, stages, most in itertools.product(
        (128, 64, 256), (64, 128, 32), (8, 4), (3, 2, 4), (None, 128)
    ):
        tiles = {
            "MOST_ROWS": rows,
            "SUM_BYTES": 4 * rows * heads.dim,
            "MOST_KEYS": keys,
            "TILE_BYTES": 2 * keys * heads.dim,
        }
        options = {"num_stages": stages} | ({} if most is None else {"maxnreg": most})
        with patched(prompt_file, **tiles, WARPS=warps, WARPS_WIDE=warps, OPTIONS=options):
            name = f"rows {rows} keys {keys} warps {warps} stages {stages} registers {most}"
            given = (q, memory.k, memory.v, memory.table, offsets, starts)
            try:
                took = micros(lambda: attend(*given, rule=Rule(heads.dim**-0.5), max_query=count))  # noqa: B023
            except Exception as wrong:  # more shared memory than there is
                print(name, repr(wrong)[:80])
                continue
            found.append((took, name))
        if time.monotonic() - begun > budget:
            print("out of time: not all were tried")
            break
    print(*(f"\n  {took:8.1f} us  {name}" for took, name in sorted(found)[:16]))


def main() -> None:
    """Check, then print a table; or sweep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--sweep", choices=["decode", "prompt"])
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of a sweep")
    options = parser.parse_args()
    seed = time.time_ns() % 2**31
    torch.manual_seed(seed)
    heads, begun = Heads(options.heads, options.kv_heads, options.dim), time.monotonic()
    if options.sweep:
        {"decode": sweep_decode, "prompt": sweep_prompt}[options.sweep](heads, options.budget)
        return
    with torch.no_grad():
        print(f"checks, seed {seed}")
        check_attention(heads)
        check_parts(heads, options.width)
        print(f"times, after {time.monotonic() - begun:.0f} s")
        time_decode(heads)
        time_prompts(heads)
        time_parts(heads, options.width)
    print(f"done in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
