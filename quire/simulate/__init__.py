"""Simulator: recorded traffic through a real cache on a virtual clock, for one worker or a fleet behind a router.

    report = quire.simulate.replay("sample", ReplaySettings(block_size=64))

Each imports those before it: setup (what a replay is run with), optimum (the best that any policy could do), play (the
replay itself, and many of them), show (words, tables, pages), capacity (several workers, and the cheapest that do),
replay_report (the interface below). Needs NumPy and nothing else. docs/simulate.md is the front page.
"""

from quire.simulate.capacity.capacity_plan import CapacityPlan, Objective, Prices, Search, Tried, find_plan
from quire.simulate.capacity.fleet import Fleet, FleetResult
from quire.simulate.play.sweep import Point, Sweep, TraceSource, sweep
from quire.simulate.replay_report import FirstToken, best_hit_rate, replay, replay_fleet
from quire.simulate.replay_report import ReplayReport as Report
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.slow_pace import SlowPace
from quire.trace.read.trace import Trace, TraceRequest, read_trace

__all__ = [
    "CapacityPlan", "FirstToken", "Fleet", "FleetResult", "Memory", "Objective", "Pace", "Point", "Prices",
    "ReplaySettings", "Report", "Search", "SlowPace", "Sweep", "Trace", "TraceRequest", "TraceSource", "Tried",
    "best_hit_rate", "find_plan", "read_trace", "replay", "replay_fleet", "sweep",
]  # fmt: skip
