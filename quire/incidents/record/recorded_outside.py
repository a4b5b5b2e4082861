"""OutsideCalls: the recorded calls from and for outside of the step, and those on the tree and the tiers.

A part of RecordedCalls, which has what all calls have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.core.outside.find import Found
from quire.core.outside.prefetch import Prefetch
from quire.core.outside.writer import NO_SKIP, Skip, Writer
from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope
from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.core.records.plan import Plan
from quire.core.records.request import PLAIN, Int32, Request
from quire.core.sequences.setbacks import Finished
from quire.core.state.claim import Refusal
from quire.core.state.prepared import Prepared
from quire.core.state.registry import Registry
from quire.incidents.record.entry import (
    AskedRequest,
    ints,
    kept_skip,
    lack_of,
    moved,
    nothing,
    plain_skip,
    relisted,
    set_back,
)  # fmt: skip


class OutsideCalls:
    """Those that no step of an engine makes."""

    _registry: Registry
    _real: dict[str, Any]
    call: Callable[..., Any]
    asked: Callable[[Request | Prepared], AskedRequest]
    take: Callable[[Any], int]

    def find(self, request: Request | Prepared, from_: int = 0) -> Found:
        """See Cache."""
        real = self._real["find"]

        def facts(found: Found) -> Any:
            places = [(found.tiers(group), found.slots(group)) for group in self._registry.setup.groups]
            return self.take(found), found.end, places

        return self.call("find", lambda: (self.asked(request), from_), lambda: real(request, from_), facts)  # type: ignore[no-any-return]

    def writer(
        self, request: Request | Prepared, *, tier: int, from_: int = 0, end: int | None = None, skip: Skip = NO_SKIP
    ) -> Writer | Refusal:
        """See Cache."""
        left_out, real = kept_skip(skip), self._real["writer"]

        def facts(made: Writer | Refusal) -> Any:
            return lack_of(made) if isinstance(made, Refusal) else (self.take(made), self.written(made))

        made: Writer | Refusal = self.call(
            "writer", lambda: (self.asked(request), tier, from_, end, plain_skip(left_out)),
            lambda: real(request, tier=tier, from_=from_, end=end, skip=left_out), facts,
        )  # fmt: skip
        return made

    def written(self, writer: Writer) -> Any:
        """What a writer has taken."""
        return [writer.slots(group) for group in self._registry.setup.own_groups], moved(writer.plan)

    def prefetch(self, request: Request | Prepared, deadline: float | None = None) -> Prefetch | Refusal:
        """See Cache."""
        real = self._real["prefetch"]

        def facts(made: Prefetch | Refusal) -> Any:
            return lack_of(made) if isinstance(made, Refusal) else (self.take(made), made.end, moved(made.plan))

        return self.call("prefetch", lambda: (self.asked(request), deadline), lambda: real(request, deadline), facts)  # type: ignore[no-any-return]

    def truncate(self, request: Request, keep: int = 0) -> int:
        """See Cache."""
        real = self._real["truncate"]
        return self.call("truncate", lambda: (self.asked(request), keep), lambda: real(request, keep), int)  # type: ignore[no-any-return]

    def hint(self, tokens: Int32, back: Back | None, scope: Scope = PLAIN, keep: int = 0) -> int:
        """See Cache."""
        real = self._real["hint"]
        given = lambda: (tokens.copy(), back, scope, keep)  # noqa: E731
        return self.call("hint", given, lambda: real(tokens, back, scope, keep), int)  # type: ignore[no-any-return]

    def clear(self, *, store_again: bool = False) -> int:
        """See Cache."""
        real = self._real["clear"]
        return self.call("clear", lambda: (store_again,), lambda: real(store_again=store_again), int)  # type: ignore[no-any-return]

    def forget(self, scope: Scope) -> int:
        """See Cache."""
        real = self._real["forget"]
        return self.call("forget", lambda: (scope,), lambda: real(scope), int)  # type: ignore[no-any-return]

    def lose(self, group: int, slots: Iterable[int], tier: int = 0) -> Finished:
        """See Cache."""
        many, real = relisted(slots), self._real["lose"]
        return self.call("lose", lambda: (group, ints(many), tier), lambda: real(group, many, tier), finished)  # type: ignore[no-any-return]

    def refresh(self) -> None:
        """See Cache."""
        self.call("refresh", tuple, self._real["refresh"], nothing)

    def offload(self, num_pages: int, group: int = 0) -> Plan:
        """See Cache."""
        real = self._real["offload"]
        return self.call("offload", lambda: (num_pages, group), lambda: real(num_pages, group), moved)  # type: ignore[no-any-return]

    def copy_down(self, limit: int) -> Plan:
        """See Cache."""
        real = self._real["copy_down"]
        return self.call("copy_down", lambda: (limit,), lambda: real(limit), moved)  # type: ignore[no-any-return]

    def lasting_changes(self) -> LastingChanges:
        """See Cache."""
        facts = lambda changes: [changes.freed_slot, changes.pages.slot]  # noqa: E731
        return self.call("lasting_changes", tuple, self._real["lasting_changes"], facts)  # type: ignore[no-any-return]

    def restore(self, nodes: BlockNodes, pages: LastingPages) -> int:
        """See Cache."""
        real = self._real["restore"]

        def given() -> tuple[Any, ...]:
            if self._registry.setup.cross is not None and len(nodes.number):
                raise ValueError("what encoders' pages were made from cannot be named again")
            return nodes, pages

        return self.call("restore", given, lambda: real(nodes, pages), int)  # type: ignore[no-any-return]


def finished(done: Finished) -> Any:
    """Whose start has dropped, and what is to be moved for that."""
    return set_back(done.setbacks), moved(done.plan)
