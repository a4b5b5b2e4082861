"""The page and the screen of a replay: self-contained, complete, and safe with any name."""

from __future__ import annotations

import io
import re
import sys
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

import quire.simulate.show.causes as causes_module
from quire.simulate.show import page, screen, story
from quire.simulate.show.buckets import joined
from quire.simulate.show.html import ICON, figure
from quire.simulate.show.number_format import (
    bytes_text,
    count_text,
    percent_text,
    shares_text,
    ticks,
    time_text,
    time_ticks,
)
from quire.simulate.show.svg import Plot, PlotSeries, draw

VOID = {"meta", "path", "rect", "br", "link", "img"}
HOSTILE = '<script>alert("x")</script> & </title> \' onload="y"'


def a_result(*, steps: int = 12, broken: int = 0, host: str = "host") -> dict[str, Any]:
    rise = [at / steps for at in range(steps)]
    hits = {"device": [None, *rise[1:]], host: [None, *(x / 2 for x in rise[1:])]}
    return {
        "trace": "a trace.jsonl", "requests": 1200, "refused": 2, "skipped_lines": 3, "batches": 96,
        "requests_per_second": 4000.5, "broken_promises": broken, "worst_overshoot_tokens": 900 if broken else 0,
        "hit_rate": 0.31, "hit_rate_by_tier": {"device": 0.2, host: 0.11}, "tokens_saved": 123456 - broken,
        "hit_rate_by_group": {"full": 0.3, "local": 0.4}, "evictions": 77, "onboarded_bytes": 5 * 10**9,
        "offloaded_bytes": 7 * 10**9,
        "model": {"note": "modelled from rates", "seconds": 90.0, "ttft_ms": {"mean": 812.5, "p99": 9000.0}},
        "settings": {"shape": "llama", "memory": {"device": 8 * 10**9, host: "[400] blocks"}, "two_phase": True,
                     "retain": [], "pace": {"decode_ms": 12.0, "link_bytes_per_second": [50 * 10**9]}},
        "series": {
            "seconds": [30.0 * (at + 1) for at in range(steps)], "prompt_tokens": [100] * steps,
            "hit_rate_by_tier": hits, "hit_rate_by_group": {"full": rise, "local": rise},
            "use_by_tier": {"device": rise, host: rise}, "held_by_tier": {"device": rise},
            "promises_kept": [8] * steps, "promises_broken": [broken and at % 2 for at in range(steps)],
            "worst_overshoot_tokens": [broken and 900 * (at % 2) for at in range(steps)],
            "onboarded_bytes": [10**9] * steps, "offloaded_bytes": [2 * 10**9] * steps,
        },
    }  # fmt: skip


class Seen(HTMLParser):
    """Tags and words of a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = {}  # by the id of the figure, "" outside of them
        self.where = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "figure":
            self.where = dict(attrs)["id"] or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        if tag == "figure":
            self.where = ""

    def handle_data(self, data: str) -> None:
        self.words[self.where] = self.words.get(self.where, "") + data

    def paths(self, kind: str) -> list[str]:
        return [facts["d"] or "" for tag, facts in self.tags if tag == "path" and kind in (facts["class"] or "")]


def check_alone(text: str) -> Seen:
    """Nothing in the page comes from elsewhere, and nothing in it runs."""
    seen = Seen(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|javascript:", text, re.IGNORECASE)
    for tag, facts in seen.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "use", "form")
        assert not [name for name in facts if name in ("src", "href", "xlink:href", "action") or name.startswith("on")]
    return seen


def test_the_page_stands_alone_and_shows_every_plot() -> None:
    seen = check_alone(page.render(a_result()))
    names = ["hits-by-tier", "hits-by-group", "use", "promises", "moves"]
    assert [facts["id"] for tag, facts in seen.tags if tag == "figure"] == names
    assert sum(tag == "svg" for tag, _ in seen.tags) == len(names) + 1, "and the icon"
    assert all(len(path) > 20 for path in seen.paths("curve")) and len(seen.paths("curve")) == 2 + 3
    assert len(seen.paths("fill")) == 2 + 2 + 2
    assert sum(len(path) > 20 for path in seen.paths("fill")) == 5  # all but the promises that broke
    assert "device" in seen.words["hits-by-tier"] and "host" in seen.words["hits-by-tier"]
    assert "broken (0)" in seen.words["promises"] and "kept (96)" in seen.words["promises"]
    assert "100 %" in seen.words["use"] and "device, in use" in seen.words["use"]
    assert "100 MB/s" in seen.words["moves"]  # 3 GB in each 30 s


def test_the_page_says_what_happened_and_what_is_a_model() -> None:
    words = check_alone(page.render(a_result())).words[""]
    for part in ("1,200 requests were replayed", "31.0 % of the prompt tokens", "Every promise was kept", "0.812 s",
                 "A model, not a measurement", "Modelled from rates.", "2 requests were refused", "5 GB came back",
                 "device 8 GB, host [400] blocks", "decode ms 12", "50 GB"):  # fmt: skip
        assert part in words


def test_the_parts_of_the_page_have_their_titles() -> None:
    for baseline, parts in (
        (None, ["Over time", "A model, not a measurement", "All counts", "Settings"]),
        (a_result(broken=1), ["Two-phase beside one at a time", "Over time", "Settings"]),  # each number once
    ):
        text = page.render(a_result(), baseline)
        titles = re.findall("<section class=.card.><h2>(.*?)</h2>|<summary>(.*?)</summary>", text)
        assert [a or b for a, b in titles if "Numbers" not in b] == ["In words", *parts]
        assert text.index('class="answer">') < text.index("<figure") < text.index("<details><summary>Over time")


def test_a_comparison_shows_both_and_how_far_promises_were_broken() -> None:
    seen = check_alone(page.render(a_result(), a_result(broken=1)))
    names = [facts["id"] for tag, facts in seen.tags if tag == "figure"]
    assert names == ["promises-one", "promises", "overshoot-one"]
    same = check_alone(page.render(a_result(), a_result()))
    assert not [tag for tag, _ in same.tags if tag == "figure"], "where nothing differs nothing is drawn"
    assert "one at a time broke 1 promise (worst by 900 tokens)" in seen.words[""]
    assert "time to first token, mean (modelled)" in seen.words[""]
    assert "broken (6)" in seen.words["promises-one"] and "900" in seen.words["overshoot-one"]


def test_hit_rates_are_of_100_percent_and_no_requests_is_not_0_percent() -> None:
    result = a_result(steps=4)
    result["series"]["hit_rate_by_tier"] = {"device": [None, 0.0, 0.1, 0.2], "host": [None, 0.0, 0.0, 0.04]}
    text = page.render(result)
    first = text[text.index('id="hits-by-tier"') : text.index("</figure>")]
    assert ">100 %</span>" in first and '<i class="key none"></i>no requests' in first
    assert re.findall('class="gap" d="([^"]*)"', first) == ["M0.0,0H250.0V100H0.0Z"], "the first quarter of the time"
    assert re.findall('class="zero" d="([^"]*)"', first) == ["M250.0,100.00H500.0"], "a line, where 0 % were reused"
    assert "<title>30 s: no requests</title>" in first and '<td>30 s</td><td class="n">no requests</td>' in first
    assert "<title>60 s: device 0 %, host 0 %</title>" in first
    assert "no requests" not in text[text.index('id="use"') :]


def test_the_causes_are_stacked_over_time_and_add_up() -> None:
    result = a_result(steps=3)
    causes = {"new": [60, 0, 30], "evicted": [25, 0, 0], "short": [0, 0, 0]}
    result["series"] |= {"prompt_tokens": [100, 0, 30], "computed_by_cause": causes}
    text = page.render(result)
    part = text[text.index('id="causes"') :]
    part = part[: part.index("</figure>")]
    assert [re.sub("<.*?>", "", key) for key in re.findall("<li>(.*?)</li>", part)] == [
        "reused", "new text", "evicted before", "no requests",
    ]  # fmt: skip
    assert "<title>30 s: reused 15 %, new text 60 %, evicted before 25 %</title>" in part
    assert "<title>60 s: no requests</title>" in part and ">100 %</span>" in part
    assert 'id="causes"' not in page.render(a_result()), "without receipts there are none"
    many = {cause: [10 if cause == "new" else 1, 0, 0] for cause in causes_module.NAMES}
    result["series"]["computed_by_cause"] = many
    assert "other reasons" in page.render(result) and "other reasons 7 %" in page.render(result)


def test_printed_shares_add_up_to_the_printed_whole() -> None:
    assert shares_text([0.0372, 0.0625], 0.0997) == ["3.7 %", "6.3 %"], "10.0 %, not 9.9"
    assert shares_text([1 / 3, 1 / 3, 1 / 3], 1.0, 0) == ["34 %", "33 %", "33 %"]
    assert shares_text([0.0, 0.25], 0.25, 0) == ["0 %", "25 %"] and shares_text([], 0.0) == []
    assert shares_text([0.2, 0.2], 0.9) == ["20.0 %", "20.0 %"], "what are no parts of it are themselves"
    result = a_result()
    result |= {"hit_rate": 0.0997, "hit_rate_by_tier": {"device": 0.0372, "host": 0.0625}, "prompt_tokens": 10**6}
    counts = {"new": 784_500, "evicted": 115_200, "short": 600}
    result["misses"] = {"causes": counts, "parted_at": {"token": 0, "requests": 0, "of": 1}}
    told = story.outcome(result)
    assert "3.7 %, host 6.3 %" in " ".join(told) and ("- from tier host", "6.25 %") in story.facts(result)
    printed = [float(share) for share in re.findall(r"([\d.]+) %", next(line for line in told if "others" in line))]
    assert sum(printed) == pytest.approx(90.0)


def test_commands_are_set_as_such_and_numbers_stay_in_one_line() -> None:
    result = a_result()
    result |= {"misses": {"causes": {"evicted": 100}, "parted_at": {"requests": 0, "of": 1}},
               "prompt_tokens": 1000}  # fmt: skip
    text = page.render(result)
    assert "<code>quire sweep</code>" in text and "`" not in text
    assert '<span class="whole">10.0 %</span>' in text


def test_a_page_looks_like_the_live_page() -> None:
    live = files("quire.viewer").joinpath("static/page.css").read_text(encoding="utf-8")
    ours = files("quire.simulate.show").joinpath("page.css").read_text(encoding="utf-8")
    for theme in (0, 1):
        theirs, here = (dict(re.findall(r"(--[\w-]+): ([^;]+);", re.findall(r":root[^{]*\{([^}]*)\}", css)[theme]))
                        for css in (live, ours))  # fmt: skip
        assert here and here.items() <= theirs.items()
    icon = files("quire.viewer").joinpath("static/icon.svg").read_text(encoding="utf-8")
    assert ICON.partition(">")[2] == icon.strip().partition(">")[2]


def test_hostile_names_are_text() -> None:
    result = a_result(host=HOSTILE)
    result["trace"] = HOSTILE
    result["model"]["note"] = HOSTILE
    result["settings"][HOSTILE] = HOSTILE
    result["series"]["hit_rate_by_group"][HOSTILE] = [0.5] * 12
    check_alone(page.render(result, result))
    text = page.render(result)
    seen = check_alone(text)
    assert "<script" not in text and HOSTILE in seen.words[""] and HOSTILE in seen.words["hits-by-group"]


@pytest.mark.parametrize("steps", [1, 2, 400])
def test_any_number_of_steps_can_be_drawn(steps: int) -> None:
    text = page.render(a_result(steps=steps))
    seen = check_alone(text)
    assert "nan" not in "".join(seen.paths("")).lower() and len(text) < 200_000


def test_what_a_result_does_not_have_is_left_out() -> None:
    full = a_result()
    names = "requests broken_promises worst_overshoot_tokens hit_rate tokens_saved evictions onboarded_bytes"
    bare = {name: full[name] for name in [*names.split(), "offloaded_bytes"]}
    seen = check_alone(page.render(bare, bare))
    assert sum(tag == "svg" for tag, _ in seen.tags) == 1, "the icon"
    bare["series"] = {"seconds": [1.0, 2.0], "onboarded_bytes": [0, 0], "offloaded_bytes": [0, 0]}
    assert "nothing to draw" in check_alone(page.render(bare)).words["moves"]


def test_curves_break_where_nothing_is_known_and_hide_no_equal_curve() -> None:
    series = [PlotSeries("a", [1, None, 1, 1]), PlotSeries("b", [1, 1, 1, 1])]
    plot = Plot("p", "t", "n", [1, 2, 4, 8], series, log_x=True, dots=True)
    drawn = draw(plot)
    first = re.findall(r'class="curve c1" style="stroke-width:5" d="([^"]*)"', drawn)
    assert [path.count("M") for path in first] == [2]
    assert "60.0,0.00L353.3,0.00L646.7,0.00L940.0,0.00" in drawn  # doubling sizes stand at equal distances
    assert "<title>4 s: a 1, b 1</title>" in drawn and "<title>2 s: b 1</title>" in drawn
    assert figure(plot).count("<tr>") == 5


def test_buckets_join_by_what_they_mean() -> None:
    rows = {
        "seconds": [1.0, 2.0, 3.0], "prompt_tokens": [300, 100, 0], "promises_kept": [1, 2, 3],
        "worst_overshoot_tokens": [5, 9, 0], "hit_rate_by_tier": {"device": [0.4, 0.8, None]},
        "use_by_tier": {"device": [0.1, 0.2, None]},
    }  # fmt: skip
    wide = joined(rows, 2)
    assert wide["seconds"] == [2.0, 3.0] and wide["promises_kept"] == [3, 3]
    assert wide["hit_rate_by_tier"]["device"] == [pytest.approx(0.5), None]
    assert wide["worst_overshoot_tokens"] == [9, 0] and wide["use_by_tier"]["device"] == [0.2, None]


def test_numbers_read_well() -> None:
    assert [count_text(x) for x in (12031, 0, 0.5, 4210.4)] == ["12,031", "0", "0.5", "4,210"]
    assert [bytes_text(x) for x in (0, 64e9, 1.5e12)] == ["0 B", "64 GB", "1.5 TB"]
    assert [time_text(x) for x in (0.25, 90, 1800, 7200)] == ["0.25 s", "90 s", "30 min", "2 h"]
    assert [percent_text(x) for x in (0.1 + 0.2, 0.075)] == ["30 %", "7.5 %"]
    assert ticks(0, 0.37) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4]) and ticks(0, 0) == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1]
    )
    assert ticks(0, 9, whole=True) == [0, 5, 10] and ticks(0, 1, whole=True) == [0, 1]
    assert time_ticks(0, 3537) == [600 * n for n in range(7)] and time_ticks(0, 3)[:3] == [0, 0.5, 1]


@pytest.mark.parametrize("with_rich", [True, False])
def test_the_screen_shows_the_same_with_and_without_rich(with_rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if with_rich:
        pytest.importorskip("rich", reason="tables with rich need the extra tools")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    out = io.StringIO()
    screen.show(a_result(host="[bold]host[/]"), out)
    screen.show_comparison(a_result(), a_result(broken=1), out)
    told = out.getvalue()
    assert ("pip install 'quire-kv[tools]'" in told) is not with_rich
    for name, value in [*story.facts(a_result(host="[bold]host[/]")), *story.modelled(a_result())]:
        assert re.search(re.escape(name) + r"\s+" + re.escape(value), told), name
    for name, left, right in story.comparison(a_result(), a_result(broken=1)):
        assert re.search(r"\s+".join(re.escape(part) for part in (name, left, right)), told), name
    assert "Two-phase admission broke no promise, one at a time broke 1" in told


def test_progress_is_silent_off_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("replaying", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")
