"""Writer: slots for pages whose bytes come from outside, findable when they are written and held only until then.

writer ──► slots of a tier ──► the caller writes ──► written ──► in the tree, idle
                └── close, or the writer is lost: given back
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from quire.core.admission.prepare import ready_for
from quire.core.records.errors import InputError, StateError, UnknownError, listed, say, shown, whole_numbers
from quire.core.records.plan import Plan
from quire.core.records.request import Int32, Request, check_tokens
from quire.core.records.retain import retained_blocks
from quire.core.state.claim import Refusal
from quire.core.state.handle import Handle, take_lost
from quire.core.state.prepared import Prepared
from quire.core.state.registry import Registry
from quire.core.state.roots import NO_ROOT
from quire.core.state.writing import NONE, Writing, release

Skip = Mapping[int, Iterable[int]]  # by group: blocks that are left out
NO_SKIP: Skip = MappingProxyType({})
LeftOut = Mapping[int, Collection[int]]  # the same, checked
NOTHING: Skip = {}
NO_BLOCKS: LeftOut = {}
MANY = 4096
NUMBERS: Int32 = np.arange(MANY, dtype=np.int32)  # blocks are mostly among them; a part of it costs less than a new one
NUMBERS.flags.writeable = False


class Writer(Handle[Writing]):
    """Slots of one tier for whole blocks of a text, group by group; use it in a `with` block.

    `blocks` and `slots` are those that wait for their bytes; what is in the cache already is not among them. `plan` has
    the moves that make room: run it before you write. Encoders' pages are not written this way.
    """

    __slots__ = ("_registry", "plan")

    def __init__(self, registry: Registry, writing: Writing, plan: Plan) -> None:
        super().__init__(registry.setup.lock, registry.open_writers, registry.lost_writers, writing)
        self._registry = registry
        self.plan = plan

    @property
    def request(self) -> Request:
        """What was asked; its tokens are the first of the text."""
        return self._kept.prepared.request

    @property
    def tier(self) -> int:
        """Where the slots are."""
        return self._kept.tier

    @property
    def length(self) -> int:
        """Tokens of the text so far."""
        return len(self._kept.chain)

    @property
    def forgotten(self) -> bool:
        """Its text was cleared, truncated or forgotten since: nothing of it will be findable."""
        return self._kept.is_cut

    def blocks(self, group: int = 0) -> Int32:
        """Blocks of a group that wait for their bytes, ascending; a copy."""
        return self._kept.blocks[self._own(group)].copy()

    def slots(self, group: int = 0) -> Int32:
        """The slot of each of them."""
        kept = self._kept
        return self._registry.setup.store.slots_in(group, kept.tier, kept.pages[self._own(group)])

    def taken(self, group: int = 0) -> tuple[list[int], list[int]]:
        """Blocks and slots of a group that were taken when the writer was opened, or with the last `extend`."""
        fresh = self._kept.fresh
        if not fresh or not isinstance(group, int) or not 0 <= group < len(fresh):
            self._own(group)
            return [], []
        blocks, _, slots = fresh[group]
        return blocks.tolist(), slots.tolist()

    def _own(self, group: int) -> int:
        own = self._registry.setup.own_groups
        if not isinstance(group, int) or group not in own:
            fact = f"it writes the groups of the sequence's own tokens, {len(own)} of them"
            raise UnknownError(say(f"group {shown(group)} of {shown(self)}", fact, "number them from 0"))
        return group

    def extend(
        self, tokens: Int32 | None = None, *, end: int | None = None, skip: Skip = NOTHING, also: Skip = NOTHING
    ) -> Refusal | None:
        """Append tokens, and take slots for whole blocks before `end` (None: all). A refusal has changed nothing.

        `also`, by group: blocks behind `end` whose bytes must be copied now. No later call takes them once more.
        """
        with self._lock:
            self._check_open("extend")
            lack = _extend(self._registry, self._kept, tokens, end, skip, also)
            if lack is None:
                self.plan = self._registry.take_plan()
            return lack

    def written(self, end: int, skip: Skip = NOTHING) -> int:
        """The pages of whole blocks before `end` are there: findable now, but for those left out. How many are new."""
        with self._lock:
            self._check_open("written")
            return _written(self._registry, self._kept, end, skip)

    def _check_open(self, act: str) -> None:
        if self.closed:
            raise StateError(say(f"{act} of {shown(self)}", "it was closed", "open another"))

    def close(self) -> None:
        """Give back what was not written."""
        with self._lock:
            if not self.closed:
                now = self._registry.setup.now()  # before the first change: a caller's clock may raise
                self._end()
                release(self._kept, now)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        waiting = f"{[len(pages) for pages in self._kept.pages]} pages to come"
        return f"Writer({shown(self.request.id)}, tier={self.tier}, {'closed' if self.closed else waiting})"


def open_writer(
    registry: Registry, request: Request | Prepared, tier: int, part: tuple[int, int | None], skip: Skip
) -> Writer | Refusal:
    """Slots for the whole blocks of a `part` of a request that the cache has not; a refusal has changed nothing."""
    setup = registry.setup
    (prepared,) = ready_for(setup, [request], "decode")
    if not prepared.keep:
        ask = f"writer of request {shown(prepared.request.id)}"
        raise InputError(say(ask, "nothing of it may be stored (reuse is off)", "leave the writer out"))
    _check_length(setup.config.max_length, prepared.end, prepared.request)
    groups = len(setup.own_groups)
    writing = Writing(prepared, prepared.chain.clone(), tier, [NONE] * groups, [NONE] * groups)
    from_, end = part
    writing.taken = _end(writing, from_)
    lack = _take(registry, writing, _end(writing, end), _left_out(registry, skip), NO_BLOCKS)
    if lack is not None:
        return lack
    registry.timed = registry.timed or prepared.timed
    return Writer(registry, writing, registry.take_plan())


def _check_length(longest: int, length: int, request: Request) -> None:
    if length > longest:
        ask = f"writer of request {shown(request.id)}: {length} tokens"
        raise InputError(say(ask, f"max_length is {longest}", "cut the text"))


def _end(writing: Writing, end: int | None) -> int:
    """Blocks before that token."""
    if end is None:
        return len(writing.chain) // writing.prepared.setup.block_size
    if type(end) is not int or not 0 <= end <= len(writing.chain):
        fact = f"its text has {len(writing.chain)} tokens"
        raise InputError(say(f"a writer up to token {shown(end)}", fact, "pass a number of its tokens"))
    return end // writing.prepared.setup.block_size


def _left_out(registry: Registry, skip: Skip) -> LeftOut:
    if skip is NO_SKIP or (type(skip) is dict and not skip):
        return {}
    own, checked = registry.setup.own_groups, {}
    named = skip.items() if type(skip) is dict or isinstance(skip, Mapping) else ((None, ()),)
    for group, blocks in named:
        if type(group) is not int or group not in own:
            fact = f"it writes {len(own)} groups"
            raise InputError(say(f"blocks left out {shown(skip)}", fact, "pass {group: blocks}, groups from 0"))
        checked[group] = blocks if type(blocks) is range else _blocks(group, blocks)
    return checked


def _blocks(group: int, blocks: Iterable[int]) -> set[int]:
    named = listed(f"blocks left out of group {group}", blocks)
    numbers = whole_numbers(named)
    if numbers is None:
        ask = f"blocks {shown(named)} left out of group {group}"
        raise InputError(say(ask, "they are not whole numbers", "pass numbers of blocks"))
    return set(numbers)


def _take(registry: Registry, writing: Writing, stop: int, skip: LeftOut, also: LeftOut) -> Refusal | None:
    """Slots for the blocks up to `stop` that were not asked for yet, and for those named in `also`."""
    setup, prepared = registry.setup, writing.prepared
    now = setup.now()  # before the first change: a caller's clock may raise
    first = writing.taken
    if stop <= first and not also:  # a writer that is opened before it needs slots
        setup.store.refresh(now)
        writing.fresh = ()
        return None
    stop = max(stop, first)
    fresh = NUMBERS[first:stop] if stop <= MANY else np.arange(first, stop, dtype=np.int32)
    wanted = [NONE if writing.is_cut else fresh] * len(writing.blocks)
    if (skip or also or writing.also) and not writing.is_cut:
        _name(writing, wanted, skip, also)
    priorities = durations = None
    if prepared.request.retention is not None:
        whole = len(writing.chain) // setup.block_size
        priorities, durations = retained_blocks(prepared.request.retention, whole, prepared.length, setup.block_size)
    root = setup.roots.find(prepared.scope_key)
    made = setup.store.write(root, writing.chain, writing.tier, wanted, priorities, durations, now=now)
    if isinstance(made, tuple):
        group, need, have = made
        never = need > setup.config.slots_of(writing.tier, group)
        return Refusal(prepared.request, "slots", need, have, never=never, group=group)
    writing.fresh, writing.taken = made, stop
    if registry.page_watcher is not None:
        registry.page_watcher.writing(prepared.request, [pages for _, pages, _ in made])
    if also:
        for group, named in also.items():
            writing.also.setdefault(group, set()).update(named)
    for group, (blocks, pages, _) in enumerate(made):
        if len(writing.blocks[group]):
            blocks, pages = _joined((writing.blocks[group], writing.pages[group]), (blocks, pages))
        writing.blocks[group], writing.pages[group] = blocks, pages
    return None


def _name(writing: Writing, wanted: list[Int32], skip: LeftOut, also: LeftOut) -> None:
    """Of the blocks that come next, by group, leave out what is to be, or was taken before; add those behind them."""
    fresh = wanted[0]
    stop = writing.taken + len(fresh)
    for group, left_out in skip.items():
        wanted[group] = _without(fresh, left_out)
    for group, had in writing.also.items():
        now = [block for block in had if writing.taken <= block < stop]
        if now:
            wanted[group] = _without(wanted[group], to_range(now))
    for group, named in also.items():
        later = _later_blocks(writing, group, stop, named)
        wanted[group] = np.concatenate([wanted[group], later]) if len(wanted[group]) else later


def _later_blocks(writing: Writing, group: int, stop: int, named: Collection[int]) -> Int32:
    """Those of some blocks that it would not take now, and has not."""
    had, whole = writing.also.get(group), len(writing.chain) // writing.prepared.setup.block_size
    if not named:
        return NONE
    ends = (named[0], named[-1]) if type(named) is range else (min(named), max(named))  # a range may be long
    if min(ends) < 0 or max(ends) >= whole:
        ask = f"blocks {shown(named)} of group {group} behind the end"
        raise InputError(say(ask, f"its text has {whole} whole blocks", "pass numbers of its blocks"))
    if had is None and type(named) is range and named.step == 1 and named.stop <= MANY:  # mostly
        return NUMBERS[max(named.start, stop) : named.stop]
    return np.array(sorted(block for block in set(named) if block >= stop and block not in (had or ())), np.int32)


def _joined(waiting: tuple[Int32, Int32], fresh: tuple[Int32, Int32]) -> tuple[Int32, Int32]:
    """Blocks and their pages, ascending: mostly what waits comes first. Joining arrays costs more than it looks."""
    if not len(fresh[0]):
        return waiting
    if fresh[0][-1] < waiting[0][0]:  # what waits was taken before its turn
        waiting, fresh = fresh, waiting
    blocks, pages = np.concatenate([waiting[0], fresh[0]]), np.concatenate([waiting[1], fresh[1]])
    if waiting[0][-1] < fresh[0][0]:
        return blocks, pages
    order = np.argsort(blocks)
    return blocks[order], pages[order]


def to_range(blocks: list[int]) -> Collection[int]:
    """Some blocks, each named once; mostly they follow each other."""
    if len(blocks) == 1:
        return range(blocks[0], blocks[0] + 1)
    first, last = min(blocks), max(blocks)
    return range(first, last + 1) if last - first == len(blocks) - 1 else set(blocks)


def _without(blocks: Int32, left_out: Collection[int]) -> Int32:
    """Ascending blocks without some of them."""
    if type(left_out) is not range or left_out.step != 1:
        return blocks[[block not in left_out for block in blocks.tolist()]]
    if not left_out or not len(blocks):
        return blocks
    lowest, end = int(blocks[0]), int(blocks[-1]) + 1
    ends = [min(max(lowest, at), end) for at in (left_out.start, left_out.stop)]
    first, last = blocks.searchsorted(ends).tolist()  # mostly at one end
    if first == 0 or last == len(blocks):
        return blocks[last:] if first == 0 else blocks[:first]
    return np.concatenate([blocks[:first], blocks[last:]])


def _extend(
    registry: Registry, writing: Writing, tokens: Int32 | None, end: int | None, skip: Skip, also: Skip
) -> Refusal | None:
    left_out, taken_too = _left_out(registry, skip), NO_BLOCKS if also is NOTHING else _left_out(registry, also)
    if tokens is None:
        return _take(registry, writing, _end(writing, end), left_out, taken_too)
    check_tokens(tokens, "extend of a writer")
    before = len(writing.chain)
    _check_length(registry.setup.config.max_length, before + len(tokens), writing.prepared.request)
    writing.chain.add_tokens(tokens)
    try:
        lack = _take(registry, writing, _end(writing, end), left_out, taken_too)
    except BaseException:
        writing.chain.cut_tokens(before)
        raise
    if lack is not None:
        writing.chain.cut_tokens(before)
    return lack


def _written(registry: Registry, writing: Writing, end: int, skip: Skip) -> int:
    setup, stop, left_out = registry.setup, _end(writing, end), _left_out(registry, skip)
    now = setup.now()  # before the first change: a caller's clock may raise
    is_good = not (left_out or writing.bad or writing.is_cut)
    blocks, pages = _waiting(writing, stop)
    if not is_good:
        _give_back_bad(writing, blocks, pages, left_out, now)
    if not any(map(len, blocks)):
        return 0
    scope = writing.prepared.scope
    root = NO_ROOT if scope is None else setup.roots.make(writing.prepared.scope_key, scope)
    edge = (writing.prepared.end - 1) // setup.block_size
    return setup.store.publish(root, writing.chain, blocks, pages, now, edge, writing.prepared.named)


def _waiting(writing: Writing, stop: int) -> tuple[list[Int32], list[Int32]]:
    """Blocks before `stop` and their pages, by group: they wait no longer."""
    blocks, pages = writing.blocks, writing.pages
    writing.blocks, writing.pages = [NONE] * len(blocks), [NONE] * len(blocks)
    if stop < writing.taken or writing.also:  # else all of it, mostly
        for group, have in enumerate(blocks):
            if len(have) and have[-1] >= stop:
                last, which = int(have.searchsorted(stop)), pages[group]
                blocks[group], writing.blocks[group] = have[:last], have[last:]
                pages[group], writing.pages[group] = which[:last], which[last:]
    return blocks, pages


def _give_back_bad(writing: Writing, blocks: list[Int32], pages: list[Int32], left_out: LeftOut, now: int) -> None:
    """Of pages that are to become findable, by group, those that must not are let go."""
    for group, (have, which) in enumerate(zip(blocks, pages, strict=True)):
        out = left_out.get(group, ())
        is_bad = np.array(
            [writing.is_cut or block in out or (group, block) in writing.bad for block in have.tolist()], np.bool_
        )
        blocks[group], pages[group] = have[~is_bad], which[~is_bad]
        writing.prepared.setup.store.unhold(group, which[is_bad], now)


def give_back_writers(registry: Registry) -> None:
    """What a lost writer was to write is given back. Between two calls only: never inside one."""
    if not registry.lost_writers:
        return
    now = registry.setup.now()
    lost = take_lost(registry.open_writers, registry.lost_writers)
    for writing in lost:
        release(writing, now)
    if lost:
        fact = f"{len(lost)} of them were lost without being closed: their slots are given back"
        warnings.warn(say("writers", fact, "use a `with` block"), ResourceWarning, stacklevel=4)
