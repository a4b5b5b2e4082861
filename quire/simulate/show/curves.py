"""A sweep as table and page: the answer, hit rate over memory beside the offline optimum, every combination. Runs
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

import quire.simulate.show.html as html
import quire.simulate.show.story as story
from quire.simulate.play.sweep import Point, Sweep
from quire.simulate.show.causes import overload
from quire.simulate.show.number_format import (
    bytes_text,
    count_text,
    percent_text,
    share_text,
    time_text,
    value_text,
)
from quire.simulate.show.screen import show_table
from quire.simulate.show.svg import Plot, PlotSeries
from quire.simulate.show.sweep_answer import (
    answers,
    combination_words,
    first_token,
    many_sizes,
    memory_of,
    tier_names,
    varied,
)

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_COLUMNS = ("hit rate", "optimum", "of optimum", "first token", "tokens")
_BOUNDS = ("block_size", "shape", "partial_reuse")  # settings that an optimum depends on
_FAULTS = {"refused": "refused", "broken_promises": "broken promises"}
_OPTIMUM = (
    "The optimum is what no policy can beat on this trace: it knows the future and drops the block whose next use lies "
    "furthest ahead (all tiers as one memory). It serves requests in the order of the trace: a run that serves them in "
    "another order, by priority or because one was preempted, could pass it."
)


def rows(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table: each combination, its hit rate, how near to the optimum that is, and its times."""
    names, tiers = varied(sweep), tier_names(sweep)
    refused, broken = (any(point.result.get(name) for point in sweep.points) for name in _FAULTS)
    shown = [name for name, any_ in zip(_FAULTS, (refused, broken), strict=True) if any_]
    head = [*tiers, *(name.replace("_", " ") for name in names), *_COLUMNS, *(_FAULTS[name] for name in shown)]
    lines = []
    for point in sorted(sweep.points, key=lambda point: memory_of(point.settings).get("host", 0)):
        facts, memory = point.settings.to_json(), memory_of(point.settings)
        line = [*(bytes_text(memory.get(name, 0)) for name in tiers), *(value_text(facts.get(name)) for name in names)]
        best = "" if point.optimum is None else share_text(point.optimum, 2)
        if point.error:
            lines.append([*line, "did not run", best, *[""] * (len(head) - len(line) - 2)])
            continue
        rate, model = point.result["hit_rate_of_trace"], point.result["model"]
        near = share_text(rate / point.optimum) if point.optimum else ""
        times = [time_text(first_token(point)), f"{count_text(round(model['throughput_tokens_per_second']))}/s"]
        lines.append(
            [*line, share_text(rate, 2), best, near, *times, *(value_text(point.result[name]) for name in shown)]
        )
    return head, lines


def show(sweep: Sweep, out: TextIO) -> None:
    """The answer, then the table, on the terminal."""
    for line in [*answers(sweep), *_warning(sweep)]:
        print(line, file=out)
    head, lines = rows(sweep)
    show_table(f"Sweep of {sweep.trace}", head, lines, out, words=0)
    for line in _said(sweep):
        print(line, file=out)


def _warning(sweep: Sweep) -> list[str]:
    """Lengths only; and too much load: of the combination with the least of it, or how many there are."""
    ran = [point for point in sweep.points if not point.error]
    unknown = any(point.result.get("trace_sharing") == "unknown" for point in ran)
    return [*([story.UNSHARED] if unknown else []), *_overloaded(ran)]


def _overloaded(ran: Sequence[Point]) -> list[str]:
    heavy = [point for point in ran if overload(point.result)]
    if not heavy:
        return []
    if len(heavy) < len(ran):
        return [
            f"{len(heavy)} of {len(ran)} combinations are overloaded: of their times only the order means something."
        ]
    return [overload(min(heavy, key=lambda point: float(point.result["load"]["load"])).result)]


def _said(sweep: Sweep) -> list[str]:
    lines = []
    if sweep.unlimited is not None:
        lines.append(f"With memory for everything {share_text(sweep.unlimited, 2)} of the prompt tokens could be hit.")
    if any(point.result.get("refused") for point in sweep.points):
        lines.append("Where requests were refused the memory was too small for them: they count as missed.")
    lines.append("First token (median) and throughput are modelled from stated rates, not measured.")
    reasons = dict.fromkeys(point.error for point in sweep.points if point.error)
    lines += [f"Did not run: {reason}" for reason in reasons]
    if skipped := max((point.result.get("skipped_lines", 0) for point in sweep.points), default=0):
        lines.append(f"{value_text(skipped)} lines of the trace were broken and skipped.")
    notes = dict.fromkeys(note for point in sweep.points for note in point.result.get("notes", ()))
    return [*lines, *(f"Note: {note}" for note in notes)]


def render(sweep: Sweep) -> str:
    """The whole page."""
    head, lines = rows(sweep)
    first, *others = answers(sweep)
    every, other = sweep.points[0].settings.to_json(), {"memory", *varied(sweep)}
    same = story.settings({"settings": {name: value for name, value in every.items() if name not in other}})
    parts = [
        html.answer(first),
        *(html.warning(line) for line in _warning(sweep)),
        html.tiles(_tiles(sweep)),
        html.figure(plot(sweep)),
        *([html.card([html.bullets(others)], "What else differs")] if others else []),
        html.card([html.table(head, lines, words=0), html.bullets(_said(sweep))], "Every combination"),
        html.folded("What the optimum is", [html.paragraph(_OPTIMUM)]),
        html.folded("Settings they share", [html.table([], same, words=2)]),
    ]
    return html.whole_page(f"Sweep of {sweep.trace}", parts)


def _tiles(sweep: Sweep) -> list[tuple[str, str, str]]:
    """What the page shows large: the best there is, and the best there could be."""
    ran = [point for point in sweep.points if not point.error]
    shown = []
    if ran:
        best = max(ran, key=lambda point: float(point.result["hit_rate_of_trace"]))
        rate, names = best.result["hit_rate_of_trace"], ["eviction"] if "eviction" in varied(sweep) else []
        shown.append(("Best hit rate", share_text(rate), combination_words(best.settings, names)))
        if best.optimum:
            shown.append(("Its optimum", share_text(best.optimum), "what no policy can beat in that memory"))
    if sweep.unlimited is not None:
        shown.append(("Most there is", share_text(sweep.unlimited), "with memory for everything"))
    return [*shown, ("Combinations", count_text(len(sweep.points)), "were replayed")]


def plot(sweep: Sweep) -> Plot:
    """Hit rate over the memory that varies: the device's, with a line for every size of the others and every policy."""
    many = many_sizes(sweep)
    axis = "device" if "device" in many or not many else many[0]
    xs = sorted({memory_of(point.settings).get(axis, 0) for point in sweep.points})
    series = _lines(sweep, axis, xs)
    wide = len(xs) > 1 and xs[0] > 0 and xs[-1] / xs[0] >= 6
    return Plot(
        "curve", f"Hit rate over {axis} memory", "Share of the trace's prompt tokens that were not computed.", xs,
        series, top=1.0, say=percent_text, say_x=bytes_text, log_x=wide, dots=True, x_ticks=xs[:: -(-len(xs) // 8)],
    )  # fmt: skip


def _lines(sweep: Sweep, axis: str, xs: list[int]) -> list[PlotSeries]:
    """A colour for each size of the others, and each policy but the order; its optimum has it, too."""
    names, others = varied(sweep), [name for name in many_sizes(sweep) if name != axis]
    last = sweep.points[-1].settings.order
    curves: dict[str, dict[int, float]] = {}
    best: dict[str, dict[int, float]] = {}
    hues: dict[str, str] = {}
    faint: set[str] = set()  # curves of another order than the last
    for point in sweep.points:
        memory = memory_of(point.settings)
        sizes = [f"{name} {bytes_text(memory[name])}" if memory.get(name) else f"no {name}" for name in others]
        label = ", ".join([*sizes, *_words(point, names)]) or "hit rate"
        limit = ", ".join(["optimum", *sizes, *_words(point, [name for name in names if name in _BOUNDS])])
        case = ", ".join([*sizes, *_words(point, [name for name in names if name != "eviction"])])
        hues[limit] = hues[label] = hues.setdefault(case, _COLOURS[len({*hues.values()}) % len(_COLOURS)])
        if "eviction" in names and point.settings.order != last:
            faint.add(label)
        curve = curves.setdefault(label, {})
        if not point.error:
            curve[memory.get(axis, 0)] = point.result["hit_rate_of_trace"]
        if point.optimum is not None:
            best.setdefault(limit, {})[memory.get(axis, 0)] = point.optimum
    soft = "csoft" if len(best) == 1 else ""
    found_rates = [PlotSeries(name, [one.get(x) for x in xs], hues[name], False, name in faint)
                   for name, one in curves.items()]  # fmt: skip
    return found_rates + [PlotSeries(name, [one.get(x) for x in xs], soft or hues[name], True)
                          for name, one in best.items()]  # fmt: skip


def _words(point: Point, names: list[str]) -> list[str]:
    facts = point.settings.to_json()
    return [value_text(facts[name]) if name == "eviction" else f"{name.replace('_', ' ')} {value_text(facts.get(name))}"
            for name in names]  # fmt: skip
