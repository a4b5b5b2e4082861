"""Receipts: what of a prompt was reused, and one reason for every token that was not. Plain data; knows no cache."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from quire.core.records.errors import BrokenInvariant, shown
from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope

Cause = Literal[
    "policy", "last_token", "short", "under_way", "evicted", "failed", "forgotten", "window", "snapshot",
    "other_scope", "new", "interrupted", "slow",
]  # fmt: skip
HintVerdict = Literal["right", "wrong", "absent"]
ClientCause = Literal["policy", "short", "under_way", "gone", "new"]

COUNTERFACTUALS: dict[Cause, str | None] = {  # what would save the token; None: nothing is known to
    "policy": None,
    "last_token": None,
    "short": None,
    "under_way": "the request later, when that is committed",
    "evicted": "more slots for the group",
    "failed": "good bytes, and slots to keep it in",
    "forgotten": "more slots for the group",
    "window": "a group that reads everything, with slots for it",
    "snapshot": "snapshots at every block edge, with slots for them",
    "other_scope": "the same scope",
    "new": None,
    "interrupted": "what differs before it placed behind it",
    "slow": "a prefetch ahead of the claim",
}
_WORDS: dict[Cause, str] = {
    "policy": "not to be reused",
    "last_token": "always computed: the last token",
    "short": "no whole block",
    "under_way": "being computed",
    "evicted": "evicted",
    "failed": "lost: a move failed",
    "forgotten": "gone so long that nothing is known of it",
    "window": "window pages gone",
    "snapshot": "no snapshot to resume at",
    "other_scope": "in another scope",
    "new": "new",
    "interrupted": "interrupted",
    "slow": "in the slow tier only: not prefetched",
}
_CLIENT: dict[Cause, ClientCause] = {
    "policy": "policy",
    "last_token": "policy",
    "short": "short",
    "under_way": "under_way",
    "evicted": "gone",
    "failed": "gone",
    "forgotten": "gone",
    "window": "gone",
    "snapshot": "gone",
    "other_scope": "new",  # that another scope has it stays private
    "new": "new",
    "interrupted": "new",  # nothing of it is stored for this beginning
    "slow": "gone",
}


@dataclass(frozen=True, slots=True)
class Miss:
    """Tokens [start, stop) that were not reused, all for one reason."""

    cause: Cause
    start: int
    stop: int
    group: int | None = None  # the layer group that lacked them, where one did
    seconds: float | None = None  # evicted, failed: so long ago
    admission: int | None = None  # evicted, failed: admissions by then, the one it made room for included
    request: Hashable = None  # under way: who computes them
    scope: Scope | None = None  # other scope: which
    back: Back | None = None  # evicted, failed: the hint that they were ranked by; None: there was none
    gap: int | None = None  # interrupted: tokens before them that were not here

    def __repr__(self) -> str:
        names = ("group", "seconds", "admission", "request", "scope", "back", "gap")
        parts = [f", {name}={shown(value)}" for name in names if (value := getattr(self, name)) is not None]
        return f"Miss({self.cause}, {self.start} to {self.stop}{''.join(parts)})"

    @property
    def num_tokens(self) -> int:
        """How many they are."""
        return self.stop - self.start

    @property
    def parted(self) -> int:
        """Interrupted: where the text before them, which was not here, begins."""
        return self.start - (self.gap or 0)

    @property
    def hint(self) -> HintVerdict | None:
        """Of what was evicted: whether the hint that ranked it was right. Asked for again, it did come back."""
        if self.cause not in ("evicted", "failed"):
            return None
        return "absent" if self.back is None else "wrong" if self.back == "never" else "right"

    @property
    def counterfactual(self) -> str | None:
        """What would have to be otherwise for them to be reused; None: no one thing is known to help."""
        return COUNTERFACTUALS[self.cause]


@dataclass(frozen=True, slots=True)
class ClientMiss:
    """The same in the words of the prompt's sender."""

    cause: ClientCause
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ClientReceipt:
    """What a client may know: of its own tokens only."""

    length: int
    reused: int
    misses: tuple[ClientMiss, ...]  # in order, without gaps, up to the prompt's end

    def __repr__(self) -> str:
        return f"ClientReceipt({_reuse_words(self.reused, self.length)}, {len(self.misses)} misses)"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What of a prompt was reused and from where, and why the rest was not. For the operator: it names others.

    `misses` are in order, disjoint, and cover exactly the tokens from `reused` to `length`.
    """

    length: int  # tokens of the prompt
    reused: int  # of them, leading ones
    hits: Mapping[tuple[int, int], int]  # by (tier, group): tokens of the pages read; a snapshot stands for all of them
    misses: tuple[Miss, ...]
    tiers: tuple[str, ...] = field(default=(), repr=False)  # their names,
    groups: tuple[str, ...] = field(default=(), repr=False)  # and those of the groups

    def __repr__(self) -> str:
        return f"Receipt({_reuse_words(self.reused, self.length)}, {len(self.misses)} misses)"

    def __str__(self) -> str:
        return self.text()

    def missed(self, cause: Cause) -> int:
        """Tokens missed for a cause."""
        return sum(miss.num_tokens for miss in self.misses if miss.cause == cause)

    def client(self) -> ClientReceipt:
        """What the prompt's sender may know."""
        found: list[ClientMiss] = []
        for miss in self.misses:
            cause = _CLIENT[miss.cause]
            start = found.pop().start if found and found[-1].cause == cause else miss.start
            found.append(ClientMiss(cause, start, miss.stop))
        return ClientReceipt(self.length, self.reused, tuple(found))

    def text(self) -> str:
        """A few lines to be read by people."""
        lines = [f"{_reuse_words(self.reused, self.length)}{self._sources()}"]
        misses_of: dict[tuple[Cause, int | None], list[Miss]] = {}
        for miss in self.misses:
            misses_of.setdefault((miss.cause, miss.group), []).append(miss)
        for (cause, group), misses in misses_of.items():
            where = f" (group {self.groups[group]})" if group is not None and len(self.groups) > 1 else ""
            count = sum(miss.num_tokens for miss in misses)
            lines.append(f"{count:,} {_WORDS[cause]}{_facts(misses)}{where}")
        return "\n".join(lines)

    def _sources(self) -> str:
        """Where the reused tokens were, by the first group that has all of them."""
        by_group: dict[int, list[tuple[int, int]]] = {}
        for (tier, group), count in sorted(self.hits.items()):
            by_group.setdefault(group, []).append((tier, count))
        whole = [found for found in by_group.values() if sum(count for _, count in found) == self.reused]
        if not whole or len(self.tiers) < 2:
            return ""
        return f" ({', '.join(f'{count:,} {self.tiers[tier]}' for tier, count in whole[0])})"


def _reuse_words(reused: int, length: int) -> str:
    return f"{reused:,} of {length:,} tokens reused"


def _facts(misses: list[Miss]) -> str:
    """What a line says besides: of several the latest."""
    last = min(misses, key=lambda miss: (miss.seconds or 0.0, -(miss.admission or 0), miss.start))
    if last.seconds is not None:
        ago = f" {last.seconds:,.1f} s ago for admission {last.admission:,}"
        return ago if len(misses) == 1 else f",{ago.replace(' s ago', ' s ago and before,', 1)}"
    if last.cause == "under_way":
        return f" by request {shown(last.request)}"
    if last.cause == "other_scope":
        return f": {shown(last.scope)}"
    if last.cause == "interrupted":
        first = misses[0]
        return f": equal again at {first.start:,}, after {first.gap:,} others" if first.gap else f" at {first.start:,}"
    if last.cause == "new":
        return f": parted at {last.start:,}" if last.start else ""
    return ""


def check_receipt(receipt: Receipt) -> None:
    """Every missed token has one reason; raises BrokenInvariant otherwise."""
    at = receipt.reused
    for miss in receipt.misses:
        if miss.start != at or miss.stop <= at:
            raise BrokenInvariant(f"{shown(miss)} of {receipt!r} does not begin at {at}, or is empty")
        at = miss.stop
    if not 0 <= receipt.reused <= receipt.length or at != receipt.length:
        raise BrokenInvariant(f"{receipt!r} accounts for {at} tokens")
