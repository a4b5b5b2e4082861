"""One self-contained HTML page that looks like the live page: figures and tables as markup. Knows no replay.

Every string that comes in is text and leaves escaped; what is markup already says so by its type. Words between
backticks are commands and names, and are set as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import NewType

from quire.simulate.show.number_format import percent_text, share_text, shares_text
from quire.simulate.show.svg import Axes, Plot, axes_of, draw

Markup = NewType("Markup", str)
TABLE_ROWS = 25  # of the numbers below a plot
FEW_LABELS = 4  # of an axis, that have room on a narrow screen
ICON = (  # as on the live page
    '<svg viewBox="0 0 32 32" aria-hidden="true"><rect x="2" y="2" width="28" height="28" rx="7" fill="#3b5bdb"/>'
    '<g fill="#fff"><rect x="8" y="8" width="7" height="7" rx="1.5"/>'
    '<rect x="17" y="8" width="7" height="7" rx="1.5" opacity=".55"/>'
    '<rect x="8" y="17" width="7" height="7" rx="1.5" opacity=".55"/>'
    '<rect x="17" y="17" width="7" height="7" rx="1.5" fill="#ffd8a8"/></g></svg>'
)


def whole_page(title: str, parts: Iterable[Markup]) -> str:
    """The document; everything it needs is in it."""
    body = "\n".join(parts)
    style = files("quire.simulate.show").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Quire: {escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header class="top"><div class="brand">{ICON}<div><strong>Quire</strong><span>{escape(title)}</span></div>'
        f"</div></header>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def heading(text: str, level: int = 2) -> Markup:
    """A title."""
    return Markup(f"<h{level}>{_words(text)}</h{level}>")


def paragraph(text: str, kind: str = "") -> Markup:
    """Plain words."""
    return Markup(f'<p class="{kind}">{_words(text)}</p>' if kind else f"<p>{_words(text)}</p>")


def bullets(lines: Iterable[str]) -> Markup:
    """Plain words, one after the other."""
    return Markup(f'<ul class="said">{"".join(f"<li>{_words(line)}</li>" for line in lines)}</ul>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> Markup:
    """A table whose first `words` columns are text and whose others are numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = ("" if nth < words else ' class="n"' for nth in range(len(cells)))
        return "".join(f"<{tag}{kind}>{_words(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    top = f"<thead><tr>{line('th', head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    kind = "" if head else ' class="facts named"' if words > 1 else ' class="facts"'
    return Markup(f'<div class="wide"><table{kind}>{top}<tbody>{body}</tbody></table></div>')


def answer(sentence: str) -> Markup:
    """How every page begins: what came of it, in a sentence."""
    return Markup(f'<section class="hero"><h1 class="answer">{_words(sentence)}</h1></section>')


def tiles(facts: Iterable[tuple[str, str, str]]) -> Markup:
    """A few numbers that say most: a name, the number, and what it is of."""
    each = (
        f'<div class="tile"><h2>{_words(name)}</h2><p class="big">{_words(number)}</p>'
        f'<p class="soft">{_words(note)}</p></div>'
        for name, number, note in facts
    )
    return Markup(f'<section class="tiles" aria-label="In short">{"".join(each)}</section>')


def card(parts: Iterable[Markup], title: str = "") -> Markup:
    """What belongs together, on a ground of its own."""
    return Markup(f'<section class="card">{heading(title) if title else ""}{"".join(parts)}</section>')


def lines(texts: Iterable[str]) -> Markup:
    """Lines as they stand, such as a receipt."""
    return Markup(f'<pre class="card">{escape(chr(10).join(texts))}</pre>')


def warning(text: str) -> Markup:
    """What must be known before any number is believed."""
    return Markup(f'<p class="warning" role="alert">{_words(text)}</p>')


def folded(title: str, parts: Iterable[Markup]) -> Markup:
    """What is shown on demand; on paper, at once."""
    return Markup(f"<details><summary>{_words(title)}</summary>{''.join(parts)}</details>")


def change(name: str, before: float, after: float) -> Markup:
    """A share before and after, as two bars of 0 to 100 %."""
    bars = (
        f'<div class="share"><span>{word}</span><div class="bar">'
        f'<i class="{colour}" style="width:{100 * share:.2f}%"></i></div><b>{share_text(share)}</b></div>'
        for word, share, colour in (("now", before, "cfaint"), ("mended", after, "c3"))
    )
    return Markup(f'<div class="change"><p class="soft">{_words(name)}</p>{"".join(bars)}</div>')


def figure(plot: Plot) -> Markup:
    """A plot with its words: title, note, legend, axes, and the numbers themselves below."""
    top = f"<figcaption><h2>{_words(plot.title)}</h2><p>{_words(plot.note)}</p></figcaption>"
    if not plot.has_data:
        why = "Nothing is known of any time." if plot.missing else "All zero: nothing to draw."
        return Markup(f'<figure id="{plot.name}">{top}<p class="empty">{why}</p></figure>')
    axes = axes_of(plot)
    keys = "".join(
        f'<li><i class="key {series.colour}{" dashed" if series.dashed else ""}{" faint" if series.faint else ""}"></i>'
        f"{_words(series.name)}</li>"
        for series in plot.series
    )
    if plot.missing and plot.gaps:
        keys += f'<li><i class="key none"></i>{_words(plot.missing)}</li>'
    legend = f'<ul class="legend">{keys}</ul>'
    ys = "".join(f'<span style="bottom:{100 * axes.up(y):.2f}%">{escape(plot.say(y))}</span>' for y in axes.y_ticks)
    widest = max(8, *(len(plot.say(y)) for y in axes.y_ticks))  # most have 8, so that the axes of plots stand in line
    lines = len(plot.y_ticks)
    frame = (
        f'<div class="frame" style="--gutter:{widest + 1}ch;--lines:{lines}"><div class="ys">{ys}</div>{draw(plot)}'
        f'<div class="xs">{_labels(plot, axes)}</div></div>'
    )
    return Markup(f'<figure id="{plot.name}">{top}{legend}{frame}{"" if plot.names else _numbers(plot)}</figure>')


def _words(text: str) -> str:
    """Escaped; commands set as such, options and numbers with their units in one piece."""
    marked = re.sub("`([^`\n]+)`", r"<code>\1</code>", escape(text))
    whole = r"(?<![\w-])(--[a-z][\w-]*|[\d.,]+ (?:%|(?:m?s|min|[hd]|[kMGT]?B)\b(?!$)))"
    return re.sub(whole, r'<span class="whole">\1</span>', marked)


def _labels(plot: Plot, axes: Axes) -> str:
    """Words below the axis; of many every second one gives way on a narrow screen."""
    marks, many = [], len(axes.x_ticks) > FEW_LABELS
    for nth, x in enumerate(axes.x_ticks):
        place = 100 * axes.across(x)
        kind = "first" if place < 3 else "last" if place > 97 else ""
        marks.append(f'<span class="{kind}{" odd" if many and nth % 2 else ""}" style="left:{place:.2f}%">'
                     f"{escape(plot.say_x(x))}</span>")  # fmt: skip
    return "".join(marks)


def _numbers(plot: Plot) -> Markup:
    stride = -(-len(plot.x) // TABLE_ROWS)
    rows = [[plot.say_x(plot.x[at]), *_cells(plot, at)] for at in range(0, len(plot.x), stride)]
    every = "" if stride == 1 else f" (every {({2: '2nd', 3: '3rd'}).get(stride, f'{stride}th')})"
    return folded(f"Numbers{every}", [table(["at", *(series.name for series in plot.series)], rows)])


def _cells(plot: Plot, at: int) -> list[str]:
    """The numbers at one place; shares of one stack add up as printed."""
    values = [series.values[at] for series in plot.series]
    known = [value for value in values if value is not None]
    if plot.kind == "bars" and plot.say is percent_text and len(known) == len(values):
        return shares_text(known, sum(known))
    return [plot.missing if value is None else plot.say(value) for value in values]
