"""Options of `quire replay` and `quire sweep`: words on the command line to ReplaySettings. Runs nothing."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import get_args

from quire import InputError, RetainRange
from quire.cli.arguments import not_negative
from quire.core.records.config import RENAMED, Eviction, EvictionCost
from quire.core.records.errors import say
from quire.core.records.memory import parse_bytes
from quire.simulate.setup.engine_pace import USUAL, Pace
from quire.simulate.setup.replay_settings import ARRIVALS, HINTS, Memory, ReplaySettings
from quire.simulate.setup.shape import PRESETS
from quire.simulate.setup.slow_pace import DISK, SHARED, SlowPace
from quire.trace.read.lines import MOONCAKE_BLOCK
from quire.trace.read.trace import Trace, read_trace

_DEFAULT = ReplaySettings()
FIRST = (
    "--json", "--html", "--limit", "--device", "--host", "--disk", "--shape", "--block-size", "--eviction", "--hints",
    "--speed",
)  # fmt: skip
SLOW = {"disk": DISK, "shared": SHARED}


def add_options(parser: ArgumentParser) -> None:
    """Everything that makes ReplaySettings, and how the trace is read."""
    _add_reading(parser.add_argument_group("reading the trace"))
    _add_cache(parser.add_argument_group("the cache"))
    _add_slow(parser.add_argument_group("a tier that no step waits for"))
    _add_serving(parser.add_argument_group("serving"))
    _add_pace(parser.add_argument_group("time, as a model"))


def _add_reading(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    group.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used and go on")
    group.add_argument(
        "--trace-block", type=int, metavar="N",
        help=f"tokens per hash id of a Mooncake trace (default: as it says, or {MOONCAKE_BLOCK})",
    )  # fmt: skip


def _add_cache(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shape", default=_DEFAULT.shape, help=f"a preset ({', '.join(PRESETS)}) or a .toml file (default %(default)s)"
    )
    for name, size in (("device", "40GB"), ("host", "200GB")):
        group.add_argument(f"--{name}", metavar="BYTES", help=f"memory of the {name}, such as {size} (the default)")
        group.add_argument(f"--{name}-blocks", metavar="N[,N]", help="the same in blocks, for all groups or for each")
    group.add_argument(
        "--tier",
        action="append",
        default=[],
        metavar="NAME=BYTES",
        help="a colder tier besides that steps wait for, such as cxl=1TB",
    )
    group.add_argument("--block-size", type=int, default=_DEFAULT.block_size, metavar="N", help="(default %(default)s)")
    group.add_argument(
        "--eviction", choices=(*get_args(Eviction), *RENAMED), default=_DEFAULT.eviction,
        help="auto (the default) is adaptive, but lru for shapes of several groups",
    )  # fmt: skip
    group.add_argument(
        "--eviction-cost", choices=get_args(EvictionCost), default=_DEFAULT.eviction_cost,
        help="what a lost page costs: compute keeps pages deep in long prompts longer (adaptive order only)",
    )  # fmt: skip
    group.add_argument(
        "--compute-doubles-at", type=int, default=_DEFAULT.compute_doubles_at, metavar="N",
        help="a token that deep costs twice the first one to compute (%(default)s fits models of 8B parameters)",
    )  # fmt: skip
    group.add_argument(
        "--retain", action="append", default=[], metavar="START:END:PRIORITY[:SECONDS]",
        help="keep these prompt tokens of every request at a priority (0 to 100; 35 is usual); END may be empty",
    )  # fmt: skip
    group.add_argument("--decode-priority", type=int, metavar="P", help="of generated tokens")
    group.add_argument(
        "--offload-min-priority", type=int, default=_DEFAULT.offload_min_priority, metavar="P",
        help="pages below it are dropped, not offloaded (default %(default)s)",
    )  # fmt: skip
    group.add_argument("--no-partial-reuse", action="store_true", help="hits end on block edges")
    group.add_argument("--no-shadows", action="store_true", help="an onboarded page gives up its colder copy")


def _add_slow(group: argparse._ArgumentGroup) -> None:
    for name, pace in SLOW.items():
        what = "a disk below the host" if name == "disk" else "a shared store below the host, filled by this worker"
        group.add_argument(f"--{name}", metavar="BYTES", help=f"{what}, such as 2TB (default: none)")
        group.add_argument(f"--{name}-blocks", metavar="N[,N]", help="the same in blocks")
        for act, rate in (("read", pace.read), ("write", pace.write)):
            group.add_argument(f"--{name}-{act}", metavar="BYTES/s", help=f"(default {rate / 1e9:g}GB/s)")
        group.add_argument(
            f"--{name}-latency",
            type=not_negative,
            metavar="MS",
            help=f"before a read begins (default {pace.latency * 1000:g})",
        )
    group.add_argument(
        "--prefetch-wait", type=not_negative, default=SlowPace().wait, metavar="S",
        help="how long a request is passed over for its pages, at most (default %(default)s)",
    )  # fmt: skip


def _add_serving(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--token-budget", type=_limit, default=_DEFAULT.token_budget, metavar="N",
        help="prompt tokens of one step; 0: no budget (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-chunk", type=_limit, default=-1, metavar="N",
        help="longest part of a prompt in one step; 0: prompts are computed whole (default: the token budget)",
    )  # fmt: skip
    group.add_argument(
        "--batch", type=int, default=_DEFAULT.batch, metavar="N",
        help="waiting requests considered in one step (default %(default)s)",
    )  # fmt: skip
    way = group.add_mutually_exclusive_group()
    way.add_argument("--two-phase", dest="two_phase", action="store_true", default=True, help="claim, then admit")
    way.add_argument(
        "--one-phase", dest="two_phase", action="store_false", help="estimate, then admit one at a time: the baseline"
    )
    group.add_argument(
        "--max-sequences", type=int, default=_DEFAULT.max_sequences, metavar="N", help="(default %(default)s)"
    )
    group.add_argument("--prefill-only", action="store_true", help="release requests when their prompt is computed")
    group.add_argument(
        "--hints", choices=HINTS, default=_DEFAULT.hints,
        help="what the engine says of each request: nothing (the default), session and finish reason, or what the "
        "trace's own future says: what hints would be worth",
    )  # fmt: skip
    group.add_argument("--arrivals", choices=ARRIVALS, default=_DEFAULT.arrivals, help="(default: as in the trace)")
    group.add_argument("--speed", type=float, default=_DEFAULT.speed, metavar="X", help="arrivals X times as fast")
    group.add_argument("--seed", type=int, default=_DEFAULT.seed, metavar="N", help="of token ids and Poisson arrivals")


def _add_pace(group: argparse._ArgumentGroup) -> None:
    pace = USUAL
    group.add_argument(
        "--prefill-rate", type=float, default=pace.prefill_tokens_per_second, metavar="N",
        help="prompt tokens per second (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--decode-ms", type=float, default=pace.decode_ms, metavar="MS", help="one decode turn (default %(default)s)"
    )
    group.add_argument(
        "--decode-ms-per-sequence", type=float, default=pace.decode_ms_per_sequence, metavar="MS",
        help="more for each decoding sequence (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--link", action="append", default=[], metavar="NAME=BYTES",
        help="bytes per second between the device and a tier (default: host=50GB, colder ones 5GB)",
    )  # fmt: skip
    group.add_argument(
        "--decode-stride", type=int, default=_DEFAULT.decode_stride, metavar="N",
        help="turns that pass at once while no prompt is computed (default %(default)s)",
    )  # fmt: skip


def trace_of(options: Namespace, path: str) -> Trace:
    """The trace that the options name."""
    for name in ("limit", "trace_block"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise InputError(say(f"--{name.replace('_', '-')} {number}", "nothing is left", "give at least 1"))
    return read_trace(path, limit=options.limit, skip_bad=options.skip_bad, unit=options.trace_block)


def settings_of(options: Namespace) -> ReplaySettings:
    """The settings that the options name."""
    tiers = _tiers(options)
    chunk = options.token_budget if options.max_chunk == -1 else options.max_chunk
    return replace(
        _DEFAULT,
        shape=options.shape,
        tiers=tiers,
        block_size=options.block_size,
        token_budget=options.token_budget,
        max_chunk=chunk,
        batch=options.batch,
        two_phase=options.two_phase,
        eviction=options.eviction,
        eviction_cost=options.eviction_cost,
        compute_doubles_at=options.compute_doubles_at,
        retain=tuple(_rule(text) for text in options.retain),
        decode_priority=options.decode_priority,
        offload_min_priority=options.offload_min_priority,
        partial_reuse=not options.no_partial_reuse,
        shadows=not options.no_shadows,
        max_sequences=options.max_sequences,
        prefill_only=options.prefill_only,
        arrivals=options.arrivals,
        speed=options.speed,
        decode_stride=options.decode_stride,
        seed=options.seed,
        pace=_pace(options, [tier.name for tier in tiers[1:] if not tier.slow]),
        slow=_slow_pace(options, tiers),
        hints=options.hints,
    )


def _tiers(options: Namespace) -> tuple[Memory, ...]:
    tiers = []
    for usual in _DEFAULT.tiers:
        size, blocks = getattr(options, usual.name), getattr(options, f"{usual.name}_blocks")
        if size is not None and blocks is not None:
            ask = f"--{usual.name} and --{usual.name}-blocks"
            raise InputError(say(ask, "both say how large it is", "give one of them"))
        if blocks is not None:
            tiers.append(Memory(usual.name, blocks=_numbers(blocks)))
        elif size is not None:
            tiers.append(Memory(usual.name, parse_bytes(size)))
        else:
            tiers.append(usual if usual.name == "device" or options.device_blocks is None else Memory(usual.name))
    for text in options.tier:
        name, size = _pair(text, "--tier", "cxl=1TB")
        tiers.append(Memory(name, parse_bytes(size)))
    slow = [_slow_memory(options, name) for name in SLOW if _is_given(options, name)]
    if len(slow) > 1:
        fact = "a cache has one tier that no step waits for"
        raise InputError(say("--disk and --shared", fact, "give one, or add up their sizes"))
    return (*tiers, *slow)


def _is_given(options: Namespace, name: str) -> bool:
    size, blocks = getattr(options, name), getattr(options, f"{name}_blocks")
    return blocks is not None or (size is not None and parse_bytes(size) > 0)


def _slow_memory(options: Namespace, name: str) -> Memory:
    size, blocks = getattr(options, name), getattr(options, f"{name}_blocks")
    if size is not None and blocks is not None:
        raise InputError(say(f"--{name} and --{name}-blocks", "both say how large it is", "give one of them"))
    return Memory(name, parse_bytes(size or 0), () if blocks is None else _numbers(blocks), slow=True)


def _slow_pace(options: Namespace, tiers: tuple[Memory, ...]) -> SlowPace | None:
    if not tiers[-1].slow:
        return None
    name = tiers[-1].name
    usual = SLOW[name]
    read, write, latency = (getattr(options, f"{name}_{part}") for part in ("read", "write", "latency"))
    return SlowPace(
        usual.read if read is None else parse_rate(read), usual.write if write is None else parse_rate(write),
        usual.latency if latency is None else latency / 1000, options.prefetch_wait,
    )  # fmt: skip


def parse_rate(text: str) -> float:
    """Bytes per second: 3GB/s, or 3GB."""
    return float(parse_bytes(text.strip().removesuffix("/s"), "a bandwidth"))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(say(f"{text!r} blocks", "they are not whole numbers", "write 400 or 400,60")) from None


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise InputError(say(f"{option} {text!r}", "it is not NAME=BYTES", f"write {option} {example}"))
    return name, value


def _rule(text: str) -> RetainRange:
    parts = text.split(":")
    try:
        start, end, priority = int(parts[0]), int(parts[1]) if parts[1] else None, int(parts[2])
        (seconds,) = (float(part) for part in parts[3:]) if len(parts) > 3 else (None,)
    except (ValueError, IndexError):
        ask, cure = f"--retain {text!r}", "write START:END:PRIORITY or START:END:PRIORITY:SECONDS"
        raise InputError(say(ask, "it is not a rule", cure)) from None
    return RetainRange(start, end, priority, seconds)


def _pace(options: Namespace, names: list[str]) -> Pace:
    given = dict(_pair(text, "--link", "host=50GB") for text in options.link)
    for name in given.keys() - set(names):
        raise InputError(say(f"--link {name}", f"the colder tiers are {', '.join(names)}", "name one of them"))
    links = tuple(parse_bytes(given[name]) if name in given else USUAL.link(n + 1) for n, name in enumerate(names))
    return Pace(options.prefill_rate, options.decode_ms, options.decode_ms_per_sequence, links)


def _limit(text: str) -> int | None:
    """A number of tokens; 0: without limit."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("give a number of tokens, or 0 for no limit")
    return number or None
