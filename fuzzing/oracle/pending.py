"""Pending blocks by definition: what a row in flight computes of a request, and who shares it. Knows no slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fuzzing.oracle import reach
from fuzzing.oracle.state import Claim, Row, State


def shares(state: State) -> bool:
    """Whether anything is shared before it is computed."""
    alone = len(state.kinds) == state.world.num_groups  # no group reads an encoder
    return state.world.share_pending and alone and not state.world.has_state


def lengthen(state: State, claim: Claim, usable: int) -> None:
    """A claim finds what some row in flight computes, up to where every group could go on with that row's pages."""
    if not shares(state) or claim.purpose != "compute" or not (state.world.reuse and claim.ask.keeps):
        return
    best, owner = claim.blocks, None
    for row in sorted(state.rows.values(), key=lambda one: one.number):
        end = last_edge(state, claim, row, usable)
        if end > best:
            best, owner = end, row
    if owner is None:
        return
    size, walked = state.world.block_size, claim.blocks
    claim.owner, claim.pending = owner, range(walked, best)
    for group, pages in enumerate(claim.found):
        here = owner.pages[group]
        pages.update({block: page for block in claim.pending if (page := here[block]) is not None})
    claim.found = [{block: page for block, page in pages.items() if block < best} for pages in claim.found]
    claim.blocks, claim.start, claim.walked = best, best * size, best
    claim.coming = max(claim.coming, best)
    claim.source, claim.sources = None, []
    needed = [reach.needed(kind, best * size, size) for kind in state.kinds]
    claim.pages = [{block: pages[block] for block in some} for pages, some in zip(claim.found, needed, strict=True)]


@contextmanager
def launched_only(model: Any) -> Iterator[None]:
    """While it is open, rows that share what is yet to be launched are as far as launched steps compute them."""
    before = {row: row.launched for row, *_ in model.coming}
    for row in before:
        row.launched = max(
            (until for step in model.steps for rider, _, _, until in step.rides if rider is row), default=0
        )
    yield
    for row, end in before.items():
        row.launched = end


def last_edge(state: State, claim: Claim, row: Row, usable: int) -> int:
    """The last edge of all that a row in flight has of a claim's tokens where every group could go on."""
    size, ask = state.world.block_size, claim.ask
    if row.launched <= row.computed or row.tip is None or not row.keep or row.ask.root != ask.root:
        return 0
    known = min(row.launched, row.prompt, usable) // size
    same = [
        ask.identities[: edge * size] == tuple(row.tokens[: edge * size]) for edge in range(len(row.tokens) // size + 1)
    ]
    if row.committed > claim.blocks or not same[row.committed]:
        return 0
    edges = [edge for edge in range(claim.blocks + 1, known + 1) if same[edge] and can_go_on(state, claim, row, edge)]
    return max(edges, default=0)


def can_go_on(state: State, claim: Claim, row: Row, edge: int) -> bool:
    """Whether the row has a page of every block behind the hit that going on there reads."""
    size = state.world.block_size
    for group, kind in enumerate(state.kinds):
        blocks = [block for block in reach.needed(kind, edge * size, size) if block >= claim.blocks]
        if any(block >= len(row.pages[group]) or row.pages[group][block] is None for block in blocks):
            return False
    return True


def landed(state: State, claim: Claim) -> int:
    """Blocks of a claim that are computed by now: a row that has ended was computed."""
    owner = claim.owner
    if owner is None or owner not in state.rows.values():
        return claim.blocks
    return max(claim.pending.start, min(claim.blocks, owner.computed // state.world.block_size))


def owner_now(state: State, claim: Claim) -> Row | None:
    """The row that still computes a part of a claim's hit."""
    return claim.owner if landed(state, claim) < claim.blocks else None


def claims_on(model: Any) -> list[tuple[Row, Claim]]:
    """Open claims that end with what a row in flight computes."""
    both = [(owner_now(model.own, claim), claim) for claim in model.open_claims()]
    return [(owner, claim) for owner, claim in both if owner is not None]


def shared_end(model: Any, step: Any, row: Row, end: int) -> int:
    """How far a step must have computed a row for those that share it; 0: nobody does."""
    rides = [ride for ride in step.rides if ride[0].since <= step.number]  # the others have lost pages
    ends: list[int] = [until for _, owner, _, until in rides if owner is row]
    ends += [min(claim.start, end) for owner, claim in claims_on(model) if owner is row]
    size = model.world.block_size
    shared: int = max(ends, default=0) // size * size
    return shared


def riders(model: Any, rows: Sequence[Row]) -> list[Row]:
    """Rows that share what is computed for these rows, or for such rows, and so on."""
    found: list[Row] = []
    more = list(rows)
    while more:
        more = [row for row, owner, *_ in all_rides(model) if owner in more and row not in found]
        found += dict.fromkeys(more)
    return found


def all_rides(model: Any) -> list[tuple[Row, Row, int, int]]:
    """What rows share of others, in steps in flight and in those to come."""
    return [*(ride for step in model.steps for ride in step.rides), *model.coming]


def stranded(model: Any, failed: Sequence[Any]) -> list[Row]:
    """Rows that share what failed steps were to compute; and those that share what such rows were to compute next."""
    found = [row for step in failed for row, *_ in step.rides]
    more = found
    while more:
        more = [row for row, owner, *_ in model.coming if owner in more and row not in found]
        found = [*found, *more]
    return list(dict.fromkeys(found))


def shared_ends(model: Any) -> dict[Row, int]:
    """How far rows share what is being computed."""
    ends: dict[Row, int] = {}
    for row, _, _, until in all_rides(model):
        ends[row] = max(until, ends.get(row, 0))
    return ends


def get_off(model: Any, rows: Sequence[Row]) -> None:
    """These rows share nothing any more; such as have ended stay in the steps they are in."""
    model.coming = [one for one in model.coming if one[0] not in rows]
    for step in model.steps:
        step.rides = [one for one in step.rides if one[0] not in rows or one[0].ending is not None]
