"""Quotas: how many bytes a label may send to a store in a time. Owns the accounts; knows no store and no tenants.

A store that evicts by use is filled by the tenant that writes most. A quota keeps one tenant from washing out the
others; it bounds what is sent from this process, not what lies in the store.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from quire.core.records.errors import InputError, say, shown

OTHERS = "*"  # a quota under this label is for every label that has none of its own
MOST_LABELS = 4096  # accounts of others that are remembered


@dataclass(frozen=True, slots=True)
class Quota:
    """So many bytes in so many seconds; what is not used up does not add up to more."""

    bytes: int
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        if type(self.bytes) is not int or self.bytes < 1 or not self.seconds > 0:
            fact = f"{shown(self.bytes)} bytes in {shown(self.seconds)} s"
            raise InputError(say("a quota", fact, "give a whole number of bytes and seconds above 0"))


class QuotaAccounts:
    """What each label may still send."""

    def __init__(self, quotas: Mapping[str, Quota], clock: Callable[[], float] = time.monotonic) -> None:
        self._quotas, self._clock, self._lock = dict(quotas), clock, Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # label -> bytes left, when

    def take(self, label: str, num_bytes: int) -> bool:
        """Whether it may send so much now; it is charged for it then."""
        quota = self._quotas.get(label, self._quotas.get(OTHERS))
        if quota is None:
            return True
        with self._lock:
            now = self._clock()
            left, then = self._left.pop(label, (float(quota.bytes), now))
            left = min(float(quota.bytes), left + (now - then) * quota.bytes / quota.seconds)
            enough = num_bytes <= left
            self._left[label] = (left - num_bytes if enough else left, now)
            while len(self._left) > MOST_LABELS:
                self._left.popitem(last=False)
            return enough

    def give_back(self, label: str, num_bytes: int) -> None:
        """Bytes that were charged and not sent."""
        with self._lock:
            if label in self._left:
                left, then = self._left[label]
                self._left[label] = (left + num_bytes, then)
