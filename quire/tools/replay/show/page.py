"""A replay as one HTML page: which plots there are and what stands around them. Draws nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

import quire.tools.replay.show.html as html
import quire.tools.replay.show.story as story
from quire.tools.replay.show.buckets import joined
from quire.tools.replay.show.number_format import Json, bytes_text, count_text, percent_text, share_text
from quire.tools.replay.show.svg import Plot, PlotSeries

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_VIRTUAL = "Time is the replay's own clock, not the machine's."


def render(result: Json, baseline: Json | None = None) -> str:
    """The whole page; `baseline` is the one-at-a-time run of the same trace."""
    name = str(result.get("trace") or "a trace")
    parts = [
        html.heading(f"Replay of {name}", 1),
        html.paragraph("Quire's own cache code on a virtual clock.", "soft"),
        _tiles(result),
        html.bullets(story.told(result)),
    ]
    if baseline is not None:
        parts += [
            html.heading("Two-phase beside one at a time"),
            html.paragraph(story.gained(result, baseline)),
            html.table(["", *story.PHASES], story.comparison(result, baseline)),
        ]
    parts.append(html.heading("Over time"))
    parts.append(html.paragraph(_VIRTUAL, "soft"))
    parts += [html.figure(plot) for plot in plots(result, baseline)]
    if story.modelled(result):
        inside = [
            html.heading("A model, not a measurement"),
            html.paragraph(story.note(result)),
            html.table([], story.modelled(result)),
        ]
        parts.append(html.model_box(inside))
    parts += [
        html.heading("All counts"),
        html.table([], story.facts(result)),
        html.heading("Settings"),
        html.table([], story.settings(result), words=2),
    ]
    return html.whole_page(f"Quire replay: {name}", parts)


def _tiles(result: Json) -> html.Markup:
    broken = result["broken_promises"]
    facts = [
        *((share_text(rate), name, "") for rate, name in story.hit_rates(result)),
        (count_text(result["tokens_saved"]), "prompt tokens not computed", ""),
        (count_text(broken), "promises broken", "bad" if broken else "good"),
        (count_text(result["evictions"]), "evictions", ""),
        (bytes_text(result["onboarded_bytes"] + result["offloaded_bytes"]), "moved between tiers", ""),
    ]
    return html.tiles(facts)


def plots(result: Json, baseline: Json | None = None) -> list[Plot]:
    """Every plot that the run's series allow, in the order of the page."""
    series = joined(result.get("series") or {})
    xs = series["seconds"]
    if not xs:
        return []
    found = [
        _hits_by_tier(xs, series),
        _hits_by_group(xs, series),
        _use(xs, series),
        _promises("promises", "", xs, series),
        _overshoot("overshoot", "", xs, series),
        _moves(xs, series),
    ]
    other = joined((baseline or {}).get("series") or {})
    if times := other["seconds"]:
        at = 4 if found[4] is None else 5
        found[at:at] = [
            _promises("promises-one", ", one at a time", times, other),
            _overshoot("overshoot-one", ", one at a time", times, other),
        ]
    return [plot for plot in found if plot is not None]


def _many(rows: Json, colours: Sequence[str] = _COLOURS, *, dashed: bool = False, suffix: str = "") -> list[PlotSeries]:
    return [
        PlotSeries(f"{name}{suffix}", values, colours[nth % len(colours)], dashed)
        for nth, (name, values) in enumerate(rows.items())
    ]


def _hits_by_tier(xs: list[float], series: Json) -> Plot | None:
    if not (rows := series.get("hit_rate_by_tier")):
        return None
    note = "Share of the prompt tokens that were not computed, by the tier they were found in; the tiers add up."
    return Plot("hits-by-tier", "Hit rate by tier", note, xs, _many(rows), kind="bars", say=percent_text)


def _hits_by_group(xs: list[float], series: Json) -> Plot | None:
    if not (rows := series.get("hit_rate_by_group")):
        return None
    note = "Share of the prompt blocks that each layer group could reuse."
    return Plot("hits-by-group", "Hit rate by layer group", note, xs, _many(rows), say=percent_text)


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
