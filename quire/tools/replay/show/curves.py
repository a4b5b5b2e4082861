"""A sweep as table and page: hit rate over memory, one curve per policy, beside the offline optimum. Runs nothing."""

from __future__ import annotations

from typing import Any, TextIO

import quire.tools.replay.show.html as html
import quire.tools.replay.show.story as story
from quire import QuireError
from quire.tools.replay.play.sweep import Point, Sweep
from quire.tools.replay.setup.settings import Memory, ReplaySettings
from quire.tools.replay.setup.shape import ModelShape, find_shape
from quire.tools.replay.show.number_format import bytes_text, percent_text, share_text, value_text
from quire.tools.replay.show.screen import show_table
from quire.tools.replay.show.svg import Plot, PlotSeries

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_COLUMNS = ("hit rate", "optimum", "of optimum", "refused", "broken promises")
_OPTIMUM = (
    "The optimum is what no policy can beat on this trace: it knows the future and drops the block whose next use lies "
    "furthest ahead (all tiers as one memory). It serves requests in the order of the trace: a run that serves them in "
    "another order, by priority or because one was preempted, could pass it."
)


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


def varied(found: Sweep) -> list[str]:
    """Names of the settings, memory aside, that differ between combinations."""
    every = [point.settings.to_json() for point in found.points]
    return [name for name in every[0] if name != "memory" and any(one[name] != every[0][name] for one in every)]


def _label(point: Point, names: list[str]) -> str:
    facts: dict[str, Any] = point.settings.to_json()
    words = (f"{name.replace('_', ' ')} {value_text(facts[name])}" for name in names)
    return ", ".join(words) or "hit rate"


def rows(found: Sweep) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table: each combination, its hit rate, and how near to the optimum that is."""
    names = varied(found)
    tiers = list(dict.fromkeys(name for point in found.points for name in memory_of(point.settings)))
    head = [*(name.replace("_", " ") for name in names), *tiers, *_COLUMNS]
    lines = []
    for point in found.points:
        facts, memory = point.settings.to_json(), memory_of(point.settings)
        line = [*(value_text(facts[name]) for name in names), *(bytes_text(memory.get(name, 0)) for name in tiers)]
        best = "" if point.optimum is None else share_text(point.optimum, 2)
        if point.error:
            lines.append([*line, "did not run", best, "", "", ""])
            continue
        rate = point.result["hit_rate_of_trace"]
        near = share_text(rate / point.optimum) if point.optimum else ""
        counts = (value_text(point.result[name]) for name in ("refused", "broken_promises"))
        lines.append([*line, share_text(rate, 2), best, near, *counts])
    return head, lines


def show(found: Sweep, out: TextIO) -> None:
    """The table on the terminal."""
    head, lines = rows(found)
    show_table(f"Sweep of {found.trace}", head, lines, out, words=len(varied(found)))
    for line in _said(found):
        print(line, file=out)


def _said(found: Sweep) -> list[str]:
    lines = []
    if found.unlimited is not None:
        lines.append(f"With memory for everything {share_text(found.unlimited, 2)} of the prompt tokens could be hit.")
    if any(point.result.get("refused") for point in found.points):
        lines.append("Where requests were refused the memory was too small for them: they count as missed.")
    reasons = dict.fromkeys(point.error for point in found.points if point.error)
    lines += [f"Did not run: {reason}" for reason in reasons]
    if skipped := max((point.result.get("skipped_lines", 0) for point in found.points), default=0):
        lines.append(f"{value_text(skipped)} lines of the trace were broken and skipped.")
    notes = dict.fromkeys(note for point in found.points for note in point.result.get("notes", ()))
    return [*lines, *(f"Note: {note}" for note in notes)]


def render(found: Sweep) -> str:
    """The whole page."""
    head, lines = rows(found)
    parts = [
        html.heading(f"Sweep of {found.trace}", 1),
        html.paragraph("The same trace replayed with other sizes and policies, by Quire's own cache code.", "soft"),
        html.bullets([*_said(found), _OPTIMUM]),
        *(html.figure(plot) for plot in plots(found)),
        html.heading("Every combination"),
        html.table(head, lines, words=len(varied(found))),
    ]
    every, other = found.points[0].settings.to_json(), {"memory", *varied(found)}
    same = story.settings({"settings": {name: value for name, value in every.items() if name not in other}})
    parts += [html.heading("Settings they share"), html.table([], same, words=2)]
    return html.whole_page(f"Quire sweep: {found.trace}", parts)


def plots(found: Sweep) -> list[Plot]:
    """Hit rate over the memory that varies, one plot for each size of the others."""
    memories = [memory_of(point.settings) for point in found.points]
    tiers = list(memories[0])
    many = [name for name in tiers if len({memory.get(name, 0) for memory in memories}) > 1]
    axis = many[0] if many else tiers[0]
    cases: dict[str, list[Point]] = {}
    for point, memory in zip(found.points, memories, strict=True):
        others = [(name, size) for name, size in memory.items() if name != axis]
        rest = ", ".join(f"{name} {bytes_text(size)}" if size else f"no {name}" for name, size in others)
        cases.setdefault(rest, []).append(point)
    rates = [point.result.get("hit_rate_of_trace", 0.0) for point in found.points]
    top = max(*rates, *(point.optimum or 0.0 for point in found.points)) or 1.0
    return [
        _plot(f"curve-{nth}", axis, rest, points, (varied(found), top))
        for nth, (rest, points) in enumerate(cases.items())
    ]


def _plot(name: str, axis: str, rest: str, points: list[Point], common: tuple[list[str], float]) -> Plot:
    names, top = common
    xs = sorted({memory_of(point.settings)[axis] for point in points})
    curves: dict[str, dict[int, float]] = {}
    best: dict[str, dict[int, float]] = {}
    hues: dict[str, str] = {}  # an optimum has the colour of the first curve it belongs to
    matters = [each for each in names if each in ("block_size", "shape")]
    for point in points:
        x, label = memory_of(point.settings)[axis], _label(point, names)
        limit = f"optimum, {_label(point, matters)}" if matters else "optimum"
        curve = curves.setdefault(label, {})
        hues.setdefault(limit, _COLOURS[list(curves).index(label) % len(_COLOURS)])
        if not point.error:
            curve[x] = point.result["hit_rate_of_trace"]
        if point.optimum is not None:
            best.setdefault(limit, {})[x] = point.optimum
    series = [
        PlotSeries(label, [curve.get(x) for x in xs], _COLOURS[nth % len(_COLOURS)])
        for nth, (label, curve) in enumerate(curves.items())
    ]
    one = len(best) == 1
    series += [
        PlotSeries(limit, [c.get(x) for x in xs], "csoft" if one else hues[limit], True) for limit, c in best.items()
    ]
    wide = len(xs) > 1 and xs[0] > 0 and xs[-1] / xs[0] >= 6
    stride = -(-len(xs) // 8)
    return Plot(
        name, f"Hit rate over {axis} memory" + (f", {rest}" if rest else ""),
        "Share of the trace's prompt tokens that were not computed.", xs, series, top=top, say=percent_text,
        say_x=bytes_text, log_x=wide, dots=True, x_ticks=xs[::stride],
    )  # fmt: skip
