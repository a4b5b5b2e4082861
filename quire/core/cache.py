"""Cache: the only way into the core, with the only lock. Its verbs are here; how each works is in the file it calls.

Those of the tiers below the device are in colder_tiers.py, and what it can be asked about itself is in questions.py.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from quire.core.admission.admit import add_batch, admit_batch, promises_to_admit
from quire.core.admission.batch import Batch
from quire.core.admission.budgets import Step
from quire.core.admission.claim import claim_batch, give_back, open_claims
from quire.core.admission.prepare import ready_for
from quire.core.admission.probe import Probe, explain_request, probe_batch
from quire.core.colder_tiers import ColderTiers
from quire.core.outside.find import Found, find_pages, give_back_finds
from quire.core.outside.hint_stored import hint_pages
from quire.core.outside.hold import drop_hold, hold_pages
from quire.core.outside.lose import bad_pages
from quire.core.outside.prefetch import expire, give_back_prefetches
from quire.core.outside.removal import clear_tree, forget_scope, truncate_tree
from quire.core.outside.writer import NO_SKIP, Skip, Writer, give_back_writers, open_writer
from quire.core.questions import Questions
from quire.core.records.config import CacheConfig, check_place, hopeless
from quire.core.records.errors import ConfigWarning, InputError, listed, say
from quire.core.records.hint_words import Back, hint_number
from quire.core.records.identity import Scope
from quire.core.records.plan import Plan
from quire.core.records.reports.receipt import Receipt
from quire.core.records.reports.stats import NUM_COUNTERS
from quire.core.records.request import PLAIN, Int32, Request
from quire.core.records.span import Span
from quire.core.sequences.commit import commit_batch
from quire.core.sequences.finish import finish_plan, warn_of_lost_plans
from quire.core.sequences.fork import fork_sequence
from quire.core.sequences.grow import grow_batch
from quire.core.sequences.launch import commit_step, fail_step, launch_step
from quire.core.sequences.release import ending_of, release_sequence
from quire.core.sequences.rows import Sequences
from quire.core.sequences.setbacks import Finished, Setback, lose_pages
from quire.core.sequences.suspend import suspend_sequence
from quire.core.sequences.trim import trim_batch
from quire.core.state.claim import Refusal
from quire.core.state.claims import Claims, settle
from quire.core.state.handle import handles_of
from quire.core.state.hold import Hold
from quire.core.state.prepared import Prepared, Purpose
from quire.core.state.registry import LaunchedStep, PageWatcher, Registry
from quire.core.state.sequence import Sequence, note_back, own_row
from quire.core.state.setup import open_setup
from quire.core.store import StoreName
from quire.core.watcher import CallWatcher, Recorder, SequenceWatcher, sorted_watchers

NO_SEQUENCES: tuple[Sequence, ...] = ()
NO_WATCHERS: tuple[SequenceWatcher, ...] = ()


class Cache(ColderTiers, Questions):
    """The KV cache of one engine. Decides; moves no bytes: run the plans it returns, then `finish` them.

    `record` names a file for a trace of what it serves, without tokens; `recorder.close()` ends it (docs/trace.md).
    `watchers` hear of its sequences, or, as `quire.incidents.Incidents`, of its calls (docs/incidents.md), or, as
    `quire.insight.bills.Bills`, of its pages (docs/bills.md).
    """

    def __init__(
        self, config: CacheConfig, *, clock: Callable[[], float] = time.monotonic, store: StoreName = "auto",
        record: str | Path | None = None, watchers: Iterable[SequenceWatcher | CallWatcher | PageWatcher] = NO_WATCHERS,
    ) -> None:  # fmt: skip
        if not isinstance(config, CacheConfig):
            raise InputError(say("the config of a cache", f"it is a {type(config).__name__}", "pass a CacheConfig"))
        for reason in hopeless(config):
            warnings.warn(reason, ConfigWarning, stacklevel=2)
        self.config = config
        self._watchers, of_calls, of_pages = sorted_watchers(watchers)
        if of_calls is not None and callable(clock):
            clock = of_calls.timed(clock)
        self._setup = open_setup(config, clock, store, None if of_pages is None else of_pages.call_over)
        self._registry = Registry(self._setup, of_pages)
        if of_pages is not None:
            of_pages.attach_pages(self._setup)
        self._lock = self._setup.lock
        self._marks = [np.zeros(NUM_COUNTERS, np.int64) for _ in config.groups]
        self.recorder: Recorder | None = None  # of a trace of what is served; close it to have the file
        if record is not None:
            from quire.trace.record.sequence_recorder import record_sequences  # nothing else in core knows of traces

            self.recorder, watcher = record_sequences(record, config.block_size, self._setup.seconds)
            self._watchers = (*self._watchers, watcher)
        if of_calls is not None:
            of_calls.attach(self)

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
            return probe_batch(self._registry, requests, purpose)

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
        all_or_nothing: bool = False, continuing: Iterable[Sequence] = NO_SEQUENCES,
    ) -> Batch:  # fmt: skip
        """Phase 2: slots, onboarding and copies for the longest prefix of the claims that fits the budgets.

        `continuing`: admitted sequences whose prompt is not computed yet, and no others; one that decodes only grows.
        """
        if not isinstance(claims, Claims):
            raise InputError(say(f"admit of a {type(claims).__name__}", "it is not Claims", "pass what claim returned"))
        step = Step(token_budget, max_chunk, all_or_nothing, self.config)
        with self._asked():
            own = self._own(continuing) if continuing is not NO_SEQUENCES else NO_SEQUENCES
            promises = promises_to_admit(self._registry, claims)
            batch = admit_batch(self._registry, promises, claims.refused, step, own)
            settle(claims)
            return self._noted(batch) if self._watchers else batch

    def add_sequence_batch(
        self, requests: Iterable[Request | Prepared], *, token_budget: int | None = None, max_chunk: int | None = None,
        all_or_nothing: bool = False, continuing: Iterable[Sequence] = NO_SEQUENCES,
    ) -> Batch:  # fmt: skip
        """Claim and admit in one call."""
        step = Step(token_budget, max_chunk, all_or_nothing, self.config)
        with self._asked():
            own = self._own(continuing) if continuing is not NO_SEQUENCES else NO_SEQUENCES
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
        """Report every sequence that begins and ends to a watcher from now on; with on=False no more."""
        with self._lock:
            others = tuple(one for one in self._watchers if one is not watcher)
            self._watchers = (*others, watcher) if on else others

    def finish(self, plan: Plan, failed: Iterable[int] = (), undone: Iterable[int] = ()) -> Finished:
        """Report a plan as run; `failed`: the moves that failed. Returns setbacks, and moves that replace pages, which
        behind a background plan go with the next one of a step.

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

        For callers that read pages themselves: an engine with the first tokens on its own device, a transfer, a disk.
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
        """Slots in a tier for whole blocks of a request, before `end` (None: all), whose bytes come from outside.

        None for what is here, is before `from_` or in `skip`, by group. Findable when `written`; refused: no change.
        """
        check_place(self.config, 0, tier)
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

    def grow(self, sequences: Sequences, tokens: Int32 | None = None, *, num_tokens: int | Int32 = 1) -> Plan | None:
        """Hand out the next tokens of sequences with a slot for each, for a whole batch or not at all.

        Without tokens: those that are known and were not handed out, then places of tokens that steps still make; a
        `commit` brings these. `num_tokens`: how many each gets, as an array where they differ (drafts); `tokens` are
        then those of all, one after the other. `take_table_changes` returns which rows got which slots.
        """
        with self._asked():
            return grow_batch(self._registry, sequences, tokens, num_tokens)

    def launch(self, sequences: Sequences | None = None) -> LaunchedStep:
        """What was handed out to these sequences (None: to any) is on its way to the device, as one step.

        The next step may be handed out now; `commit` or `fail` closes this one (docs/overlap.md). Until then its rows
        keep their slots, released or not. An engine that commits each step before the next needs no launch.
        """
        with self._lock:
            return launch_step(self._registry, sequences)

    def commit(
        self, sequences: Sequences | LaunchedStep, computed: int | Int32 | None = None, *, tokens: Int32 | None = None
    ) -> int:
        """KV exists up to `computed`: make full pages findable; returns new ones.

        By default what was handed out has run: of an unfinished prompt its last span, else every known token; the
        same for sequences and for rows. What a transfer brings was not handed out: give its number. A commit
        below what was handed out is one while a step is under way: a state may have gone on, and is not kept.

        `tokens`: what the step has made, int32 [sequences] or [sequences, n], negative where there is none. Of a
        launched step, the oldest, it is in the order of its `rows`.
        """
        with self._lock:
            if isinstance(sequences, LaunchedStep):
                return commit_step(self._registry, sequences, computed, tokens)
            return commit_batch(self._registry, sequences, computed, tokens)

    def fail(self, step: LaunchedStep) -> tuple[Setback, ...]:
        """A launched step has raised, and neither it nor a later one runs any more: what they were to compute is not
        handed out. Known tokens stay known. Returns the sequences and open claims that go back, with those that share
        what it was to compute. With recurrent groups a sequence is lost, as is a sharer with windows or without room.
        """
        with self._lock:
            return fail_step(self._registry, step)

    def open_steps(self) -> list[LaunchedStep]:
        """Launched steps that were neither committed nor have failed, in order."""
        with self._lock:
            return list(self._registry.in_flight.steps)

    def trim(self, sequences: Sequences, num_tokens: int | Int32) -> int:
        """Take back uncommitted tail tokens, all but the first of a sequence: of each as many, or an array's numbers.

        All are checked before the first one changes. Returns pages given back.
        """
        with self._lock:
            return trim_batch(self._registry, sequences, num_tokens)

    def fork(self, sequence: Sequence, ids: Iterable[Hashable]) -> tuple[list[Sequence], Plan] | None:
        """More sequences that share its full pages, one per id; None when there is no room for all of them."""
        with self._asked():
            return fork_sequence(self._registry, sequence, ids)

    def release(
        self, sequences: Sequence | Iterable[Sequence], *, store: bool = True, back: Back | None = None
    ) -> None:
        """Give up the pages of one sequence or several. What was committed stays findable; `store=False` leaves out
        the tail behind the last full block (`truncate` removes stored text). At any point between calls, so also to
        cancel a request.

        `back`: when their text is asked for again: "soon" (a tool runs), "later" (a person thinks), "never" (it is
        over); None: who knows. All are checked before the first one ends.
        """
        with self._lock:
            if type(sequences) is Sequence and back is None and not self._watchers:  # the usual case
                release_sequence(self._registry, sequences, store)
                return
            number = hint_number(back, "release")
            for sequence in ending_of(self._registry, sequences):
                note_back(sequence, back)
                for watcher in self._watchers:
                    watcher.ending(sequence, store)
                release_sequence(self._registry, sequence, store, number)

    def suspend(self, sequence: Sequence, tokens: Int32 | None = None) -> Request:
        """Preempt: release it and return the request that resumes it through `claim`, with its tokens so far.

        `tokens` are appended: those that were generated and that `grow` found no room for.
        """
        with self._lock:
            return suspend_sequence(self._registry, sequence, tokens)

    def hold(self, sequence: Sequence, span: Span) -> Hold | None:
        """Keep the pages of `span` beyond the sequence's release, until `drop`.

        None when an unfinished prompt's pages would have to stay that are to make room for its next ones (in a pool
        with a window): hold fewer tokens, or once the prompt is computed.
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

    def hint(self, tokens: Int32, back: Back | None, scope: Scope = PLAIN, keep: int = 0) -> int:
        """Say of stored text when it is asked for again, behind its first `keep` tokens; `truncate` would remove it.

        "never" has it evicted before other pages of its priority, "soon" and "later" as such text turned out to be
        worth, None like text without a hint. Returns pages that are stored there.
        """
        number = hint_number(back, "hint")
        with self._lock:
            return hint_pages(self._registry, tokens, scope, keep, number)

    def clear(self, *, store_again: bool = False) -> int:
        """Forget everything stored; sequences that use pages keep them, private. Returns pages.

        What live sequences compute is not stored any more: new weights make other KV of it. With `store_again` they
        are as before, and store all of it at their next commit: what they have stays good. Then no claim may be open.
        """
        with self._asked():
            return clear_tree(self._registry, store_again)

    def forget(self, scope: Scope) -> int:
        """Forget everything of one tenant, adapter or epoch, in all tiers: every scope with all that this one names.

        Sequences that use pages keep them, private; what they compute in such a scope is not stored. Returns pages.
        """
        with self._asked():
            return forget_scope(self._registry, scope)

    def lose(self, group: int, slots: Iterable[int], tier: int = 0) -> Finished:
        """The pages in these slots are bad: they leave the tree at once, whatever is open, in all tiers.

        Returns the setbacks, as `finish` does: of the slow tier as behind a background plan. A bad shadow costs only
        itself.
        """
        check_place(self.config, group, tier)
        with self._asked():
            now, late = self._setup.now(), self.config.tiers[tier].slow
            return lose_pages(self._registry, now, bad_pages(self._registry, group, slots, tier), late)

    def refresh(self) -> None:
        """Expire retention durations and prefetches whose time is over. Admission does so too."""
        with self._asked():
            self._setup.refresh(self._setup.now())
