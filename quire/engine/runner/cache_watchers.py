"""Cache watchers: what a config has listen to the calls of a cache: incidents, bills. Knows no model and no steps."""

from __future__ import annotations

from collections.abc import Sized

from quire.engine.deadlines.deadline_side import DeadlineSide
from quire.engine.setup.engine_config import EngineConfig
from quire.incidents.incidents import Incidents
from quire.insight.bills import Bills
from quire.insight.bills.bill_file import bill_path


def incidents_of(config: EngineConfig) -> Incidents | None:
    """What keeps the cache's last calls, if they are wanted."""
    if config.incidents is None:
        return None
    size, lines = config.incidents_bytes, config.incident_lines
    return Incidents(config.incidents, keep=config.incidents_keep, max_bytes=size, lines=lines)


def bills_of(config: EngineConfig) -> Bills | None:
    """What adds up who uses what of the cache, if it is wanted."""
    return None if config.bills is None else Bills(bill_path(config.bills), sessions=config.bill_sessions)


def connect(watchers: tuple[Incidents | None, Bills | None], runs: Sized, deadlines: DeadlineSide | None) -> None:
    """What they learn of the engine itself: runs that wait are work too, and deadlines are missed."""
    incidents, bills = watchers
    if incidents is not None:
        incidents.num_waiting = runs.__len__
    if deadlines is not None:
        deadlines.bills = bills
