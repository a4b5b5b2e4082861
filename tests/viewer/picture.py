"""The picture of the live page in README.md, made with the real page and a real browser. Not a test; by hand:

python -m tests.viewer.picture docs/live.png
"""

from __future__ import annotations

import re
import subprocess
import sys

from tests.viewer.browser import launched, shown

WARM_UP = 45_000  # milliseconds: until memory is full and pages come back


def main(path: str) -> None:
    """Run the made-up conversations, look at their page when memory is full, write what a visitor sees first."""
    command = [sys.executable, "-m", "quire.viewer", "--port", "0", "--slots", "1500", "--users", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        address = re.search(r"http\S+", running.stdout.readline())
        try:
            assert address is not None, "the viewer did not start"
            with launched() as browser:
                page = browser.new_page(viewport={"width": 1280, "height": 950}, color_scheme="light")
                page.goto(address[0])
                shown(page)
                page.wait_for_timeout(WARM_UP)
                page.screenshot(path=path)
        finally:
            running.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
