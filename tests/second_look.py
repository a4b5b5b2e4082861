"""A second look: tests of sockets, processes and browsers that failed beside others run once more, alone.

    pytest (all) ──failed──► few, and none of them about bytes? ──► those alone ──► named, whatever comes out

Owns which failures may be looked at twice. A test of the cache, its tiers, a transfer or the engine never is: one wrong
page in a thousand runs is a wrong page. What passes alone is still a fault, of the test or of the product: its name is
the last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

WAITING = ("cli", "events", "fleet", "serve", "simulate", "soak", "viewer")  # folders whose tests wait for others
MOST = 3  # more than these did not fail by chance
KEPT = "quire/failed"  # where a run leaves its failures, in pytest's cache


def refusal(failed: Sequence[str]) -> str | None:
    """Why these failures stand; None: they may be looked at again."""
    if not failed:
        return "the run did not end with failing tests, so there is nothing to look at again"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed; at most {MOST} are looked at again"
    for name in failed:
        if "::" not in name or not name.startswith(tuple(f"tests/{folder}/" for folder in WAITING)):
            return f"{name} does not wait for sockets, processes or browsers: it failed"
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leaves the names; with xdist only the process that started the others knows them all."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    cache = getattr(session.config, "cache", None)  # `-p no:cacheprovider`: there is no such attribute
    if terminal is not None and not hasattr(session.config, "workerinput") and cache is not None:
        reports = [*terminal.getreports("failed"), *terminal.getreports("error")]
        cache.set(KEPT, sorted({report.nodeid for report in reports}))


def main(root: Path = Path()) -> int:
    """0 if whatever failed in the last run passes alone, and may."""
    kept = root / ".pytest_cache" / "v" / KEPT
    failed: list[str] = json.loads(kept.read_text()) if kept.exists() else []
    why = refusal(failed)
    if why is not None:
        print(f"== no second look: {why}", flush=True)
        return 1
    print(f"== a second look at {', '.join(failed)}", flush=True)
    status = int(pytest.main(["-q", f"--rootdir={root.resolve()}", *(str(root / name) for name in failed)]))
    verdict = "failed alone too" if status else "passed alone: mend it, or what it tests"
    print(f"*** failed beside others, {verdict}: {', '.join(failed)}", flush=True)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
