"""Why a block of a prompt is missing, as both stores number it. Numbers only; knows no pages.

A store explains the whole blocks behind a hit as runs of six numbers: cause, first token, the token after the last,
group (-1: none), the tick at which the pages went, and the admissions there had been by then (0: does not apply).
"""

from typing import Final

UNDER_WAY, EVICTED, FAILED, FORGOTTEN, WINDOW, SNAPSHOT, SHORT, NEW, SLOW = range(9)
NUM_RUN_FIELDS: Final = 6
MOST_UNKNOWN: Final = 2  # blocks in a row that are no ghosts: behind them nobody looks for more, but for snapshots
