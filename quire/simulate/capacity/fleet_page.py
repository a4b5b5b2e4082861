"""What fleets showed, in words, rows and as one HTML page: what cache-aware routing gains. Runs
nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import quire.simulate.show.html as html
import quire.simulate.show.story as story
from quire.simulate.capacity.fleet import FleetResult
from quire.simulate.capacity.routers import ROUTERS
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show.number_format import bytes_text, count_text, percent_text, share_text, time_text
from quire.simulate.show.svg import Plot, PlotSeries

NOTE = "times are modelled from stated rates (--prefill-rate and others), not measured"
HEAD = ("workers", "router", "hit rate", "first token p50", "p95", "load", "busiest", "refused")
DEADLINE_HEAD = ("workers", "router", "in time", "a second", "refused", "clients left", "bounds kept")
LEGEND = "load: prompt tokens to compute, of what the workers can; busiest: its share, of the mean"
_COLOURS: dict[str, str] = {**dict(zip(ROUTERS, ("c2", "c3", "c1"), strict=True)), "deadline": "c4"}
_WHO = {
    "round_robin": "the next worker gets it, whatever it has",
    "least_loaded": "the worker that would be soonest if none held anything",
    "exact": "the worker that would be soonest by what each holds",
    "deadline": "the worker with the smallest bound for its first token; none where that is too late",
}


def apart_lines(settings: ReplaySettings) -> list[str]:
    """What a store that is called shared is here."""
    coldest = settings.tiers[-1]
    if not coldest.slow or coldest.name != "shared":
        return []
    size = bytes_text(coldest.num_bytes) if coldest.num_bytes else "its blocks"
    return [
        f"Each worker has a shared store of {size} to itself here: what another one put there is not found. One store "
        "for all of them hits more; how much more is not modelled."
    ]


def workers_text(count: int) -> str:
    """1 worker, 2 workers."""
    return f"{count_text(count)} worker{'s' * (count != 1)}"


def rows(results: Sequence[FleetResult]) -> list[list[str]]:
    """Every fleet, a line each."""
    return [
        [
            count_text(result.workers), result.router, share_text(result.hit_rate), time_text(result.ttft(50)),
            time_text(result.ttft(95)), share_text(result.offered_load, 0), f"{result.imbalance:.2f}",
            count_text(result.refused),
        ]
        for result in results
    ]  # fmt: skip


def deadline_rows(results: Sequence[FleetResult]) -> list[list[str]]:
    """Of every fleet whose first tokens are wanted in time."""
    return [
        [
            count_text(one.workers), one.router, count_text(found.in_time), f"{found.goodput:.2f}",
            count_text(found.refused), count_text(found.left),
            share_text(found.kept / found.bounds) if found.bounds else "-",
        ]
        for one in results if (found := one.deadlines) is not None
    ]  # fmt: skip


def answer(results: Sequence[FleetResult]) -> str:
    """What cache-aware routing gains, in one sentence."""
    pairs = [pair for count in _counts(results) if (pair := _pair(results, count))]
    if len(pairs) < 2 or len({blind.router for _, blind in pairs}) > 1:
        lines = [*(_beside(*pair) for pair in pairs[:1]), *answer_lines(results)]
        return lines[0] if lines else "No fleet could run."
    points = [(exact.hit_rate - blind.hit_rate) * 100 for exact, blind in pairs]
    counts, other = [exact.workers for exact, _ in pairs], pairs[0][1].router
    who = f"with {min(counts)} to {workers_text(max(counts))} a cache-aware router hits"
    if not any(map(_shows, points)):
        return f"No difference: {who} as much as {other}."
    sign = "+" if min(points) < 0 else ""
    return f"W{who[1:]} {min(points):{sign}.1f} to {max(points):{sign}.1f} points more than {other}."


def answer_lines(results: Sequence[FleetResult]) -> list[str]:
    """The same for each number of workers."""
    lines = []
    for count in _counts(results):
        if (pair := _pair(results, count)) is None:
            lines += _alone([result for result in results if result.workers == count])
            continue
        lines.append(_beside(*pair))
    return lines


def _shows(points: float) -> bool:
    """Whether a difference is left when it is printed."""
    return abs(points) >= 0.05


def _beside(exact: FleetResult, blind: FleetResult) -> str:
    points, workers = (exact.hit_rate - blind.hit_rate) * 100, workers_text(exact.workers)
    soon, late = time_text(exact.ttft(95)), time_text(blind.ttft(95))
    if not _shows(points) and soon == late:
        return f"{workers}: no difference between a cache-aware router and {blind.router}."
    more = f"{abs(points):.1f} points {'more' if points > 0 else 'less'} than" if _shows(points) else "as much as"
    times = f"the same p95 first token, {soon}" if soon == late else f"a p95 first token of {soon} instead of {late}"
    return f"{workers}: a cache-aware router hits {more} {blind.router}, with {times}."


def _pair(results: Sequence[FleetResult], count: int) -> tuple[FleetResult, FleetResult] | None:
    """The router that knows, and the best of those that do not."""
    by_router = {result.router: result for result in results if result.workers == count}
    exact, blind = by_router.get("exact"), by_router.get("least_loaded") or by_router.get("round_robin")
    return (exact, blind) if exact is not None and blind is not None and count > 1 else None


def _alone(results: Sequence[FleetResult]) -> list[str]:
    """Fleets of one size with no router that knows beside one that does not; of equal ones it is said once."""
    by_outcome: dict[str, list[str]] = {}
    for one in results:
        said = f"{share_text(one.hit_rate)} of the prompt tokens are reused, and the p95 first token takes "
        by_outcome.setdefault(f"{said}{time_text(one.ttft(95))}.", []).append(one.router)
    workers = workers_text(results[0].workers)
    if len(by_outcome) == 1 and len(results) > 1:
        return [f"{workers}, whatever the router: {said}" for said in by_outcome]
    return [f"{workers}, {', '.join(routers)}: {said}" for said, routers in by_outcome.items()]


def warning_lines(results: Sequence[FleetResult]) -> list[str]:
    """Fleets to which more comes than they can compute: their times mean nothing."""
    heavy = [result for result in results if result.offered_load > 1]
    if not heavy:
        return []
    most = max(heavy, key=lambda result: result.offered_load)
    counts = ", ".join(dict.fromkeys(str(result.workers) for result in heavy))
    few = "1 worker" if counts == "1" else f"{counts} workers"
    return [
        f"More comes than {few} can compute (up to {share_text(most.offered_load, 0)} of it, with "
        f"{most.router}): their waiting times grow with the trace. Add workers, or slow it down (--speed)."
    ]


def _counts(results: Sequence[FleetResult]) -> list[int]:
    return list(dict.fromkeys(result.workers for result in results))


def render(name: str, results: Sequence[FleetResult], settings: ReplaySettings, warnings: Sequence[str] = ()) -> str:
    """The whole page; `warnings` are those that are not about a single fleet."""
    first = answer(results)
    rest = [line for line in answer_lines(results) if line != first]
    in_time = deadline_rows(results)
    facts = story.settings({"settings": settings.to_json()})
    routers = [(router, _WHO[router]) for router in _WHO if any(result.router == router for result in results)]
    parts = [
        html.answer(first),
        *(html.warning(line) for line in (*warnings, *warning_lines(results))),
        html.figure(hit_plot(results)),
        *([html.card([html.bullets(rest)], "By the number of workers")] if rest else []),
        html.folded("First tokens", [html.paragraph(f"{NOTE[0].upper()}{NOTE[1:]}.", "soft"),
                                     html.figure(first_token_plot(results))]),
        html.folded("Every fleet", [html.table(HEAD, rows(results), words=2), html.paragraph(LEGEND, "soft")]),
        *([html.folded("First tokens in time", [html.table(DEADLINE_HEAD, in_time, words=2)])] if in_time else []),
        html.folded("The routers", [html.table([], routers, words=2)]),
        html.folded("Settings of a worker", [html.table([], facts, words=2)]),
    ]  # fmt: skip
    return html.whole_page(f"Fleets for {name}", parts)


def hit_plot(results: Sequence[FleetResult]) -> Plot:
    """Hit rate over the number of workers, a line for each router."""
    note = "Share of the prompt tokens that were not computed, by the number of workers that share the traffic."
    xs = sorted({*_counts(results)})
    series = _series(results, xs, lambda result: result.hit_rate)
    return Plot(
        "hits", "Hit rate over workers", note, xs, series, top=1.0, say=percent_text, say_x=count_text,
        log_x=xs[-1:] != xs[:1], dots=True, x_ticks=_x_ticks(xs),
    )  # fmt: skip


def first_token_plot(results: Sequence[FleetResult]) -> Plot:
    """The p95 first token over the number of workers, a line for each router."""
    xs = sorted({*_counts(results)})
    series = _series(results, xs, lambda result: result.ttft(95))
    note = "Seconds until 95 % of the requests have their first token, by the number of workers."
    return Plot(
        "first-tokens", "First token, p95", note, xs, series, say=time_text, say_x=count_text,
        log_x=xs[-1:] != xs[:1], dots=True, x_ticks=_x_ticks(xs),
    )  # fmt: skip


def _x_ticks(xs: list[int]) -> list[int]:
    return xs[:: -(-len(xs) // 8)] if xs else []


def _series(results: Sequence[FleetResult], xs: list[int], value: Callable[[FleetResult], float]) -> list[PlotSeries]:
    series = []
    for router in dict.fromkeys(result.router for result in results):
        by_workers = {result.workers: value(result) for result in results if result.router == router}
        series.append(PlotSeries(router, [by_workers.get(x) for x in xs], _COLOURS[router]))
    return series
