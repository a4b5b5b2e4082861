"""Cache: the only way into the core, with the only lock. Every verb is here; how it works is in the file it calls."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.core.admission.admit import add_batch, admit_batch, check_open
from quire.core.admission.batch import Batch
from quire.core.admission.claim import claim_batch, give_back, open_claims
from quire.core.admission.prepare import ready_for
from quire.core.admission.probe import Probe, explain_request, probe_batch, slots_to_completion
from quire.core.admission.step import Step
from quire.core.colder_tiers import ColderTiers
from quire.core.outside.find import Found, find_pages, give_back_finds
from quire.core.outside.hold import drop_hold, hold_pages
from quire.core.outside.lose import bad_pages
from quire.core.outside.prefetch import expire, give_back_prefetches
from quire.core.outside.removal import clear_tree, forget_scope, truncate_tree
from quire.core.outside.take_events import take_events, wait_for_events
from quire.core.outside.writer import NO_SKIP, Skip, Writer, give_back_writers, open_writer
from quire.core.records.config import CacheConfig, hopeless
from quire.core.records.errors import ConfigWarning, InputError, UnknownError, listed, say, shown
from quire.core.records.events import EventBatch
from quire.core.records.identity import Scope
from quire.core.records.plan import Plan
from quire.core.records.reports.receipt import Receipt
from quire.core.records.reports.stats import NUM_COUNTERS, Counts, Usage, counts
from quire.core.records.request import Int32, Request, check_id
from quire.core.records.span import Span
from quire.core.sequences.commit import commit_batch
from quire.core.sequences.finish import finish_plan, warn_of_lost_plans
from quire.core.sequences.fork import fork_sequence
from quire.core.sequences.grow import grow_batch
from quire.core.sequences.release import release_sequence, suspend_sequence, tokens_of
from quire.core.sequences.rows import Sequences
from quire.core.sequences.setbacks import Finished, lose_pages
from quire.core.sequences.trim import trim_tail
from quire.core.sequences.usage import usage_of
from quire.core.state.claim import Refusal
from quire.core.state.claims import Claims
from quire.core.state.handle import handles_of
from quire.core.state.hold import Hold
from quire.core.state.prepared import Prepared, Purpose
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row
from quire.core.state.setup import open_setup
from quire.core.store import StoreName
from quire.core.watcher import Recorder, SequenceWatcher

NOBODY: tuple[Sequence, ...] = ()


class Cache(ColderTiers):
    """The KV cache of one engine. Decides; moves no bytes: run the plans it returns, then `finish` them.

    `record` names a file for a trace of what it serves, without tokens; `recorder.close()` ends it (docs/trace.md).
    """

    def __init__(
        self, config: CacheConfig, *, clock: Callable[[], float] = time.monotonic, store: StoreName = "auto",
        record: str | Path | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(config, CacheConfig):
            raise InputError(say("the config of a cache", f"it is a {type(config).__name__}", "pass a CacheConfig"))
        for reason in hopeless(config):
            warnings.warn(reason, ConfigWarning, stacklevel=2)
        self.config = config
        self._setup = open_setup(config, clock, store)
        self._registry = Registry(self._setup)
        self._lock = self._setup.lock
        self._marks = [np.zeros(NUM_COUNTERS, np.int64) for _ in config.groups]
        self.recorder: Recorder | None = None  # of a trace of what is served; close it to have the file
        self._watchers: tuple[SequenceWatcher, ...] = ()
        if record is not None:
            from quire.trace.record.sequence_recorder import record_sequences  # nothing else in core knows of traces

            self.recorder, watcher = record_sequences(record, config.block_size, self._setup.seconds)
            self._watchers = (watcher,)

    def __repr__(self) -> str:
        free = [self._setup.available(group) for group in self._setup.groups]
        return f"Cache({self.num_sequences} sequences, free {free} of {list(self._setup.device_slots)} slots)"

    def _asked(self) -> AbstractContextManager[bool]:
        """The lock, for calls that look at room or claims: what was kept for lost handles is given back before."""
        registry = self._registry
        lost = registry.abandoned or registry.lost_plans or registry.lost_finds or registry.lost_writers
        if lost or registry.open_prefetches:
            with self._lock:
                give_back(registry)
                give_back_finds(registry)
                give_back_writers(registry)
                give_back_prefetches(registry)
                expire(registry)
                warn_of_lost_plans(registry)
        return self._lock

    # -- admission ---------------------------------------------------------------------------------------------------

    def prepare(self, request: Request, *, keys: bool = True) -> Prepared:
        """Do a request's own work ahead of its claim, on any thread: tokens copied, keys made with the GIL released.

        Without `keys` the first call that looks it up makes them.
        """
        (ready,) = ready_for(self._setup, [request], "compute")
        if keys:
            ready.chain.extend_keys()
        return Prepared(ready)

    def probe(self, requests: Iterable[Request | Prepared], purpose: Purpose = "compute") -> list[Probe]:
        """What a claim would find now; holds nothing and changes nothing."""
        with self._asked():
            return probe_batch(self._setup, requests, purpose)

    def explain(self, request: Request | Prepared, purpose: Purpose = "compute") -> Receipt:
        """Why a claim would miss what it would miss now, token by token; holds nothing and changes nothing.

        What is gone is known where it is remembered: with receipts on, and with the adaptive eviction order.
        """
        with self._asked():
            return explain_request(self._registry, request, purpose)

    def claim(self, requests: Iterable[Request | Prepared], purpose: Purpose = "compute") -> Claims:
        """Phase 1: hold every reusable page of the batch. Use it in a `with` block, or admit or drop the claims."""
        with self._asked():
            return claim_batch(self._registry, requests, purpose)

    def admit(
        self, claims: Claims, *, token_budget: int | None = None, max_chunk: int | None = None,
        all_or_nothing: bool = False, continuing: Iterable[Sequence] = NOBODY,
    ) -> Batch:  # fmt: skip
        """Phase 2: slots, onboarding and copies for the longest prefix of the claims that fits the budgets."""
        if not isinstance(claims, Claims):
            raise InputError(say(f"admit of a {type(claims).__name__}", "it is no Claims", "pass what claim returned"))
        step = Step(token_budget, max_chunk, all_or_nothing, self.config)
        with self._asked():
            own = self._own(continuing) if continuing is not NOBODY else NOBODY
            check_open(self._registry, claims)
            batch = admit_batch(self._registry, claims, step, own)
            return self._noted(batch) if self._watchers else batch

    def add_sequence_batch(
        self, requests: Iterable[Request | Prepared], *, token_budget: int | None = None, max_chunk: int | None = None,
        all_or_nothing: bool = False, continuing: Iterable[Sequence] = NOBODY,
    ) -> Batch:  # fmt: skip
        """Claim and admit in one call."""
        step = Step(token_budget, max_chunk, all_or_nothing, self.config)
        with self._asked():
            own = self._own(continuing) if continuing is not NOBODY else NOBODY
            batch = add_batch(self._registry, requests, step, own)
            return self._noted(batch) if self._watchers else batch

    def _noted(self, batch: Batch) -> Batch:
        for watcher in self._watchers:
            watcher.admitted(batch.sequences)
        return batch

    def _own(self, sequences: Iterable[Sequence]) -> tuple[Sequence, ...]:
        many = tuple(sequences if type(sequences) is list else listed("continuing", sequences))
        for sequence in many:
            own_row(self._setup, sequence)
        return many

    def watch(self, watcher: SequenceWatcher, on: bool = True) -> None:
        """Tell somebody of every sequence that comes and ends from now on; with on=False no more."""
        with self._lock:
            others = tuple(one for one in self._watchers if one is not watcher)
            self._watchers = (*others, watcher) if on else others

    def finish(self, plan: Plan, failed: Iterable[int] = (), undone: Iterable[int] = ()) -> Finished:
        """A plan has run; `failed` names the moves that did not happen. Returns whose start had to drop.

        A move that read what a failed one should have written has failed too, in this plan or a later one: name it.
        `undone`: moves of a background plan that were given up, though the page may be as it was: it stays where it is.
        """
        with self._asked():
            return finish_plan(self._registry, plan, failed, undone)

    def open_claims(self) -> list[Claims]:
        """Claims that were neither admitted nor dropped yet, in order."""
        with self._asked():
            return open_claims(self._registry)

    def find(self, request: Request | Prepared, from_: int = 0) -> Found:
        """Hold exactly what the cache has of a request behind its first `from_` tokens: whole blocks, in any tier.

        For whoever reads pages himself: the engine that has the first tokens on its own device, a transfer, a disk.
        """
        with self._asked():
            return find_pages(self._registry, request, from_)

    def open_finds(self) -> list[Found]:
        """Finds that were not closed yet, in order."""
        with self._asked():
            return [found for found in handles_of(self._registry.open_finds) if isinstance(found, Found)]

    def writer(
        self, request: Request | Prepared, *, tier: int, from_: int = 0, end: int | None = None, skip: Skip = NO_SKIP
    ) -> Writer | Refusal:
        """Slots in a tier for whole blocks of a request, before `end` (None: all), whose bytes somebody else has.

        None for what is here, is before `from_` or in `skip`, by group. Findable when `written`; refused: no change.
        """
        self._check(0, tier)
        with self._asked():
            return open_writer(self._registry, request, tier, (from_, end), skip)

    def open_writers(self) -> list[Writer]:
        """Writers that were not closed yet, in order."""
        with self._asked():
            return [writer for writer in handles_of(self._registry.open_writers) if isinstance(writer, Writer)]

    def open_plans(self) -> list[Plan]:
        """Plans of steps that were not finished yet, in order; `background_plans` has the others."""
        with self._lock:
            return self._registry.open_plans()

    # -- life of sequences -------------------------------------------------------------------------------------------

    def grow(self, sequences: Sequences, tokens: Int32 | None = None, *, num_tokens: int = 1) -> Plan | None:
        """Append tokens and give them slots, for a whole batch or not at all. Without tokens: slots only."""
        with self._asked():
            return grow_batch(self._registry, sequences, tokens, num_tokens)

    def commit(self, sequences: Sequences, computed: int | Int32 | None = None) -> int:
        """KV exists up to `computed`: make full pages findable; returns new ones.

        By default what was handed out has run: of an unfinished prompt its last span, else every known token; the
        same for sequences and for rows. What a transfer brings was handed out to nobody: tell its number. A commit
        below what was handed out is one while a step is under way: a state may have gone on, and is not kept.
        """
        with self._lock:
            return commit_batch(self._registry, sequences, computed)

    def trim(self, sequence: Sequence, num_tokens: int) -> int:
        """Take back uncommitted tail tokens, all but the first of a sequence. Returns pages given back."""
        with self._lock:
            return trim_tail(self._registry, sequence, num_tokens)

    def fork(self, sequence: Sequence, ids: Iterable[Hashable]) -> tuple[list[Sequence], Plan] | None:
        """More sequences that share its full pages, one per id; None when there is no room for all of them."""
        with self._asked():
            return fork_sequence(self._registry, sequence, ids)

    def release(self, sequence: Sequence, *, store: bool = True) -> None:
        """Give up its pages; what it computed stays findable, unless store=False (a cancelled request)."""
        with self._lock:
            if self._watchers:
                own_row(self._setup, sequence)  # misuse is told before anything else
                for watcher in self._watchers:
                    watcher.ending(sequence, store)
            release_sequence(self._registry, sequence, store)

    def suspend(self, sequence: Sequence, tokens: Int32 | None = None) -> Request:
        """Preempt: release it and return the request that resumes it through `claim`, with its tokens so far.

        `tokens` are appended: those that were generated and that `grow` found no room for.
        """
        with self._lock:
            return suspend_sequence(self._registry, sequence, tokens)

    def hold(self, sequence: Sequence, span: Span) -> Hold | None:
        """Keep the pages of `span` beyond the sequence's release, until `drop`.

        None when an unfinished prompt's pages would have to stay that are to make room for its next ones.
        """
        with self._asked():
            return hold_pages(self._registry, sequence, span)

    def drop(self, held: Hold) -> None:
        """Give up a hold."""
        with self._lock:
            drop_hold(self._registry, held)

    # -- the tree and the tiers --------------------------------------------------------------------------------------

    def truncate(self, request: Request, keep: int = 0) -> int:
        """Forget what was stored along a request's tokens, from the first block that starts at `keep` or later."""
        with self._asked():
            return truncate_tree(self._registry, request, keep)

    def clear(self) -> int:
        """Forget everything stored; who uses pages keeps them to himself. Returns pages."""
        with self._asked():
            return clear_tree(self._registry)

    def forget(self, scope: Scope) -> int:
        """Forget everything of one tenant, adapter or epoch, in all tiers: every scope with all that this one names.

        Who uses pages keeps them to himself, and what goes on in such a scope is not stored. Returns pages.
        """
        with self._asked():
            return forget_scope(self._registry, scope)

    def lose(self, group: int, slots: Iterable[int], tier: int = 0) -> Finished:
        """The pages in these slots are bad: they leave the tree at once, whatever is open, in all tiers.

        Returns whose promises that has changed, as `finish` does. A bad shadow costs only itself.
        """
        self._check(group, tier)
        with self._asked():
            return lose_pages(self._registry, self._setup.now(), bad_pages(self._registry, group, slots, tier))

    def refresh(self) -> None:
        """Let retention durations that have passed run out, and prefetches. Admission does it too."""
        with self._asked():
            self._setup.refresh(self._setup.now())

    # -- questions ---------------------------------------------------------------------------------------------------

    def sequence(self, id: Hashable) -> Sequence:
        """The live sequence of an id."""
        check_id(id, "sequence")
        with self._lock:
            found = self._registry.sequences.get(id)
        if found is None:
            raise UnknownError(say(f"sequence {shown(id)}", "no live sequence has that id", "admit its request first"))
        return found

    @property
    def num_sequences(self) -> int:
        """Live sequences."""
        return len(self._registry.sequences)

    def tokens(self, sequence: Sequence) -> Int32:
        """Every token of a sequence so far (a copy)."""
        with self._lock:
            return tokens_of(self._setup, sequence)

    def table(self, group: int = 0) -> Int32:
        """The group's block table: device slot by [row, block], -1 for none. A live, read-only view."""
        self._check(group)
        store, place = self._setup.pools[group]
        return _read_only(store.slots[place])

    def state_table(self, group: int) -> Int32:
        """Device slot of the current state by row, -1 for none. A live, read-only view."""
        self._check(group)
        store, place = self._setup.pools[group]
        return _read_only(store.current_slots[place])

    def num_free(self, group: int = 0) -> int:
        """Device slots that can be had now: empty, or cached and neither held nor claimed."""
        self._check(group)
        store, place = self._setup.pools[group]
        with self._asked():
            return store.available(place)

    def slots_to_completion(self, sequence: Sequence) -> tuple[int, ...]:
        """Slots a live sequence may still take, per group."""
        with self._lock:
            own_row(self._setup, sequence)
            return slots_to_completion(self._setup, sequence)

    def usage(self, tier: int = 0, group: int = 0) -> Usage:
        """Where the slots of one tier and group are."""
        self._check(group, tier)
        with self._lock:
            return usage_of(self._registry, tier, group)

    def stats(self, group: int = 0) -> Counts:
        """Counts since construction."""
        self._check(group)
        with self._lock:
            store, place = self._setup.pools[group]
            return self._counts(group, store.counters[place])

    def take_stats(self, group: int = 0) -> Counts:
        """Counts since the last call: one step's worth when called once per step."""
        self._check(group)
        with self._lock:
            store, place = self._setup.pools[group]
            now = store.counters[place].copy()
            step, self._marks[group] = now - self._marks[group], now
            return self._counts(group, step)

    def _counts(self, group: int, numbers: NDArray[np.int64]) -> Counts:
        return counts(numbers, self.config.groups[group].page_bytes, len(self.config.tiers))

    def take_events(self, timeout: float | None = 0.0, *, whole: bool = False) -> EventBatch:
        """Events since the last call; empty unless the config turns them on. Waits up to `timeout` seconds for some.

        None waits for ever. With `whole` the state itself is told instead, as if everything had just been stored.
        """
        wait_for_events(self._setup, timeout, whole)
        with self._lock:
            return take_events(self._setup, whole)


def _read_only(table: Int32) -> Int32:
    view = table.view()
    view.flags.writeable = False
    return view
