"""Skips: how many tests were left out, by cause, at the end of a run; where CI says so, a missing part is a failure.

Owns the last lines of a run and what CI must have. Knows no test: a cause is the text that a test gave.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

NEEDED = re.compile(r"redis|chromium|playwright|browser", re.IGNORECASE)  # what a CI machine must have


def cause(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was left out, in the words of whoever did."""
    why = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    return " ".join(str(why).removeprefix("Skipped: ").split())


def causes(config: pytest.Config) -> Counter[str]:
    """Of this process's reports; with xdist those of all workers come to the one that started them."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    return Counter(cause(report) for report in terminal.getreports("skipped")) if terminal is not None else Counter()


def missing(config: pytest.Config) -> int:
    """How many tests were left out for want of what CI must have."""
    if os.environ.get("CI", "").lower() != "true":
        return 0
    return sum(count for why, count in causes(config).items() if NEEDED.search(why))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run without Redis or a browser fails in CI: nobody would read there that something was left out."""
    if session.exitstatus == pytest.ExitCode.OK and missing(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line per cause; a file that was left out as a whole counts as one."""
    found = causes(config)
    if not found:
        return
    terminalreporter.section(f"{found.total()} left out, by cause")
    for why, count in found.most_common():
        terminalreporter.write_line(f"{count:5}  {why}")
    if count := missing(config):
        told = f"CI=true, and {count} tests found no Redis or no browser: that is a failure (make debian)"
        terminalreporter.write_line(told, red=True)
