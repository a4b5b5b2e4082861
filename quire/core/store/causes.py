"""Why a block of a prompt is missing, as both stores number it. Numbers only; knows no pages.

A store explains the whole blocks behind a hit as runs of seven numbers: cause, first token, the token after the last,
group (-1: none), the tick at which the pages went, the number of admissions by then, and the hint that ranked them
(none applies: 0).
"""

from typing import Final

UNDER_WAY, EVICTED, FAILED, FORGOTTEN, WINDOW, SNAPSHOT, SHORT, NEW, SLOW = range(9)
NUM_RUN_FIELDS: Final = 7
MOST_UNKNOWN: Final = 2  # blocks in a row without a ghost: behind them only snapshots are looked for
