"""Plots as inline SVG: curves and stacked bars. Draws marks only; words stand beside it as HTML (html.py).

The drawing is 1000 wide and 100 high and is stretched to its place, so lines keep their width and no text is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from quire.simulate.show.number_format import count_text, ticks, time_text, time_ticks

WIDTH, HEIGHT = 1000.0, 100.0
MARGIN = 0.06
MAX_COLUMNS = 120  # places that answer to the pointer


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """One named row of numbers; None where there is nothing to say."""

    name: str
    values: Sequence[float | None]
    colour: str = "c1"  # a class of the style sheet
    dashed: bool = False
    faint: bool = False  # another way of what has the same colour


@dataclass(frozen=True, slots=True)
class Plot:
    """What one picture shows; nothing here is markup."""

    name: str  # id in the page
    title: str
    note: str
    x: Sequence[float]
    series: Sequence[PlotSeries]
    kind: Literal["curves", "bars", "points"] = "curves"  # bars: stacked, each as wide as the step that ends at its x
    top: float | None = None  # end of the upright axis; None: what the numbers need
    say: Callable[[float], str] = count_text
    say_x: Callable[[float], str] = time_text
    log_x: bool = False
    dots: bool = False
    x_ticks: Sequence[float] = field(default=())  # empty: round times
    y_ticks: Sequence[float] = field(default=())  # empty: round numbers
    names: Sequence[str] = field(default=())  # of points: what stands at each x, in words
    missing: str = ""  # what it means where no series has a number; empty: nothing is said

    @property
    def has_data(self) -> bool:
        """Whether there is anything to draw."""
        values = [value for series in self.series for value in series.values if value is not None]
        return bool(self.x) and (bool(values) if self.missing else any(values))

    @property
    def gaps(self) -> list[int]:
        """Places at which no series has a number."""
        return [at for at in range(len(self.x)) if all(series.values[at] is None for series in self.series)]

    def highest(self) -> float:
        """The largest number to be drawn, sums where things are stacked."""
        columns = zip(*(series.values for series in self.series), strict=True)
        joined = sum if self.kind == "bars" else max
        return max((joined(value or 0.0 for value in column) for column in columns), default=0.0)


@dataclass(frozen=True, slots=True)
class Axes:
    """Where numbers lie in the drawing, and which of them are written along its edges."""

    start: float
    end: float
    top: float
    log: bool
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    margin: float = 0.0  # left and right of the outermost x, as a share of the width: a dot is never on the edge

    def across(self, x: float) -> float:
        """0 to 1 from left to right."""
        return self.margin + (1 - 2 * self.margin) * self._along(x)

    def _along(self, x: float) -> float:
        if self.end <= self.start:
            return 0.5
        if self.log:
            return math.log(x / self.start) / math.log(self.end / self.start)
        return (x - self.start) / (self.end - self.start)

    def up(self, y: float) -> float:
        """0 to 1 from the foot."""
        return min(1.0, y / self.top) if self.top else 0.0

    def point(self, x: float, y: float) -> str:
        """In the drawing's units."""
        return f"{WIDTH * self.across(x):.1f},{HEIGHT * (1 - self.up(y)):.2f}"


def axes_of(plot: Plot) -> Axes:
    """The axes of a plot."""
    top = plot.top if plot.top is not None else plot.highest()
    upright = [*plot.y_ticks, top] if plot.y_ticks else ticks(0.0, top, whole=plot.say is count_text)
    first = plot.x[0] if plot.log_x else 0.0
    along = list(plot.x_ticks or (plot.x if plot.log_x else time_ticks(first, plot.x[-1])))
    along = [x for x in along if x <= plot.x[-1] * (1 + 1e-9)]
    margin = MARGIN if plot.dots or plot.kind == "points" else 0.0
    return Axes(first, plot.x[-1], upright[-1], plot.log_x, along, plot.y_ticks or upright, margin)


def draw(plot: Plot) -> str:
    """The whole drawing, one <svg>."""
    axes = axes_of(plot)
    marks = [_gaps(plot, axes), _grid(axes)]
    if plot.kind == "curves":
        marks += [_curve(plot, nth, axes) for nth in range(len(plot.series))]
    elif plot.kind == "bars":
        marks += [_bars(plot, nth, axes) for nth in range(len(plot.series))] + [_zeros(plot, axes)]
    marks += _points(plot, axes) if plot.kind == "points" else _columns(plot, axes)
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(plot.title)}">{"".join(marks)}</svg>'
    )


def _grid(axes: Axes) -> str:
    level = "".join(f"M0,{HEIGHT * (1 - axes.up(y)):.2f}H{WIDTH:.0f}" for y in axes.y_ticks)
    post = "".join(f"M{WIDTH * axes.across(x):.1f},0V{HEIGHT:.0f}" for x in axes.x_ticks)
    return f'<path class="grid" d="{level}{post}"/>'


def _gaps(plot: Plot, axes: Axes) -> str:
    """Bands over the times of which nothing is known: they look like no 0."""
    if not plot.missing or not (gaps := plot.gaps):
        return ""
    edges = [axes.start, *plot.x]
    places = [(WIDTH * axes.across(edges[at]), WIDTH * axes.across(edges[at + 1])) for at in gaps]
    path = "".join(f"M{left:.1f},0H{right:.1f}V{HEIGHT:.0f}H{left:.1f}Z" for left, right in places)
    return f'<path class="gap" d="{path}"/>'


def _zeros(plot: Plot, axes: Axes) -> str:
    """A line at the foot where a whole stack is 0."""
    if not plot.missing:
        return ""
    edges, path = [axes.start, *plot.x], ""
    for at in range(len(plot.x)):
        values = [series.values[at] for series in plot.series]
        if not any(values) and values != [None] * len(values):
            path += f"M{axes.point(edges[at], 0)}H{WIDTH * axes.across(edges[at + 1]):.1f}"
    return f'<path class="zero" d="{path}"/>' if path else ""


def _runs(xs: Sequence[float], values: Sequence[float | None]) -> Iterator[list[tuple[float, float]]]:
    """Stretches without a gap."""
    run: list[tuple[float, float]] = []
    for x, value in zip(xs, values, strict=True):
        if value is None:
            if run:
                yield run
            run = []
        else:
            run.append((x, value))
    if run:
        yield run


def _curve(plot: Plot, nth: int, axes: Axes) -> str:
    """One curve, wider than those that would hide it."""
    path, dots, series = "", "", plot.series[nth]
    for run in _runs(plot.x, series.values):
        points = [axes.point(x, y) for x, y in run]
        path += "M" + "L".join(points)
        if plot.dots or len(points) == 1:
            dots += "".join(f"M{point}h0" for point in points)
    hiding = [later for later in plot.series[nth + 1 :] if _near(series, later, axes.top / 100)]
    more = 3 * min(4, len(hiding)) if plot.dots else 0
    wide, wider = (f' style="stroke-width:{width + more}"' if more else "" for width in (2, 8))
    faint = " faint" if series.faint else ""
    mark = f'<path class="curve {series.colour}{" dashed" if series.dashed else ""}{faint}"{wide} d="{path}"/>'
    return mark + (f'<path class="dot {series.colour}{faint}"{wider} d="{dots}"/>' if dots else "")


def _points(plot: Plot, axes: Axes) -> list[str]:
    """Dots, each with its words."""
    return [
        f'<path class="dot {series.colour}" d="M{axes.point(plot.x[at], value)}h0">'
        f"<title>{escape(plot.names[at])}</title></path>"
        for series in plot.series
        for at, value in enumerate(series.values)
        if value is not None
    ]


def _near(one: PlotSeries, other: PlotSeries, apart: float) -> bool:
    """Whether two curves lie on one another nearly everywhere."""
    pairs = zip(one.values, other.values, strict=True)
    known = [abs(a - b) < apart for a, b in pairs if a is not None and b is not None]
    return not other.dashed and 2 * sum(known) > len(known)


def _bars(plot: Plot, nth: int, axes: Axes) -> str:
    """One layer of a stack, on top of the layers before it."""
    path, left = "", axes.start
    for at, x in enumerate(plot.x):
        low = sum(series.values[at] or 0.0 for series in plot.series[:nth])
        value = plot.series[nth].values[at]
        if value:
            gap = (x - left) * 0.12 if len(plot.x) <= 80 else 0.0
            path += f"M{axes.point(left, low)}L{axes.point(left, low + value)}"
            path += f"H{WIDTH * axes.across(x - gap):.1f}V{HEIGHT * (1 - axes.up(low)):.2f}Z"
        left = x
    return f'<path class="fill {plot.series[nth].colour}" d="{path}"/>'


def _columns(plot: Plot, axes: Axes) -> list[str]:
    """Unseen upright strips; the pointer over one shows its numbers."""
    stride = -(-len(plot.x) // MAX_COLUMNS)
    marks: list[str] = []
    left = 0.0
    for at in range(0, len(plot.x), stride):
        following = min(at + stride, len(plot.x) - 1)
        here, there = WIDTH * axes.across(plot.x[at]), WIDTH * axes.across(plot.x[following])
        right = (here + there) / 2 if following > at else WIDTH
        words = ", ".join(
            f"{series.name} {plot.say(value)}" for series in plot.series if (value := series.values[at]) is not None
        )
        marks.append(
            f'<rect class="hover" x="{left:.1f}" y="0" width="{max(0.0, right - left):.1f}" height="{HEIGHT:.0f}">'
            f"<title>{escape(plot.say_x(plot.x[at]))}: {escape(words or plot.missing)}</title></rect>"
        )
        left = right
    return marks
