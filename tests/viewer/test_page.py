"""The page in a real browser: Debian's chromium, driven by Playwright. Skipped, with a reason, where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from quire import Cache, CacheConfig, Request, TierConfig, Viewer
from quire.insight import Regret
from quire.viewer.made_up_traffic import MadeUpTraffic, demo_cache

from .browser import CONTRAST, MISSING, OVERFLOWING, WHY, WIDTHS, launched, opened, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY)
KEY = "a-key-for-the-live-page"
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as made:
        yield made


@pytest.fixture(scope="module")
def busy() -> Iterator[tuple[Viewer, MadeUpTraffic]]:
    """A page with a lot to show; nothing happens unless a test makes a step."""
    cache = demo_cache(900, 600, 16)
    traffic = MadeUpTraffic(cache, users=40, seed=1)
    regret = Regret(cache, thread=False)
    with Viewer(cache, waiting=traffic.waiting, name=MARKUP, regret=regret) as viewer:
        traffic.viewer = viewer
        for _ in range(200):
            viewer.stepped(traffic.step(), {"schedule": 0.001, "model": 0.02})
        regret.report()
        yield viewer, traffic


def drawn(page: Page, canvas: str) -> int:
    """How many colours a canvas has."""
    count: int = page.evaluate(
        """(name) => {
          const one = document.querySelector(name);
          const pen = new OffscreenCanvas(one.width, one.height).getContext("2d", { willReadFrequently: true });
          pen.drawImage(one, 0, 0);
          const data = new Uint32Array(pen.getImageData(0, 0, one.width, one.height).data.buffer);
          return new Set(data).size;
        }""",
        canvas,
    )
    return count


def test_it_shows_what_there_is_and_follows(browser: Browser, busy: tuple[Viewer, MadeUpTraffic]) -> None:
    viewer, traffic = busy
    with opened(browser, viewer.url) as page:
        shown(page)
        assert "% of all prompt tokens" in page.inner_text("#headline")
        assert page.inner_text("#asking") == str(traffic.cache.num_sequences)
        assert page.locator(".requests button").count() == traffic.cache.num_sequences
        assert page.locator(".pool canvas").count() == 4 and page.locator("#causes li").count() > 2
        for canvas in (".pool canvas", "#tree", "#step-chart"):
            assert drawn(page, canvas) > 2
        assert page.inner_text("#name") == MARKUP and page.locator("b", has_text="bold").count() == 0
        page.click("#pause")
        page.wait_for_selector("#status:has-text('paused')")
        before = page.inner_text(".requests")
        for _ in range(40):
            viewer.stepped(traffic.step(), 0.01)
        assert page.inner_text(".requests") == before
        page.click("#pause")
        page.wait_for_function("(was) => document.querySelector('.requests').innerText !== was", arg=before)
        page.click(".segments button:text-is('Scope')")
        page.wait_for_selector("#legend:has-text('plain')")
        assert drawn(page, ".pool canvas") > 2


def test_nothing_overflows_and_all_can_be_read(browser: Browser, busy: tuple[Viewer, MadeUpTraffic]) -> None:
    with opened(browser, busy[0].url, color_scheme="dark") as page:
        shown(page)
        page.click("#pause")
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_selector(f"html[data-theme={scheme}]")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_function("(wide) => document.documentElement.clientWidth <= wide", arg=width)
                assert page.evaluate(OVERFLOWING) == [], width
            seen = page.evaluate(CONTRAST)
            assert seen["faint"] == [] and seen["looked"] > 60
            page.click(".requests button >> nth=0")
            page.wait_for_selector("#receipt-body .bar")
            assert page.evaluate(OVERFLOWING) == [] and page.evaluate(CONTRAST)["faint"] == []
            page.click("#close")


def test_the_keyboard_reaches_everything(browser: Browser, busy: tuple[Viewer, MadeUpTraffic]) -> None:
    with opened(browser, busy[0].url, reduced_motion="reduce") as page:
        shown(page)
        page.click("#pause")
        order = []
        for _ in range(14):
            page.keyboard.press("Tab")
            order.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
            seen = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert seen == "solid", order
        assert order[0] == "theme" and order.count("CANVAS") == 4 and order[-1] == "BUTTON"
        page.focus(".pool canvas")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#say").startswith("device, slot") and page.is_visible("#tip")
        page.keyboard.press("Escape")
        assert not page.is_visible("#tip")
        page.focus("#tree")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
            page.keyboard.press(key)
        assert "blocks here and below" in page.inner_text("#say")
        page.focus(".requests button >> nth=1")
        page.keyboard.press("Enter")
        page.wait_for_selector("#receipt-body .causes")
        assert "prompt tokens were reused" in page.inner_text("#receipt-body")
        page.keyboard.press("Escape")
        assert not page.is_visible("#receipt") and page.evaluate("document.activeElement.tagName") == "BUTTON"
        assert page.evaluate("getComputedStyle(document.querySelector('.status i')).animationName") == "none"


def test_text_that_was_here_is_not_called_new(browser: Browser) -> None:
    """Behind another beginning it was sent before; without chunks to tell, nothing is said of whether it was sent."""
    for chunks in (0, 1 << 14):
        cache = Cache(CacheConfig((TierConfig("device", 200),), block_size=16, receipts=True, receipt_chunks=chunks))
        with Viewer(cache) as viewer, opened(browser, viewer.url) as page:
            for time in (7, 8):
                tokens = np.array([time] * 9 + list(range(1000, 1600)), np.int32)
                batch = cache.add_sequence_batch([Request(time, tokens)])
                viewer.admitted(batch)
                cache.commit(batch.sequences)
            shown(page)
            page.wait_for_selector("#causes:has-text('New text')")
            assert "no earlier prompt begins with it" in page.inner_text("#causes")
            assert ("Sent before, behind something else" in page.inner_text("#causes")) == bool(chunks)


def test_an_empty_cache_says_so(browser: Browser) -> None:
    with Viewer(demo_cache(64, 64, 4)) as viewer, opened(browser, viewer.url, width=390) as page:
        shown(page)
        assert "The cache is empty" in page.inner_text("#headline")
        assert "No request right now" in page.inner_text(".requests") and "Nothing is cached yet" in page.inner_text(
            "#prefixes"
        )
        assert page.evaluate(OVERFLOWING) == []


def test_it_asks_for_a_key_and_says_when_nobody_answers(browser: Browser) -> None:
    viewer = Viewer(demo_cache(64, 64, 4), key=KEY)
    with opened(browser, viewer.url, errors=3) as page:
        page.fill("#key", "not-the-key-of-this")
        page.keyboard.press("Enter")
        page.wait_for_selector("#denied:has-text('not the key')")
        assert not page.is_visible("#main")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        shown(page)
        assert page.evaluate("localStorage.length") == 0
        viewer.close()
        page.wait_for_selector("#status.lost")
        page.click("#pause")


def test_what_could_have_been_reused_is_shown(busy: tuple[Viewer, MadeUpTraffic], browser: Browser) -> None:
    with opened(browser, busy[0].url) as page:
        page.wait_for_selector("#regret-rows li")
        names = page.locator("#regret-rows b").all_inner_texts()
        assert names[0] == "Hit" and names[-1] == "1 GB more host" and "At best" in names and "lru order" in names
        values = page.locator("#regret-rows .n").all_inner_texts()
        rates = {name: float(value.split()[0]) for name, value in zip(names, values, strict=True) if "GB" not in name}
        assert 0 < rates["Hit"] <= rates["At best"] <= rates["No limit"] <= 100
        assert "the last 1 minute," in page.locator("#regret-say").inner_text()
    with Viewer(demo_cache(90, 60, 16)) as alone, opened(browser, alone.url) as page:
        page.wait_for_selector("#misses .empty")
        assert page.locator("#regret").is_hidden(), "nobody watches"
