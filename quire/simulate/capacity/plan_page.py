"""A plan in words, rows and as one HTML page: the cheapest fleet, what else was tried, what it assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, floor, log10
from typing import Any

import quire.simulate.show.html as html
import quire.simulate.show.story as story
from quire.simulate.capacity.capacity_plan import (
    MOST_OFF,
    CapacityPlan,
    MeasuredEngine,
    Objective,
    Prices,
    Search,
    Tried,
)
from quire.simulate.capacity.fleet_page import NOTE, workers_text
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show.number_format import bytes_text, count_text, share_text, ticks, time_text, value_text
from quire.simulate.show.svg import Plot, PlotSeries

BELOW, ABOVE = 8, 4  # fleets of the table on the screen that are cheaper than the chosen one, and that are not
TOO_LATE, BEST = "too late", "the cheapest"
_COLOURS = {TOO_LATE: "cbad", "soon enough": "c1", BEST: "cgood"}
LOAD = "prompt tokens to compute, of what its workers can"


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan, and what it was made from."""

    plan: CapacityPlan
    search: Search
    measured: MeasuredEngine | None
    lengths_only: bool = False  # what prompts share is not known

    @property
    def is_believed(self) -> bool:
        """Whether its model was near enough to what was measured, where anything was."""
        return self.measured is None or self.measured.is_good

    @property
    def chosen(self) -> Tried | None:
        """What is recommended."""
        return self.plan.chosen if self.is_believed else None

    @property
    def objective(self) -> str:
        """In words."""
        if self.plan.objective.bounds_kept is not None:
            return (
                f"first token within {time_text(self.plan.objective.seconds)} of "
                f"{self.plan.objective.percent:g} % of all requests"
            )
        return f"p{self.plan.objective.percent:g} first token within {time_text(self.plan.objective.seconds)}"

    def answer(self) -> str:
        """In one sentence, or two."""
        chosen, checks = self.chosen, self.measured.checks if self.measured else ()
        if not self.is_believed:
            worst = max((check.off for check in checks), default=None)
            if worst is None:
                return "No recommendation: the measurements have no checks. Measure again, with benchmarks/plan.py."
            return (
                f"No recommendation: on the engine that was measured the predicted first token was off by "
                f"{share_text(worst, 0)}, and more than {share_text(MOST_OFF, 0)} is too much. "
                "Measure again, with rates of your own load."
            )
        if chosen is None:
            return self._none()
        result = chosen.result
        assert result is not None
        return (
            f"Cheapest for a {self.objective}: {fleet_text(chosen)}, "
            f"{money_text(chosen.price, self.search.currency)} an hour. Predicted: "
            f"{outcome(chosen, self.plan.objective)}, {share_text(result.hit_rate)} hit, "
            f"{share_text(result.offered_load, 0)} of its prefill rate used."
        )

    def _none(self) -> str:
        """Why there is none, and what would help."""
        bounds, objective = self.plan.bounds, self.plan.objective
        few = f"No fleet of up to {workers_text(self.search.most_workers)} keeps the {self.objective}"
        rate = f"{count_text(self.search.memories[0].pace.prefill_tokens_per_second)} prompt tokens a second"
        least = f"{_rounded_up(bounds.seconds):g} s"
        if bounds.seconds > objective.seconds:
            return (
                f"No fleet keeps the {self.objective}: at {rate} the p{objective.percent:g} prompt alone takes {least} "
                "on an idle worker, if nothing that came before is forgotten. More workers or memory do not help: "
                f"allow {least} or more (--ttft), or give a faster engine (--prefill-rate)."
            )
        if bounds.workers > self.search.most_workers:
            return (
                f"{few}: at {rate} it takes at least {workers_text(bounds.workers)} to compute what is new in the "
                "prompts. Allow so many (--most-workers), or give a faster engine (--prefill-rate)."
            )
        return f"{few}: allow more workers, more memory or more time. Sooner than {least} no fleet can be."

    def near(self) -> Sequence[Tried]:
        """Of what was tried, what is worth a look beside the chosen one; the cheapest first."""
        tried = self.plan.tried
        at = tried.index(self.chosen) if self.chosen is not None else len(tried)
        return tried[max(0, at - BELOW) : at + ABOVE]


def _rounded_up(seconds: float) -> float:
    """To two digits, and never less."""
    digits = 1 - floor(log10(seconds)) if seconds else 0
    return round(ceil(seconds * 10.0**digits - 1e-9) / 10.0**digits, max(digits, 0))


def head(currency: str) -> tuple[str, ...]:
    """Of a table of fleets."""
    return "fleet", f"{currency} an hour".strip(), "first token", "hit rate", "load"


def money_text(amount: float, currency: str) -> str:
    """3.00 EUR; $ stands before it."""
    return f"${amount:,.2f}" if currency == "$" else f"{amount:,.2f} {currency}".strip()


def fleet_text(tried: Tried) -> str:
    """2 workers with 40 GB device, 200 GB host."""
    return f"{workers_text(tried.fleet.workers)} with {memory_text(tried.fleet.settings)}"


def memory_text(settings: ReplaySettings) -> str:
    """Its tiers in words."""
    sizes = [f"{bytes_text(tier.num_bytes)} {tier.name}" for tier in settings.tiers if tier.num_bytes]
    return ", ".join(sizes)


def outcome(tried: Tried, objective: Objective) -> str:
    """Its first token and whether that is soon enough, or why there is none."""
    if tried.result is None:
        return tried.error or f"{TOO_LATE}, given up"
    refused = f", {count_text(tried.num_refused)} fit nowhere" if tried.num_refused else ""
    late = "" if tried.keeps(objective) or refused else f", {TOO_LATE}"
    if objective.bounds_kept is not None:
        return f"{share_text(tried.result.in_time)} in time{refused}{late and ', too few'}"
    return f"{tried.result.ttft_ms['objective'] / 1000:.3g} s{refused}{late}"


def rows(tried: Sequence[Tried], objective: Objective) -> list[list[str]]:
    """Fleets, a line each."""
    return [
        [
            fleet_text(one), f"{one.price:.2f}", outcome(one, objective),
            share_text(one.result.hit_rate) if one.result else "",
            share_text(one.result.offered_load, 0) if one.result else "",
        ]
        for one in tried
    ]  # fmt: skip


def assumed(search: Search, measured: MeasuredEngine | None) -> dict[str, Any]:
    """Everything that the answer rests on."""
    pace = search.memories[0].pace
    return {
        "times": NOTE.removeprefix("times are "),
        "rates": "measured" if measured else "as given: not measured here",
        "prefill_tokens_per_second": pace.prefill_tokens_per_second,
        "decode_ms": pace.decode_ms,
        "decode_ms_per_sequence": pace.decode_ms_per_sequence,
        **({"currency": search.currency} if search.currency else {}),
        "prices_per_hour": {field.name: getattr(search.prices, field.name) for field in fields(Prices)},
        "router": search.router,
        **_asked(search.objective),
        "model": search.memories[0].shape,
        "traffic": "as in the trace: no growth, no failures, equal workers",
        "checks": [] if measured is None else [[one.predicted, one.measured] for one in measured.checks],
    }


def _asked(objective: Objective) -> dict[str, Any]:
    """What becomes of requests that would be late, where each has a deadline."""
    if objective.bounds_kept is None:
        return {}
    return {"late_requests": "are refused by the router 'deadline', and leave others", "bounds": objective.bounds_kept}


def assumed_rows(search: Search, measured: MeasuredEngine | None) -> list[tuple[str, str]]:
    """The same for people."""
    facts = assumed(search, measured)
    checks = [f"{time_text(one)} predicted, {time_text(other)} measured" for one, other in facts.pop("checks")]
    found = [(name.replace("_", " "), value_text(value)) for name, value in facts.items()]
    return [*found, *(("checks", line) for line in ["; ".join(checks)] if checks)]


def render(name: str, shown: ShownPlan) -> str:
    """The whole page."""
    plan, search = shown.plan, shown.search
    same = {key: value for key, value in search.memories[0].to_json().items() if key != "memory"}
    facts = assumed_rows(search, shown.measured)
    parts = [
        html.answer(shown.answer()),
        *([html.warning(story.UNSHARED)] if shown.lengths_only else []),
        html.tiles(_tiles(shown)),
        *([html.figure(plot(shown))] if plan.tried else []),
        html.card([html.bullets(_told(shown))], "What to know"),
        html.folded("What it assumes", [html.table([], facts, words=2)]),
        html.folded(f"All {count_text(len(plan.tried))} fleets that were tried",
                    [html.table(head(search.currency), rows(plan.tried, plan.objective)),
                     html.paragraph(f"Load: {LOAD}.", "soft")]),
        html.folded("Settings they share", [html.table([], story.settings({"settings": same}), words=2)]),
    ]  # fmt: skip
    return html.whole_page(f"Plan for {name}", parts)


def _tiles(shown: ShownPlan) -> list[tuple[str, str, str]]:
    """What the page shows large."""
    tried = ("Tried", count_text(len(shown.plan.tried)), "fleets")
    if shown.chosen is None or shown.chosen.result is None:
        return [tried]
    result, price = shown.chosen.result, shown.chosen.price
    first = time_text(result.ttft_ms["objective"] / 1000)
    if result.deadlines is not None:
        served = ("In time", share_text(result.in_time), "of all requests, modelled")
    else:
        served = ("First token", first, f"p{shown.plan.objective.percent:g}, modelled")
    return [
        ("Price", money_text(price, shown.search.currency), "an hour"),
        served,
        ("Hit rate", share_text(result.hit_rate), "of the prompt tokens are reused"),
        ("Load", share_text(result.offered_load, 0), "of its prefill rate is used"),
        tried,
    ]


def _told(shown: ShownPlan) -> list[str]:
    """What the plot cannot say."""
    late = sum(one.result is None and not one.error for one in shown.plan.tried)
    lines = [f"Times are modelled{'' if shown.measured else ' from rates as given'}, not measured; traffic is as in "
             "the trace, and workers do not fail."]  # fmt: skip
    if late:
        lines.append(f"{count_text(late)} of {count_text(len(shown.plan.tried))} fleets were given up as soon as too "
                     "many requests were late; where they would have ended is not known.")  # fmt: skip
    reasons = dict.fromkeys(one.error for one in shown.plan.tried if one.error)
    return [*lines, *(f"Did not run: {reason}" for reason in reasons)]


def plot(shown: ShownPlan) -> Plot:
    """Every fleet by its memory and its price: a row for each memory, to the right with more workers."""
    objective, chosen, currency = shown.plan.objective, shown.chosen, shown.search.currency
    tried = [one for one in shown.plan.tried if not one.error]
    labels = _memory_labels(shown, tried)
    places = {settings: len(labels) - nth - 0.5 for nth, settings in enumerate(labels)}
    words = {place: labels[settings] for settings, place in places.items()}
    groups: dict[str, list[float | None]] = {name: [None] * len(tried) for name in (TOO_LATE, "soon enough", BEST)}
    for nth, one in enumerate(tried):
        name = BEST if one is chosen else "soon enough" if one.keeps(objective) else TOO_LATE
        groups[name][nth] = places[one.fleet.settings]
    prices = [one.price for one in tried]
    tiers = " + ".join(tier.name for tier in max((one.fleet.settings.tiers for one in tried), key=len, default=()))
    note = (
        f"A row for each memory of a worker ({tiers}), a dot for each number of workers that was tried, by the price "
        f"an hour{currency and f' in {currency}'}: is its {shown.objective}?"
    )
    return Plot(
        "plan", "Every fleet that was tried", note, prices,
        [PlotSeries(name, values, _COLOURS[name]) for name, values in groups.items() if any(values)],
        kind="points", top=float(len(labels)), say=lambda place: words[place], say_x=_price,
        x_ticks=ticks(0.0, max(prices, default=1.0), 7), y_ticks=list(words),
        names=[f"{fleet_text(one)}: {money_text(one.price, currency)} an hour, {outcome(one, objective)}"
               for one in tried],
    )  # fmt: skip


def _memory_labels(shown: ShownPlan, tried: Sequence[Tried]) -> dict[ReplaySettings, str]:
    """The memories that were tried, in the order in which they were given: 40 GB + 200 GB."""
    played = {one.fleet.settings for one in tried}
    return {
        memory: " + ".join(bytes_text(tier.num_bytes) if tier.num_bytes else "0" for tier in memory.tiers)
        for memory in shown.search.memories
        if memory in played
    }


def _price(value: float) -> str:
    return f"{value:,.2f}".removesuffix(".00")
