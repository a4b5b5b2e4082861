"""Findings as one HTML page: how many there are, then a card for each: whose, where, what to do, what it brings."""

from __future__ import annotations

import quire.simulate.show.html as html
from quire.insight.findings.find import LogFindings
from quire.insight.findings.finding import Finding, span_text
from quire.simulate.show.number_format import count_text, share_text

NONE = "No finding: nothing that is known to keep prompts from sharing stands out."
ALL = 0.995  # of the requests


def render(name: str, found: LogFindings) -> str:
    """The whole page."""
    parts = [html.answer(answer(found)), html.tiles(_tiles(found))]
    parts += [_card(number, one) for number, one in enumerate(found.findings, 1)]
    return html.whole_page(f"Findings for {name}", parts)


def answer(found: LogFindings) -> str:
    """In one sentence."""
    if not found.findings:
        return NONE
    count = len(found.findings)
    many = "1 finding" if count == 1 else f"{count} findings"
    best = max(found.findings, key=lambda one: one.weight if one.gain > 0 else -1.0)
    if best.gain <= 0:
        return f"{many}."
    which = "mending it" if count == 1 else "mending the largest"
    return f"{many}: {which} brings {whose(best)} hit rate from {share_text(best.before)} to {share_text(best.after)}."


def whose(one: Finding) -> str:
    """Of which requests its gain is."""
    if one.is_of_others:
        return "the others'"
    if one.requests >= ALL:
        return "the"
    return f"{one.application}'s" if one.application is not None else "its requests'"


def facts(one: Finding) -> list[tuple[str, str]]:
    """Who, where, what to do, how sure."""
    who = f"application {one.application}, " if one.application is not None else ""
    rows = [("Who", f"{who}{share_text(one.requests)} of the requests; {share_text(one.affected)} of these have it.")]
    if one.message is not None:
        rows.append(("Where", f"{one.message}."))
    rows.append(("Do", one.advice))
    if one.gain > 0:
        change = f"{share_text(one.before)} -> {share_text(one.after)}"
        rows.append(("Gain", f"{_rate_of(one)} {change}, replayed without the fault."))
    if one.saved is not None:
        text = f"{share_text(one.requests)} of the requests, with their answers"
        text += f", and {share_text(one.saved)} of all prompt tokens" if one.saved else "; their prompts are cached"
        rows.append(("Gain", f"{text} need not be computed." if one.saved else f"{text}."))
    lines = ", ".join(map(str, one.examples))
    return [*rows, ("Confidence", f"{one.confidence:.2f}. See lines {lines}.")]


def _rate_of(one: Finding) -> str:
    """Which hit rate it changes."""
    if not one.is_of_others:
        return "their hit rate"
    if "until" not in one.facts:
        return "the others' hit rate"
    return f"the others' hit rate {span_text(one.facts['from'], one.facts['until'])}"


def _card(number: int, one: Finding) -> html.Markup:
    rows = [row for row in facts(one) if row[0] != "Gain" or one.saved is not None]
    rate = _rate_of(one)
    bars = [html.change(f"{rate[0].upper()}{rate[1:]}, replayed", one.before, one.after)] if one.gain > 0 else []
    return html.card([*bars, html.table([], rows, words=2)], f"{number}. {one.text}")


def _tiles(found: LogFindings) -> list[tuple[str, str, str]]:
    return [
        ("Findings", count_text(len(found.findings)), "what keeps prompts from sharing"),
        ("Requests", count_text(found.requests), "in the log"),
        ("Prompt tokens", count_text(found.prompt_tokens), "of these requests"),
        ("Reuse at most", share_text(found.ceiling), "of these prompts as they are, if nothing is forgotten"),
    ]
