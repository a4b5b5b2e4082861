"""A real browser for tests of pages: Debian's chromium or Playwright's own, driven by Playwright. Knows no page."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OWN = (".cache/ms-playwright", "Library/Caches/ms-playwright")  # where `playwright install chromium` puts it
PROGRAMS = ("chrome-linux*/chrome", "chrome-mac*/*.app/Contents/MacOS/*")


def chromium() -> str | None:
    """The program: one that is installed, or else the newest that Playwright has fetched."""
    for name in ("chromium", "chromium-browser"):
        if found := shutil.which(name):
            return found
    folders = [Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / own)) for own in OWN]
    return max(
        (str(path) for folder in folders for one in PROGRAMS for path in folder.glob(f"chromium-*/{one}")), default=None
    )


CHROMIUM = chromium()
MISSING = [
    name
    for name, there in (("playwright", importlib.util.find_spec("playwright")), ("chromium", CHROMIUM))
    if not there
]
WHY = f"the page is tried in a browser, and there is no {' and no '.join(MISSING)}"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDTHS = (1400, 768, 390)

OVERFLOWING = """() => {
  const wide = document.documentElement.clientWidth;
  const found = document.documentElement.scrollWidth > wide ? ["the page"] : [];
  for (const one of document.querySelectorAll("body *")) {
    const box = one.getBoundingClientRect();
    const hidden = one.closest(".sr, .skip, [hidden], .wide, .tip") || !box.width;
    if (!hidden && (box.right > wide + 1 || box.left < -1)) found.push(one.tagName + "." + one.className);
    const cut = !one.closest(".sr") && getComputedStyle(one).overflowX === "visible" && one.clientWidth > 0;
    if (cut && one.scrollWidth > one.clientWidth + 1 && !one.closest(".wide")) found.push(one.id + "/" + one.className);
  }
  return found;
}"""
CONTRAST = """() => {
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (css) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = css;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255)
    .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor);
      if (found[3] > 200) return found;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  let looked = 0;
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.getBoundingClientRect().width || one.closest(".sr, .skip")) continue;
    looked += 1;
    const [front, back] = [light(rgba(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) faint.push([one.tagName + "." + one.className, ratio, one.textContent.slice(0, 30)]);
  }
  return { faint, looked };
}"""


@contextmanager
def launched() -> Iterator[Browser]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        made = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1400, errors: int = 0, **options: Any) -> Iterator[Page]:
    """The page as somebody sees it; nothing but `errors` lines may stand in its console."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page, told = context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("console", lambda line: told.append(line.text))
    page.on("pageerror", lambda wrong: told.append(str(wrong)))
    page.on("request", lambda asked: told.append(asked.url) if not asked.url.startswith(url) else None)
    page.goto(url)
    try:
        yield page
        assert len(told) == errors, told
    finally:
        context.close()


def shown(page: Page) -> None:
    page.wait_for_selector("#main:not([hidden])")
