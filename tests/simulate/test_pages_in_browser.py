"""The pages as Chromium shows them: nothing overflows or overlaps, words can be read, in light, dark, on a phone, on
paper; without a single script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.cli.prompts import findings_page
from quire.insight.findings.find import LogFindings
from quire.insight.findings.finding import Finding
from quire.simulate.capacity import fleet_page, plan_page
from quire.simulate.capacity.capacity_plan import CapacityPlan, Objective, Prices, Search, Tried, memories
from quire.simulate.capacity.fleet import Fleet, FleetResult
from quire.simulate.capacity.routers import ROUTERS
from quire.simulate.play.sweep import Point, Sweep, TraceSource
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show import curves, page
from tests.simulate.test_replay_page import a_result
from tests.viewer.browser import MISSING, WHY, launched

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY)

HEAVY = {"load": 2.5, "offered_tokens_per_second": 50_000.0, "capacity_tokens_per_second": 20_000.0}
LOOKS = [("light", 1100), ("dark", 1100), ("light", 390), ("dark", 390)]

# What is wrong with what is seen: too wide, one label over another, words too pale (WCAG's 4.5).
LOOK = """() => {
  const wrong = [];
  const seen = (e) => e.getClientRects().length && getComputedStyle(e).visibility === 'visible';
  if (document.documentElement.scrollWidth > innerWidth) wrong.push('too wide');
  for (const kind of ['.xs', '.ys']) for (const axis of document.querySelectorAll(kind)) {
    const boxes = [...axis.children].filter(seen).map((e) => [e.textContent, e.getBoundingClientRect()]);
    for (const [a, one] of boxes) for (const [b, two] of boxes)
      if (a < b && one.left < two.right && two.left < one.right && one.top < two.bottom && two.top < one.bottom)
        wrong.push(`${a} over ${b}`);
  }
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
      .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.startsWith('rgba(0, 0, 0, 0')) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  for (const e of document.querySelectorAll('h1, h2, h3, p, li, td, th, summary, .xs span, .ys span, pre')) {
    if (!seen(e) || !e.textContent.trim()) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push('pale: ' + e.textContent.slice(0, 40));
  }
  for (const e of document.querySelectorAll('figure svg')) if (seen(e) && e.getBoundingClientRect().height < 100)
    wrong.push('flat plot');
  return [...new Set(wrong)];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as opened:
        yield opened


def swept() -> Sweep:
    model = {"ttft_ms": {"p50": 900.0}, "throughput_tokens_per_second": 12_345.0}
    points = []
    for host in ("0", "50GB", "200GB"):
        for device in ("8GB", "16GB", "32GB", "64GB"):
            for nth, order in enumerate(("lru", "adaptive")):
                made = ReplaySettings().with_memory("host", host).with_memory("device", device)
                rate = 0.1 + 0.001 * made.tiers[1].num_bytes / 1e9 + 0.002 * made.tiers[0].num_bytes / 1e9 + 0.02 * nth
                result = {
                    "hit_rate_of_trace": rate,
                    "model": model,
                    "load": HEAVY,
                    "refused": nth,
                    "broken_promises": 0,
                }
                points.append(Point(replace(made, eviction=order), result, rate + 0.05))  # type: ignore[arg-type]
    return Sweep("a trace.jsonl", tuple(points), 0.5)


def listed() -> LogFindings:
    """A fault of each sort: with a gain, with none, of an application, of all."""
    found = [
        Finding("changed", "What stands at token 214 is another each time.", "Put it behind `tools`.", 0.41, 0.977,
                0.015, 0.929, 0.95, "support-bot", 214, "message 0 (system)", (4, 9, 31)),
        Finding("retries", "Prompts are sent again.", "Wait longer (--timeout).", 1.0, 0.5, 0.1, 0.1, 0.6),
    ]  # fmt: skip
    return LogFindings(100_000, 203_456_789, 0.312, found)


def fleets() -> list[FleetResult]:
    """Up to 256 workers; the smallest fleet has more to do than it can."""
    times = {"mean": 400.0, "p50": 300.0, "p90": 900.0, "p95": 1234.5, "p99": 9000.0}
    return [
        FleetResult(count, router, 1000, 2, 10**7, 0.3 - 0.05 * nth / (1 + at), times, 3600.0, 2.0 / count, 1.2)
        for at, count in enumerate((1, 2, 4, 8, 16, 64, 256))
        for nth, router in enumerate(reversed(ROUTERS))
    ]


def planned() -> plan_page.ShownPlan:
    """Three tiers of several sizes: twelve memories, four numbers of workers, the last of them soon enough."""
    gb = 10**9
    sizes = memories(ReplaySettings(), [20 * gb, 40 * gb, 80 * gb], [0, 400 * gb], [0, 8000 * gb])
    search = Search(TraceSource("a trace.jsonl"), sizes, Objective(2.0), Prices())
    tried = []
    for memory in sizes:
        for count in (1, 2, 4, 8):
            fleet = Fleet(count, "exact", memory)
            soon = replace(fleets()[0], ttft_ms={"objective": 4000.0 / count}, refused=0)
            tried.append(Tried(fleet, search.prices.per_hour(fleet), None if count == 1 else soon))
    tried.append(replace(tried[0], error="it holds no page"))
    every = tuple(sorted(tried, key=lambda one: one.price))
    chosen = next(one for one in every if one.keeps(search.objective))
    return plan_page.ShownPlan(CapacityPlan(search.objective, chosen, every), search, None)


EDGES = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  const dots = [...svg.querySelectorAll(".dot")].flatMap((dot) => {
    const radius = parseFloat(getComputedStyle(dot).strokeWidth) / 2;
    return [...dot.getAttribute("d").matchAll(/M([\\d.]+),/g)].map((at) => at[1] / 1000 * box.width).filter(
      (x) => x < radius || x > box.width - radius);
  });
  const words = [...svg.parentElement.querySelectorAll(".xs span")];
  const hidden = words.length > 1 && words.length < 5 && words.some((one) => getComputedStyle(one).display === "none");
  return hidden ? [...dots, "a label is hidden"] : dots;
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    heavy = {**a_result(steps=90), "load": HEAVY}
    texts = {
        "replay": page.render(heavy),
        "compare": page.render(a_result(), a_result(broken=1)),
        "sweep": curves.render(swept()),
        "fleet": fleet_page.render("a trace.jsonl", fleets(), ReplaySettings()),
        "findings": findings_page.render("requests.jsonl.gz", listed()),
        "plan": plan_page.render("a trace.jsonl", planned()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_pages_can_be_read(browser: Any, pages: dict[str, Path], scheme: str, width: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=True
    )
    tab = context.new_page()
    for name, path in pages.items():
        tab.goto(path.as_uri())
        answer, plots = tab.locator(".answer").bounding_box(), tab.locator("figure svg").count()
        assert tab.locator("h1").count() == 1 and (plots or name == "findings")
        plot = tab.locator("figure svg" if plots else ".bar").first.bounding_box()
        assert answer["y"] < plot["y"] < 800, f"{name}: the answer comes first, then the plot that shows it"
        assert tab.evaluate(LOOK) == [], name
        assert tab.evaluate(EDGES) == [], f"{name}: no dot is cut off, and the outermost have their words"
        tab.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        assert tab.evaluate(LOOK) == [], f"{name}, unfolded"
    context.close()


@pytest.mark.parametrize("name", ["replay", "fleet", "plan"])
def test_paper_shows_what_is_folded(browser: Any, pages: dict[str, Path], name: str) -> None:
    tab = browser.new_page(viewport={"width": 800, "height": 1000}, color_scheme="dark")
    tab.goto(pages[name].as_uri())
    closed = tab.locator("main > details table").last
    assert not closed.is_visible()
    tab.emulate_media(media="print")
    assert (
        closed.is_visible() and tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert tab.evaluate(LOOK) == []
    tab.close()


def test_a_pointer_over_a_plot_shows_numbers(browser: Any, pages: dict[str, Path]) -> None:
    tab = browser.new_page()
    tab.goto(pages["sweep"].as_uri())
    titles = tab.evaluate("[...document.querySelectorAll('figure rect.hover title')].map((e) => e.textContent)")
    assert len(titles) == 4 and titles[-1].startswith("64 GB: no host, lru ")
    tab.close()


def test_no_dot_is_on_the_edge_and_the_cheapest_stands_out(browser: Any, pages: dict[str, Path]) -> None:
    tab = browser.new_page()
    for name in ("plan", "sweep", "fleet"):
        tab.goto(pages[name].as_uri())
        frame = tab.locator("figure svg").first.bounding_box()
        for dot in tab.locator("figure svg").first.locator(".dot").all():
            box = dot.bounding_box()
            assert frame["x"] + 10 < box["x"] and box["x"] + box["width"] < frame["x"] + frame["width"] - 10, name
    tab.goto(pages["plan"].as_uri())
    widths = tab.evaluate("""[".cgood", ".cbad"].map((kind) =>
      parseFloat(getComputedStyle(document.querySelector("#plan .dot" + kind)).strokeWidth))""")
    assert widths[0] > widths[1]
    tab.close()


def test_a_pointer_over_a_dot_names_the_fleet(browser: Any, pages: dict[str, Path]) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 1200})
    tab.goto(pages["plan"].as_uri())
    found = tab.evaluate("""[...document.querySelectorAll('#plan .dot')].map((e) => {
      const box = e.getBoundingClientRect();
      const there = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
      return [e.textContent, e.getAttribute('class'), there && there.textContent];
    })""")
    assert len(found) == 48 and sum(kind == "dot cgood" for _, kind, _ in found) == 1
    words = {name for name, _, _ in found}
    assert "2 workers with 20 GB device: 2.00 an hour, 2 s" in words
    assert "1 worker with 80 GB device, 400 GB host, 8 TB disk: 5.30 an hour, too late, given up" in words
    assert sum(name == there for name, _, there in found) >= 40, "a dot answers for itself, unless others hide it"
    tab.close()
