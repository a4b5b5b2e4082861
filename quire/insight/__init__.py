"""Insight into a running cache: what it hit over the last hour, and what it would have with other memory or orders.

    cache ──sequences──► Regret ──[ a thread: keyed blocks ──► Traffic ]──report──► RegretReport

Needs NumPy and nothing else. docs/regret.md says what the numbers mean.
"""

from quire.insight.regret import Regret
from quire.insight.regret_report import RegretReport, TierRegret

__all__ = ["Regret", "RegretReport", "TierRegret"]
