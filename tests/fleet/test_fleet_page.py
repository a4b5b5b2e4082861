"""The page of all workers, in a real browser where there is one: what it shows, and the way to each worker's cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from quire.serve import ServeSettings
from quire.viewer.many import FLEET_PATHS, WORKERS
from quire.viewer.page_routes import RECEIPT, SNAPSHOT

from ..serve.rig import NAME
from ..viewer.browser import CONTRAST, MISSING, OVERFLOWING, WHY, WIDTHS, launched, opened, shown
from .rig import Fleet, fleet

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "operators-key-0123456789"
LOCAL = ("localhost", "127.0.0.1")
in_a_browser = pytest.mark.skipif(bool(MISSING), reason=WHY)


@pytest.fixture(scope="module")
def some() -> Iterator[Fleet]:
    """Two workers; one has answered the same prompt twice."""
    with fleet(2, settings=ServeSettings(NAME, hosts=LOCAL), receipts=True) as made:
        for _ in range(2):
            made.chat(max_tokens=4)
            made.until_idle()
            made.until_exact()
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as made:
        yield made


def look(some: Fleet) -> dict[str, Any]:
    told: dict[str, Any] = some.get(WORKERS).json
    return told


def test_it_tells_of_every_worker_and_passes_questions_on(some: Fleet) -> None:
    told = look(some)
    assert told["name"] == NAME and [one["worker"] for one in told["workers"]] == ["w0", "w1"]
    assert {one["status"] for one in told["workers"]} == {"EXACT"} and told["totals"]["choices"] == 2
    asked = {one["worker"]: one["brief"] for one in told["workers"]}
    busy = some.chosen[0]
    assert some.chosen == [busy, busy] and asked[busy]["reused"] > 0
    [other] = {"w0", "w1"} - {busy}
    assert asked[other]["tokens"] == 0
    for name, llm in some.llms.items():
        usage = llm.loop.engine.cache.usage()
        told_of = {"name": "device", "slots": usage.capacity, "held": usage.held, "cached": usage.idle}
        assert asked[name]["tiers"][0] == told_of
        got = some.get(f"{SNAPSHOT}?colour=state&worker={name}").json
        assert got["name"] == name and got["pools"][0]["counts"][4] == usage.idle
    assert asked[busy]["tiers"][0]["cached"] > 0
    for path in (SNAPSHOT, f"{SNAPSHOT}?worker=w9", f"{RECEIPT}?request=1", "/viewer/brief?worker=w0"):
        assert some.get(path).status == 404
    assert some.get(f"{RECEIPT}?request=12345&worker=w0").status == 404


def test_who_may_look_is_decided_by_the_server() -> None:
    with fleet(1, settings=ServeSettings(NAME, viewer_key=KEY)) as some:
        assert some.get("/").status == 200
        for path in (WORKERS, f"{SNAPSHOT}?worker=w0"):
            assert some.get(path).status == 401
            assert some.get(path, authorization="Bearer not-the-key-of-this").status == 401
            assert some.get(path, authorization=f"Bearer {KEY}").status == 200
        assert KEY not in json.dumps(some.get(WORKERS, authorization=f"Bearer {KEY}").json)
    with fleet(1) as none:  # others than this machine may connect
        for path in FLEET_PATHS:
            assert none.get(path).status == 404


@in_a_browser
def test_it_shows_the_workers_and_leads_to_each(browser: Browser, some: Fleet) -> None:
    url = f"http://127.0.0.1:{some.port}/"
    with opened(browser, url) as page:
        shown(page)
        assert "2 workers" in page.inner_text("#headline") and page.locator(".worker").count() == 2
        assert page.locator(".worker .chip.exact").count() == 2
        page.click("#pause")
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_selector(f"html[data-theme={scheme}]")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_function("(wide) => document.documentElement.clientWidth <= wide", arg=width)
                assert page.evaluate(OVERFLOWING) == [], width
            seen = page.evaluate(CONTRAST)
            assert seen["faint"] == [] and seen["looked"] > 40
        page.focus(f".worker a[href$={some.chosen[0]}]")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#name:has-text('worker {some.chosen[0]}')")
        assert page.is_visible("#back") and page.locator(".pool canvas").count() > 0
        assert page.evaluate(OVERFLOWING) == []
        page.click("#back")
        page.wait_for_selector(".worker")


@in_a_browser
def test_a_worker_that_is_lost_goes_from_the_page(browser: Browser) -> None:
    with (
        fleet(2, settings=ServeSettings(NAME, hosts=LOCAL)) as some,
        opened(browser, f"http://127.0.0.1:{some.port}/", width=390) as page,
    ):
        shown(page)
        assert "no request has come yet" in page.inner_text("#headline")
        some.alive.discard("w1")  # it answers nobody; the book has not heard of it yet
        page.wait_for_selector(".worker .chip.silent")
        some.kill("w1")
        page.wait_for_function("() => document.querySelectorAll('.worker').length === 1")
        some.kill("w0")
        page.wait_for_selector("#list .empty")
        assert page.evaluate(OVERFLOWING) == [] and "no worker" in page.inner_text("#headline")
