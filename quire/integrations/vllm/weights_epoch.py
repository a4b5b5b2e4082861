"""WeightsEpoch: which weights the pages belong to that count now. A number in their scope; knows no pages.

vLLM asks for a reset when its weights are new, and when it goes to sleep. Where pages are to stay over a sleep, the old
number is set aside. It counts again if the ranks say that they slept; if they do not, the next step gives it up.
"""

from __future__ import annotations

from secrets import randbits


class WeightsEpoch:
    """Of one engine; `is_lasting` where pages go further than this process."""

    def __init__(self, *, is_lasting: bool, keep_over_sleep: bool) -> None:
        self.number = 0
        self._is_lasting, self._keep = is_lasting, keep_over_sleep
        self._aside: int | None = None
        self._num_sleeps = 0

    def reset(self) -> bool:
        """What was stored counts no more. Whether it is to be forgotten now: a second reset means it."""
        old, is_first = self.number, self._aside is None
        self.number = randbits(62) if self._is_lasting else old + 1  # no other process means these weights
        self._aside = old if self._keep and is_first else None
        return self._aside is None

    def step(self) -> bool:
        """A step is made. Whether what was set aside is to be forgotten: vLLM did not sleep."""
        is_over, self._aside = self._aside is not None, None
        return is_over

    def wake(self, num_sleeps: int) -> None:
        """Every rank has slept so often."""
        if num_sleeps > self._num_sleeps and self._aside is not None:
            self.number, self._aside = self._aside, None
        self._num_sleeps = num_sleeps
