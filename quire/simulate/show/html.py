"""One self-contained HTML page: its style, and figures and tables as markup. Knows no replay.

Every string that comes in is text and leaves escaped; what is markup already says so by its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import NewType

from quire.simulate.show.svg import Axes, Plot, axes_of, draw

Markup = NewType("Markup", str)
TABLE_ROWS = 25  # of the numbers below a plot


def whole_page(title: str, parts: Iterable[Markup]) -> str:
    """The document; everything it needs is in it."""
    body = "\n".join(parts)
    style = files("quire.simulate.show").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def heading(text: str, level: int = 2) -> Markup:
    """A title."""
    return Markup(f"<h{level}>{escape(text)}</h{level}>")


def paragraph(text: str, kind: str = "") -> Markup:
    """Plain words."""
    return Markup(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")


def bullets(lines: Iterable[str]) -> Markup:
    """Plain words, one after the other."""
    return Markup(f'<ul class="said">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> Markup:
    """A table whose first `words` columns are text and whose others are numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = ("" if nth < words else ' class="n"' for nth in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    top = f"<thead><tr>{line('th', head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return Markup(f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>')


def answer(title: str, sentence: str) -> Markup:
    """How every page begins: what it is about, and what came of it, in a sentence."""
    return Markup(f'<header><h1>{escape(title)}</h1><p class="answer">{escape(sentence)}</p></header>')


def lines(texts: Iterable[str]) -> Markup:
    """Lines as they stand, such as a receipt."""
    return Markup(f"<pre>{escape(chr(10).join(texts))}</pre>")


def warning(text: str) -> Markup:
    """What must be known before any number is believed."""
    return Markup(f'<p class="warning" role="alert">{escape(text)}</p>')


def model_box(parts: Iterable[Markup]) -> Markup:
    """Numbers that were not measured, set apart."""
    return Markup(f'<section class="model">{"".join(parts)}</section>')


def folded(title: str, parts: Iterable[Markup]) -> Markup:
    """What is shown on demand; on paper, at once."""
    return Markup(f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>")


def figure(plot: Plot) -> Markup:
    """A plot with its words: title, note, legend, axes, and the numbers themselves below."""
    top = f"<figcaption><h3>{escape(plot.title)}</h3><p>{escape(plot.note)}</p></figcaption>"
    if not plot.has_data:
        return Markup(f'<figure id="{plot.name}">{top}<p class="empty">All zero: nothing to draw.</p></figure>')
    axes = axes_of(plot)
    keys = "".join(
        f'<li><i class="key {series.colour}{" dashed" if series.dashed else ""}{" faint" if series.faint else ""}"></i>'
        f"{escape(series.name)}</li>"
        for series in plot.series
    )
    legend = f'<ul class="legend">{keys}</ul>'
    ys = "".join(f'<span style="bottom:{100 * axes.up(y):.2f}%">{escape(plot.say(y))}</span>' for y in axes.y_ticks)
    widest = max(8, *(len(plot.say(y)) for y in axes.y_ticks))  # most have 8, so that the axes of plots stand in line
    lines = len(plot.y_ticks)
    frame = (
        f'<div class="frame" style="--gutter:{widest + 1}ch;--lines:{lines}"><div class="ys">{ys}</div>{draw(plot)}'
        f'<div class="xs">{_labels(plot, axes)}</div></div>'
    )
    return Markup(f'<figure id="{plot.name}">{top}{legend}{frame}{"" if plot.names else _numbers(plot)}</figure>')


def _labels(plot: Plot, axes: Axes) -> str:
    """Words below the axis; every second one gives way on a narrow screen."""
    marks = []
    for nth, x in enumerate(axes.x_ticks):
        place = 100 * axes.across(x)
        kind = "first" if place < 3 else "last" if place > 97 else ""
        marks.append(f'<span class="{kind}{" odd" if nth % 2 else ""}" style="left:{place:.2f}%">'
                     f"{escape(plot.say_x(x))}</span>")  # fmt: skip
    return "".join(marks)


def _numbers(plot: Plot) -> Markup:
    stride = -(-len(plot.x) // TABLE_ROWS)
    rows = [
        [plot.say_x(plot.x[at]), *("" if (v := series.values[at]) is None else plot.say(v) for series in plot.series)]
        for at in range(0, len(plot.x), stride)
    ]
    every = "" if stride == 1 else f" (every {stride}th)"
    return folded(f"Numbers{every}", [table(["at", *(series.name for series in plot.series)], rows)])
