"""Wishes: what a config asks of an engine besides its cache: incidents, bills, steps that overlap. Runs nothing."""

from __future__ import annotations

import torch

from quire.engine.setup.engine_config import EngineConfig
from quire.incidents.incidents import Incidents
from quire.insight.bills import Bills
from quire.insight.bills.bill_file import bill_path


def incidents_of(config: EngineConfig) -> Incidents | None:
    """What keeps the cache's last calls, if they are wanted."""
    if config.incidents is None:
        return None
    return Incidents(config.incidents, keep=config.incidents_keep, lines=config.incident_lines)


def bills_of(config: EngineConfig) -> Bills | None:
    """What adds up who uses what of the cache, if it is wanted."""
    return None if config.bills is None else Bills(bill_path(config.bills))


def overlaps(config: EngineConfig, device: torch.device) -> bool:
    """Whether a step is prepared while the one before computes: by default where a GPU computes."""
    return device.type == "cuda" if config.overlap is None else config.overlap
