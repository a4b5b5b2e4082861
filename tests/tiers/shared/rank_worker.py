"""A rank of a shared cache in a process of its own: `python -m tests.tiers.shared.rank_worker STORE PART`. `RemoteRank`
is the other end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from quire.tiers import ArenaTier, Bytes
from quire.tiers.shared import LocalSharedRank, SharedConfig
from quire.tiers.shared.rank_parts import Answers, Place
from tests.tiers.rank_process import RankProcess, answer

HOST = 64  # slots


class OneRank(LocalSharedRank):
    """A rank with its host memory."""

    def __init__(self, place: str, part: int) -> None:
        self.host = ArenaTier("host", [HOST], [part])
        super().__init__([ArenaTier("device", [0], [part]), self.host], SharedConfig(place))

    def peek(self, slot: int) -> Bytes:
        page: Bytes = self.host.view(0)[slot].copy()
        return page


class RemoteRank(RankProcess):
    """A SharedRank over a pair of pipes, and the memory behind it."""

    def __init__(self, place: str, part: int) -> None:
        super().__init__("tests.tiers.shared.rank_worker", place, str(part))

    def get(self, number: int, names: Sequence[bytes], groups: Sequence[int], seconds: float) -> Answers:
        return list(self._ask("get", number, list(names), list(groups), seconds))

    def place(self, number: int, nth: Sequence[int], places: Sequence[Place]) -> None:
        self._ask("place", number, list(nth), list(places))

    def copy(self, number: int, places: Sequence[Place]) -> list[bool]:
        return list(self._ask("copy", number, list(places)))

    def put(self, number: int, nth: Sequence[int], names: Sequence[bytes], seconds: float) -> Answers:
        return list(self._ask("put", number, list(nth), list(names), seconds))

    def drop(self, number: int) -> None:
        self._ask("drop", number)

    def peek(self, slot: int) -> Bytes:
        page: Bytes = self._ask("peek", slot)
        return page

    def close(self) -> None:
        """The process ends, however it is."""
        with suppress(Exception):
            self._ask("close")
        self.end()


def main() -> int:
    ours = OneRank(sys.argv[1], int(sys.argv[2]))
    return answer(lambda verb: getattr(ours, verb))


if __name__ == "__main__":
    sys.exit(main())
