"""Promise: the exact tokens that a request will compute, the pages it brings up, the slots it takes: said at its claim.

What it rests on is held, so admission keeps it whatever else the batch does; only pages that cannot be read change it:
a setback. Made for a claim, and again for one whose pages are lost. Knows no rows and no budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.admission import charge
from quire.core.state.claim import Promise
from quire.core.state.roots import NO_ROOT
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    from quire.core.state.prepared import ReadyRequest
    from quire.core.store.interface import Hit


def make_promise(setup: Setup, claim: Promise, explains: bool = False) -> int:
    """Find the hit of a claim's request, hold it, and fill in its numbers; `explains`: and note in it why there is no
    more. The row that computes what of it is under way, as far as that was looked for, -1: none."""
    prepared, store, computes = claim.prepared, setup.store, claim.purpose == "compute"
    claim.is_cut = claim.is_cross_cut = False
    claim.full = None
    root, computing = setup.roots.find(prepared.scope_key) if prepared.keep else NO_ROOT, -1
    usable = last = usable_tokens(prepared, computes)
    if computes or not setup.groups_differ:
        full = hit = store.walk(prepared.chain, root, usable, setup.partial_policy)
        if setup.shares_pending and computes:
            store.find_pending(hit, prepared.chain, root, usable)
        if computes and prepared.request.redo_blocks and hit.start:
            computing = _explain(claim, full, root, usable) if explains else -1
            claim.full, (usable, hit) = full, _look_below(setup, prepared, root, full)
        claim.hit = hit
        claim.cold = store.claim(hit)
        partial = hit.source >= 0
        if partial and _source_in_the_way(setup, claim, hit):
            store.unclaim(hit)
            claim.hit = hit = full = store.walk(prepared.chain, root, usable, 0)
            claim.cold = store.claim(hit)
            partial = False
        claim.junction = _junction(setup, full, last) if setup.state_groups and prepared.keep else None
        if prepared.marks is not None:
            prepared.part_at(claim.junction or 0)
        claim.takes = charge.takes(setup, prepared, hit)
    else:
        claim.junction, partial = None, False
        claim.hit = hit = store.walk(prepared.chain, root, usable, 0)
        claim.cold = store.claim(hit, charge.needs(setup, prepared))
        claim.takes = charge.decode_takes(setup, prepared, hit)
    claim.num_tokens = prepared.end - hit.start if computes else 0
    claim.cross_hit = _look_across(setup, claim) if setup.cross is not None else None
    copies = (partial or setup.state_groups) and len(setup.config.tiers) > 1
    claim.onboards = _from_below(setup, claim) if copies else claim.cold
    if not explains:
        return -1
    explained = _explain(claim, hit, root, usable)
    return explained if claim.full is None else computing


def usable_tokens(prepared: ReadyRequest, computes: bool) -> int:
    """Leading tokens that may be reused; the last of a prompt is always computed: it makes the logits."""
    usable, limit = prepared.end - computes, prepared.request.reuse_limit
    return usable if limit is None else min(usable, limit)


def _less(setup: Setup, prepared: ReadyRequest, full: Hit) -> int:
    """Where what is reused ends at the latest: so many blocks earlier, and one that is found in part is one of them."""
    return max(0, full.blocks + (full.source >= 0) - prepared.request.redo_blocks) * setup.block_size


def _look_below(setup: Setup, prepared: ReadyRequest, root: int, full: Hit) -> tuple[int, Hit]:
    """Where what is reused ends although more was found, and the whole blocks up to there."""
    usable = _less(setup, prepared, full)
    hit = setup.store.walk(prepared.chain, root, usable, 0)
    if setup.shares_pending:
        setup.store.find_pending(hit, prepared.chain, root, usable)
    return usable, hit


def _explain(claim: Promise, hit: Hit, root: int, usable: int) -> int:
    """Note in a hit why there is no more of it; the row that computes what is under way, -1: none."""
    prepared, setup = claim.prepared, claim.prepared.setup
    name = setup.roots.name(prepared.scope) if root == NO_ROOT and prepared.keep else 0
    return setup.store.explain(hit, prepared.chain, root, name, usable)


def _junction(setup: Setup, hit: Hit, usable: int) -> int | None:
    """Where the next whole block is another than those that follow there, and no state was found so far."""
    edge = hit.num_nodes * setup.block_size
    parts = hit.parts and edge + setup.block_size <= usable
    return edge if parts and edge > hit.start else None


def _source_in_the_way(setup: Setup, claim: Promise, hit: Hit) -> bool:
    """The pool could never hold the source of a partial hit beside what the request takes: do without it."""
    if setup.smallest_share - hit.blocks >= 2 and len(setup.sharers) == len(setup.groups):
        return False  # the usual case: there is far more room than that
    own = [groups for groups in setup.sharers if groups[0] in setup.own_groups]
    if not any(_is_crowded(setup, claim, hit, groups) for groups in own):
        return False  # the source and its copy fit side by side; then the source makes room
    leaf, held, num_claims, _ = setup.store.source_state(hit)
    return not (leaf and not any(held) and all(claims == 1 for claims in num_claims))


def _is_crowded(setup: Setup, claim: Promise, hit: Hit, groups: tuple[int, ...]) -> bool:
    """Whether a pool has no room for the copy of some group: those before it have all they may ever take by then, and
    it and those behind it their hits and sources."""
    room, held = setup.device_slots[groups[0]], [len(hit.held(group)) + 1 for group in groups]
    for place, group in enumerate(groups):
        if room < sum(held[place:]) + 1:
            return True
        if place + 1 < len(groups):
            room -= charge.worst(setup, claim.prepared, group, claim.purpose)
    return False


def _look_across(setup: Setup, claim: Promise) -> Hit | None:
    """The same for the encoder's stream; its groups take no part in `start`."""
    assert setup.cross is not None
    places, cross = claim.prepared.encoder, setup.cross
    others = len(setup.groups) - len(setup.own_groups)
    if places is None:
        claim.takes, claim.cold = claim.takes + (0,) * others, claim.cold + (0,) * others
        return None
    root = cross.roots.find(claim.request.scope.key) if places.keep else NO_ROOT
    hit = cross.store.walk(places.chain, root, places.blocks * setup.block_size, 0)
    claim.cold += cross.store.claim(hit)
    claim.takes += (places.blocks - hit.blocks,) * others
    return hit


def _from_below(setup: Setup, claim: Promise) -> tuple[int, ...]:
    """Pages per group that admission reads from a colder tier: whole ones, and those it only copies from.

    They are claimed, so that nothing moves them down; what another request brings up meanwhile need not be read.
    """
    counts, hit = list(claim.cold), claim.hit
    _, _, _, tiers = setup.store.source_state(hit)
    for group, tier in enumerate(tiers):
        counts[group] += tier > 0
    for group in setup.state_groups:
        held = hit.held(group)
        counts[group] += len(held) > 0 and int(hit.tiers(group)[held[-1]]) > 0
    return tuple(counts)
