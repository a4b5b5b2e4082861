"""Whether a batch fits into a step: the token budget, handed out first come first served in exact lengths, and the dry
count of the slots that claims will take, before the first move. Changes nothing in the store.

With a budget of 0 nothing new is computed: unfinished prompts wait, requests are refused for tokens. A claim that has
nothing to compute (`purpose="decode"`) is admitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.core.admission import charge
from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, say, shown
from quire.core.state.claim import Promise, hit_of
from quire.core.state.prepared import ReadyRequest
from quire.core.state.setup import Setup


class Step:
    """The budgets of one step."""

    __slots__ = ("all_or_nothing", "budget", "left", "limited", "max_chunk")

    def __init__(
        self, token_budget: int | None, max_chunk: int | None, all_or_nothing: bool, config: CacheConfig
    ) -> None:
        if token_budget is not None and (type(token_budget) is not int or token_budget < 0):
            fact = "it is not a number of tokens"
            raise InputError(say(f"token_budget {shown(token_budget)}", fact, "pass an int of at least 0, or None"))
        if max_chunk is not None and (type(max_chunk) is not int or max_chunk < 1):
            fact = "no part of a prompt fits into it"
            raise InputError(say(f"max_chunk {shown(max_chunk)}", fact, "pass an int of at least 1, or None"))
        if all_or_nothing is not True and all_or_nothing is not False:
            fact = f"it is a {type(all_or_nothing).__name__}"
            raise InputError(say("all_or_nothing", fact, "pass True or False"))
        longest = config.max_chunk
        if longest is not None and (max_chunk is None or max_chunk > longest):
            max_chunk = longest  # slots are only reserved for chunks up to that
        self.budget = self.left = token_budget
        self.max_chunk = max_chunk  # longest part of a prompt per step; None: a prompt is computed whole
        self.limited = max_chunk is not None or token_budget is not None
        self.all_or_nothing = all_or_nothing

    def end(self, start: int, end: int, prepared: ReadyRequest) -> int | None:
        """Where to stop: at the end, or for a chunk where the budget ends or the prompt may be cut; None: nowhere."""
        limit = end - start
        if self.max_chunk is not None:
            limit = min(limit, self.max_chunk, limit if self.left is None else self.left)
            if limit < end - start:
                limit = prepared.cut_before(start + limit) - start
                if limit <= 0:
                    return None
        if self.left is not None:
            if limit > self.left:
                return None
            self.left -= limit
        return start + limit

    def never_whole(self, num_tokens: int) -> bool:
        """It is more than the whole budget, and prompts are not computed in parts: no later step has room for it.

        A budget of 0 says nothing of later steps: this one computes nothing new.
        """
        return self.max_chunk is None and self.budget is not None and 0 < self.budget < num_tokens

    def lack(self, start: int, num_tokens: int, left: int | None, prepared: ReadyRequest) -> tuple[int, int]:
        """What a request that got no part needs and what there was: of one in parts, the uncut span it begins in."""
        span = next((one for one in prepared.request.uncut if one.start <= start < one.end), None)
        if self.max_chunk is None or span is None or left == 0:
            return num_tokens, left or 0
        return span.end - start, self.max_chunk if left is None else min(self.max_chunk, left)


class Trade(NamedTuple):
    """What a partial hit does to the free slots of one group."""

    takes: int
    gives: int  # its source's slot, right after the copy


Trades = dict[int, list[Trade]]  # by place in the batch, then group
NO_TRADE = Trade(0, 0)


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first claim that runs out of slots: its place, and of which group it needs more than there is."""

    place: int
    need: int
    have: int
    group: int


def shortage(setup: Setup, claims: list[Promise]) -> Shortage | None:
    """Where slots run out; None when all fit."""
    for groups in setup.sharers:
        # as if every partial hit copied, gave nothing back, shared no onboard and kept from others what it has
        most = 0
        for group in groups:
            for claim in claims:
                most += claim.cold[group] + claim.takes[group] + setup.shared[group]
        store, place = setup.pools[groups[0]]
        if most > store.available(place):
            return _run_dry(setup, claims, _trades(setup, claims), _cold_once(setup, claims))
    return None  # the usual case


def _run_dry(setup: Setup, claims: list[Promise], trades: Trades, cold: list[tuple[int, ...]]) -> Shortage | None:
    for groups in setup.sharers:
        have = setup.available(groups[0])
        lent = {group: _lent(setup, claims, group) for group in groups}
        shared = {group: _shared(setup, claims, group) for group in groups}
        for place, claim in enumerate(claims):
            before, taken = have, 0
            for group in groups:  # one after the other, as it will be
                takes, gives = trades[place][group] if place in trades else NO_TRADE
                new = claim.takes[group] - (place in trades and group < setup.own_groups.stop)
                if lent[group][place]:  # the state is copied into a slot of its own; then the snapshot's slot is free
                    takes, gives, new = 1, 1, new - 1
                need = cold[place][group] + takes + shared[group][place]
                new -= spared(setup, claim, group)
                taken += need + new
                if need > have or new > have - need + gives:
                    return Shortage(place, taken, before, group)
                have += gives - need - new
    return None


def _lent(setup: Setup, claims: list[Promise], group: int) -> list[bool]:
    """Per claim: whether it alone keeps an idle device page of this state group from others."""
    return [group in setup.state_groups and _lends(setup, claim, group) for claim in claims]


def _lends(setup: Setup, claim: Promise, group: int) -> bool:
    """Whether there were more room without its claim."""
    if claim.purpose == "decode" or not claim.hit.blocks:
        return False
    for page in claim.hit.pages(group).tolist():
        info = setup.store.page_info(group, page)
        if info.holders == 0 and info.claims == 1 and setup.store.page_slots(group, page)[0] >= 0:
            return True
    return False


def _shared(setup: Setup, claims: list[Promise], group: int) -> list[int]:
    """Per claim: pages of its hit that a row was to give up, counted for the first that will keep them."""
    if group not in setup.windows:
        return [0] * len(claims)
    seen: set[int] = set()
    counts: list[int] = []
    for claim in claims:
        new = set(setup.store.promised(claim.hit, group).tolist()) - seen
        counts.append(len(new))
        seen |= new
    return counts


def spared(setup: Setup, claim: Promise, group: int) -> int:
    """Slots that it need not take: pages of a window that it alone has make room when they leave it."""
    if group not in setup.windows or claim.purpose == "decode":
        return 0
    alone, sink = 0, setup.layers[group].sink(setup.block_size)
    blocks, pages = claim.hit.held(group).tolist(), claim.hit.pages(group).tolist()
    for block, page in zip(reversed(blocks), reversed(pages), strict=True):
        info = setup.store.page_info(group, page)
        if block < sink or info.holders or info.claims > 1:
            break
        alone += 1
    return charge.spared(setup, claim.prepared, group, claim.hit.start, alone)


def _cold_once(setup: Setup, claims: list[Promise]) -> list[tuple[int, ...]]:
    """Onboards per claim and group as they are now, a page that several claims share counted for the first."""
    seen: list[set[int]] = [set() for _ in setup.groups]
    counts: list[tuple[int, ...]] = []
    for claim in claims:
        cold = [_cold_pages(setup, claim, group) for group in setup.groups]
        counts.append(tuple(len(cold[group] - seen[group]) for group in setup.groups))
        for group in setup.groups:
            seen[group] |= cold[group]
    return counts


def _cold_pages(setup: Setup, claim: Promise, group: int) -> set[int]:
    hit = hit_of(claim, group)
    if hit is None or not claim.cold[group]:
        return set()
    place = setup.pools[group].place
    tiers, _ = hit.places(place)
    return set(hit.pages(place)[tiers > 0].tolist())


def _trades(setup: Setup, claims: list[Promise]) -> Trades:
    """For each partial hit and group: slots it takes, and slots its source gives back right after the copy.

    An idle leaf that no request hits in full goes to its last partial hitter; all others copy. The last copier of an
    idle source that is not a leaf gives it back, so that the next page of this very batch may have its slot.
    """
    by_source: dict[int, list[int]] = {}
    for place, claim in enumerate(claims):
        if claim.hit.source >= 0:
            by_source.setdefault(claim.hit.sources()[0], []).append(place)
    across = [NO_TRADE] * (len(setup.groups) - len(setup.own_groups))
    trades: Trades = {}
    for places in by_source.values():
        last = claims[places[-1]].hit
        leaf, held, num_claims, tiers = setup.store.source_state(last)
        ours = [not in_use and count == len(places) for in_use, count in zip(held, num_claims, strict=True)]
        for place in places:
            trades[place] = [Trade(1, 0)] * len(tiers) + across
        if leaf and all(ours):
            trades[places[-1]] = [Trade(int(tier > 0), 0) for tier in tiers] + across
        else:
            gives = [Trade(1, int(mine and tier == 0)) for mine, tier in zip(ours, tiers, strict=True)]
            trades[places[-1]] = gives + across
    return trades
