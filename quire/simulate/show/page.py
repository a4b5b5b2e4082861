"""A replay as one HTML page: which plots there are and what stands around them. Draws nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import quire.simulate.show.html as html
import quire.simulate.show.story as story
from quire.simulate.show.buckets import joined
from quire.simulate.show.causes import NAMES, explained, overload
from quire.simulate.show.number_format import Json, bytes_text, count_text, percent_text
from quire.simulate.show.svg import Plot, PlotSeries

FIRST = ("hits-by-tier", "causes")  # what shows most
RARE = 0.001  # of all prompt tokens: a cause below that has no layer of its own
NONE = "no requests"
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_CAUSE_COLOURS = ("c1", "c2", "c4", "c5", "c6", "c7")
_COLOUR_OF = {
    "new": "c1",
    "interrupted": "c4",
    "evicted": "c2",
    "forgotten": "c2",
    "other_scope": "c5",
    "snapshot": "c6",
    "window": "c6",
    "short": "c7",
}  # the same on every page, if no other has it
_VIRTUAL = "Time is the replay's own clock, not the machine's."


def render(result: Json, baseline: Json | None = None) -> str:
    """The whole page; `baseline` is the one-at-a-time run of the same trace."""
    name = str(result.get("trace") or "a trace")
    shown = plots(result, baseline)
    answer, more = story.answer(result), story.outcome(result)
    if baseline is not None:
        answer = story.gained(result, baseline)
    parts = [
        html.answer(answer),
        *(html.warning(line) for line in filter(None, [overload(result)])),
        html.tiles(story.tiles(result)),
    ]
    if explained(result):
        parts.append(html.lines(explained(result)))
    first = [plot for plot in shown if plot.name in FIRST] or shown[:1]
    others = [plot for plot in shown if plot not in first]
    parts += [html.figure(plot) for plot in first]
    parts.append(html.card([html.bullets(more)], "In words"))
    if baseline is not None:
        rows = story.comparison(result, baseline)
        parts.append(html.card([html.table(["", *story.PHASES], rows)], "Two-phase beside one at a time"))
    if others:
        inside = [html.paragraph(_VIRTUAL, "soft"), *(html.figure(plot) for plot in others)]
        parts.append(html.folded("Over time", inside))
    if story.modelled(result) and baseline is None:
        note = html.paragraph(story.note(result))
        parts.append(html.folded("A model, not a measurement", [note, html.table([], story.modelled(result))]))
    if baseline is None:
        parts.append(html.folded("All counts", [html.table([], story.facts(result))]))
    parts.append(html.folded("Settings", [html.table([], story.settings(result), words=2)]))
    return html.whole_page(f"Replay of {name}", parts)


def plots(result: Json, baseline: Json | None = None) -> list[Plot]:
    """Every plot that the run's series allow, the one that shows most first; beside a baseline those that differ."""
    series = joined(result.get("series") or {})
    xs = series["seconds"]
    if not xs:
        return []
    if baseline is not None:
        return _differing(xs, series, joined(baseline.get("series") or {}))
    figures = [
        _hits_by_tier(xs, series),
        _causes(xs, series),
        _hits_by_group(xs, series),
        _use(xs, series),
        _promises("promises", "", xs, series),
        _overshoot("overshoot", "", xs, series),
        _moves(xs, series),
    ]
    return [plot for plot in figures if plot is not None]


def _differing(xs: list[float], series: Json, other: Json) -> list[Plot]:
    """Plots of two runs, where there is something to be seen: a way that differs from the other."""
    times = other["seconds"]
    if not times:
        return []
    found: list[Plot | None] = []
    for name in ("promises_broken", "worst_overshoot_tokens"):
        if series.get(name) != other.get(name):
            make, what = (_promises, "promises") if name == "promises_broken" else (_overshoot, "overshoot")
            found += [make(f"{what}-one", ", one at a time", times, other), make(what, ", two-phase", xs, series)]
    if series.get("hit_rate_by_tier") != other.get("hit_rate_by_tier"):
        found += [_hits_by_tier(xs, series), _renamed(_hits_by_tier(times, other))]
    return [plot for plot in found if plot is not None]


def _renamed(plot: Plot | None) -> Plot | None:
    if plot is None:
        return None
    return replace(plot, name=f"{plot.name}-one", title=f"{plot.title}, one at a time")


def _many(rows: Json, colours: Sequence[str] = _COLOURS, *, dashed: bool = False, suffix: str = "") -> list[PlotSeries]:
    return [
        PlotSeries(f"{name}{suffix}", values, colours[nth % len(colours)], dashed)
        for nth, (name, values) in enumerate(rows.items())
    ]


def _hits_by_tier(xs: list[float], series: Json) -> Plot | None:
    if not (rows := series.get("hit_rate_by_tier")):
        return None
    note = "Share of the prompt tokens that were not computed, by the tier they were found in; the tiers add up."
    return Plot(
        "hits-by-tier", "Hit rate by tier", note, xs, _many(rows), kind="bars", top=1.0, say=percent_text, missing=NONE
    )


def _causes(xs: list[float], series: Json) -> Plot | None:
    """Every prompt token, reused or computed for a reason; what is rare is one layer."""
    rows, tokens = series.get("computed_by_cause"), series.get("prompt_tokens")
    if not rows or not tokens:
        return None
    some = [cause for cause, row in rows.items() if sum(row) >= RARE * sum(tokens)]
    most = some[: len(_CAUSE_COLOURS)]
    rest = [cause for cause in rows if cause not in most]
    layers = {NAMES[cause]: rows[cause] for cause in most}
    if any(any(rows[cause]) for cause in rest):
        layers["other reasons"] = [sum(rows[cause][at] for cause in rest) for at in range(len(xs))]
    missed = [sum(row[at] for row in layers.values()) for at in range(len(xs))]
    layers = {"reused": [whole - miss for whole, miss in zip(tokens, missed, strict=True)], **layers}
    shown = [
        PlotSeries(name, [count / whole if whole else None for count, whole in zip(row, tokens, strict=True)], colour)
        for (name, row), colour in zip(layers.items(), ("c3", *_cause_colours(most), "cfaint"), strict=False)
    ]
    note = "Every prompt token was either reused or computed for one of these reasons."
    return Plot("causes", "Why tokens were computed", note, xs, shown, kind="bars", top=1.0, say=percent_text,
                missing=NONE)  # fmt: skip


def _cause_colours(causes: Sequence[str]) -> list[str]:
    """A cause has its own colour; of those that have one in common, and of others, the next free one."""
    owners = {_COLOUR_OF[cause]: cause for cause in reversed(causes) if cause in _COLOUR_OF}
    free = iter([colour for colour in _CAUSE_COLOURS if colour not in owners])
    return [_COLOUR_OF[cause] if cause in owners.values() else next(free) for cause in causes]


def _hits_by_group(xs: list[float], series: Json) -> Plot | None:
    if not (rows := series.get("hit_rate_by_group")):
        return None
    note = "Share of the prompt blocks that each layer group could reuse."
    return Plot(
        "hits-by-group", "Hit rate by layer group", note, xs, _many(rows), top=1.0, say=percent_text, missing=NONE
    )


def _use(xs: list[float], series: Json) -> Plot | None:
    if not (rows := series.get("use_by_tier")):
        return None
    note = "Share of each tier's slots that hold something; a full pool is normal, it is then that blocks are evicted."
    held = series.get("held_by_tier") or {}
    shown = {name: held[name] for name in rows if any(held.get(name) or ())}  # sequences hold pages of the device only
    lines = _many(rows) + _many(shown, dashed=True, suffix=", in use")
    return Plot("use", "Pool use", note, xs, lines, top=1.0, say=percent_text)


def _promises(name: str, which: str, xs: list[float], series: Json) -> Plot | None:
    if not series.get("promises_kept"):
        return None
    note = "Batches whose step computed no more tokens than estimated when they were chosen, and those that did more."
    kept, broken = series["promises_kept"], series.get("promises_broken") or [0] * len(xs)
    layers = [
        PlotSeries(f"broken ({count_text(sum(broken))})", broken, "cbad"),
        PlotSeries(f"kept ({count_text(sum(kept))})", kept, "c1"),
    ]
    return Plot(name, f"Promises{which}", note, xs, layers, kind="bars")


def _overshoot(name: str, which: str, xs: list[float], series: Json) -> Plot | None:
    if not any(series.get("worst_overshoot_tokens") or ()):
        return None
    note = "Tokens that the worst batch of each moment computed beyond its promise."
    layers = [PlotSeries("tokens beyond the promise", series["worst_overshoot_tokens"], "cbad")]
    return Plot(name, f"Broken promises, by how much{which}", note, xs, layers, kind="bars")


def _moves(xs: list[float], series: Json) -> Plot | None:
    rows = {name: series.get(f"{name}_bytes") for name in ("onboarded", "offloaded")}
    if not any(rows.values()):
        return None
    widths = [x - before for x, before in zip(xs, [0.0, *xs[:-1]], strict=True)]
    layers = [
        PlotSeries(name, [(value or 0) / (width or 1.0) for value, width in zip(values, widths, strict=True)], colour)
        for (name, values), colour in zip(rows.items(), ("c3", "c2"), strict=True)
        if values
    ]
    note = "Bytes per second of virtual time that moved up to the device (onboarded) and down from it (offloaded)."
    return Plot("moves", "Moves between tiers", note, xs, layers, kind="bars", say=_rate)


def _rate(number: float) -> str:
    return f"{bytes_text(number)}/s"
