"""What a sweep says, in one sentence: what more of one thing brings. Knows no markup; runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quire import QuireError
from quire.simulate.play.sweep import Point, Sweep
from quire.simulate.setup.replay_settings import HINTS, Memory, ReplaySettings
from quire.simulate.setup.shape import ModelShape, find_shape
from quire.simulate.show.causes import overload
from quire.simulate.show.number_format import bytes_text, share_text, time_text, value_text

LEAST_POINTS = 0.0005  # of the prompt tokens: less is no difference
LEAST_SECONDS = 0.0005
_NO_CHANGE = "changes no hit rate"
FIRST = ("host", "disk", "shared", "device")  # whose answer is wanted first


def memory_of(settings: ReplaySettings) -> dict[str, int]:
    """Bytes of each tier, also where it was given in blocks; of a combination that cannot run, as they were given."""
    try:
        shape = find_shape(settings.shape)
        return {tier.name: _bytes_of(tier, shape, settings.block_size) for tier in settings.tiers}
    except QuireError:
        return {tier.name: tier.num_bytes for tier in settings.tiers}


def _bytes_of(tier: Memory, shape: ModelShape, block_size: int) -> int:
    pages = zip(tier.slots(shape, block_size), shape.layers, strict=True)
    return sum(slots * layers.page_bytes(block_size) for slots, layers in pages) if tier.blocks else tier.num_bytes


def tier_names(sweep: Sweep) -> list[str]:
    """Of all combinations, the host first."""
    names = dict.fromkeys(name for point in sweep.points for name in memory_of(point.settings))
    return sorted(names, key=lambda name: name != "host")


def many_sizes(sweep: Sweep) -> list[str]:
    """Tiers that have more than one size, those first whose answer is wanted first."""
    memories = [memory_of(point.settings) for point in sweep.points]
    names = [name for name in tier_names(sweep) if len({memory.get(name, 0) for memory in memories}) > 1]
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def varied(sweep: Sweep) -> list[str]:
    """Names of the settings, memory aside, that differ between combinations."""
    every = [_facts(point) for point in sweep.points]
    names = dict.fromkeys(name for one in every for name in one)
    return [name for name in names if any(one.get(name) != every[0].get(name) for one in every)]


def _facts(point: Point) -> dict[str, Any]:
    """Settings that are not sizes; rates of a link that is there in some combinations only are not told apart."""
    facts = point.settings.to_json()
    facts["pace"] = {name: value for name, value in facts["pace"].items() if name != "link_bytes_per_second"}
    return {name: value for name, value in facts.items() if name not in ("memory", "slow_tier")}


def answers(sweep: Sweep) -> list[str]:
    """What more of each tier brings, then what an order brings: one sentence each, those that change nothing last."""
    ran = [point for point in sweep.points if not point.error]
    orders = "eviction" in varied(sweep)
    lines = [_of_tier(ran, name, orders) for name in many_sizes(sweep)]
    if orders:
        lines.append(_of_order(ran))
    lines += [_of_hints(ran, kind) for kind in HINTS[1:]]
    shown = sorted([line for line in lines if line], key=lambda line: _NO_CHANGE in line)
    return shown or [_best(ran)]


def _best(ran: Sequence[Point]) -> str:
    if not ran:
        return "No combination could run."
    best = max(ran, key=_rate)
    near = f", {share_text(_rate(best) / best.optimum, 0)} of what is possible" if best.optimum else ""
    return f"At best {share_text(_rate(best))} of the prompt tokens are reused{near}."


def _of_tier(ran: Sequence[Point], name: str, orders: bool) -> str:
    """The least beside the most, all else equal; of several such pairs the one that differs most."""

    def size(point: Point) -> int:
        return memory_of(point.settings).get(name, 0)

    def rest(point: Point) -> object:
        others = tuple(
            sorted((tier, size) for tier, size in memory_of(point.settings).items() if tier != name and size)
        )
        return others, str(_facts(point))

    pairs = _pairs(ran, size, rest)
    if not pairs:
        return ""
    usual = [pair for pair in pairs if pair[0].settings.order == replace(pair[0].settings, eviction="auto").order]
    less, more = max(usual or pairs, key=lambda pair: abs(_rate(pair[1]) - _rate(pair[0])))
    others = {tier: size for tier, size in memory_of(less.settings).items() if tier != name and size}
    where = (
        f" beside {' and '.join(f'{bytes_text(size)} of {tier}' for tier, size in others.items())}" if others else ""
    )
    grew = f"{bytes_text(size(more))} of {name} memory" + (
        f" instead of {bytes_text(size(less))}" if size(less) else ""
    )
    default = ", the default" if usual else ""
    order = f" in the {more.settings.order} order{default}" if orders else ""
    return f"{grew}{where} {_brings(less, more)}{order}."


def _of_order(ran: Sequence[Point]) -> str:
    def order(point: Point) -> int:
        return int(point.settings.order == "adaptive")

    def rest(point: Point) -> object:
        facts = {name: value for name, value in _facts(point).items() if name != "eviction"}
        return tuple(sorted(memory_of(point.settings).items())), str(facts)

    pairs = [pair for pair in _pairs(ran, order, rest) if pair[0].settings.order == "lru"]
    if not pairs:
        return ""
    less, more = max(pairs, key=lambda pair: abs(_rate(pair[1]) - _rate(pair[0])))
    change = _brings(less, more)
    return f"The adaptive order instead of lru {change}{_with_memory(change, more, len(pairs))}."


def _of_hints(ran: Sequence[Point], kind: str) -> str:
    def hints(point: Point) -> int:
        return int(point.settings.hints != "none")

    def rest(point: Point) -> object:
        facts = {name: value for name, value in _facts(point).items() if name != "hints"}
        return tuple(sorted(memory_of(point.settings).items())), str(facts)

    pairs = _pairs([point for point in ran if point.settings.hints in ("none", kind)], hints, rest)
    if not pairs:
        return ""
    less, more = max(pairs, key=lambda pair: abs(_rate(pair[1]) - _rate(pair[0])))
    what = "Sessions and finish reasons as hints" if kind == "finish" else "Hints that know the trace's future"
    cost = 1 - more.result["compute_cost"] / max(less.result["compute_cost"], 1)
    computed = f", {share_text(abs(cost))} {'less' if cost > 0 else 'more'} computing"
    change = f"{_brings(less, more)}{computed if abs(cost) >= LEAST_POINTS else ''}"
    return f"{what}: {change}{_with_memory(change, more, len(pairs))}."


def _with_memory(change: str, point: Point, pairs: int) -> str:
    """Where a change is largest; where there is none, nothing."""
    if change == _NO_CHANGE:
        return ""
    sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in memory_of(point.settings).items())
    return f"{', at most' if pairs > 1 and _NO_CHANGE not in change else ''} (with {sizes})"


def _pairs(
    ran: Sequence[Point], size: Callable[[Point], int], rest: Callable[[Point], object]
) -> list[tuple[Point, Point]]:
    groups: dict[object, list[Point]] = {}
    for point in ran:
        groups.setdefault(rest(point), []).append(point)
    ends = [(min(points, key=size), max(points, key=size)) for points in groups.values()]
    return [(less, more) for less, more in ends if size(less) != size(more)]


def _rate(point: Point) -> float:
    rate: float = point.result["hit_rate_of_trace"]
    return rate


def first_token(point: Point) -> float:
    """Seconds to the first token, modelled; the median."""
    return float(point.result["model"]["ttft_ms"]["p50"]) / 1000


def _brings(less: Point, more: Point) -> str:
    points = _rate(more) - _rate(less)
    verb = "adds" if points > 0 else "costs"
    change = f"{verb} {100 * abs(points):.1f} points of hit rate" if abs(points) >= LEAST_POINTS else _NO_CHANGE
    if overload(less.result) or overload(more.result):
        return change
    soon = first_token(less) - first_token(more)
    if abs(soon) < LEAST_SECONDS:
        return change
    moved = f"takes {time_text(soon)} off" if soon > 0 else f"adds {time_text(-soon)} to"
    return f"{change} and {moved} the median first token"


def combination_words(settings: ReplaySettings, names: Sequence[str]) -> str:
    """One combination, for a line."""
    facts = settings.to_json()
    sizes = [f"{name} {bytes_text(size)}" for name, size in memory_of(settings).items()]
    return ", ".join([*sizes, *(f"{name.replace('_', ' ')} {value_text(facts.get(name))}" for name in names)])
