"""RecordedCalls: stands before the calls of one cache that change it, and notes each: what was given, what came of it.

It shadows the methods on that one cache, so that a cache without it pays nothing. Questions pass by unseen, but for
what they make the cache tidy up: handles that were lost, prefetches whose time is over. Owns the order of the notes:
they are made under the cache's lock. Knows no ring and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from quire.core.admission.batch import Batch
from quire.core.cache import NO_SEQUENCES, Cache
from quire.core.colder_tiers import registry_of
from quire.core.outside.find import Found
from quire.core.outside.prefetch import Prefetch
from quire.core.outside.writer import Writer
from quire.core.records.errors import BrokenInvariant, QuireError
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.core.sequences.setbacks import Finished
from quire.core.state.claims import Claims, promises_in
from quire.core.state.hold import Hold
from quire.core.state.prepared import Prepared, Purpose, ready_of
from quire.core.state.sequence import Sequence
from quire.incidents.record.entry import AskedRequest, Entry, ints, lack_of, moved, named_rows, relisted
from quire.incidents.record.read_clock import ReadClock
from quire.incidents.record.recorded_handles import handle_classes
from quire.incidents.record.recorded_outside import OutsideCalls, finished
from quire.incidents.record.recorded_sequences import SequenceCalls

CALLS = (
    "claim", "admit", "add_sequence_batch", "finish", "find", "writer", "grow", "launch", "commit", "fail", "trim",
    "fork", "release", "suspend", "hold", "drop", "truncate", "hint", "clear", "forget", "lose", "refresh", "offload",
    "copy_down", "prefetch", "lasting_changes", "restore", "_asked",
)  # fmt: skip
_entry = tuple.__new__  # of a named tuple, by its values
Handled = Claims | Found | Writer | Prefetch


class RecordedCalls(SequenceCalls, OutsideCalls):
    """The calls of one cache. `note` hears of each that has changed something; `broke` of each that should not fail."""

    def __init__(
        self, cache: Cache, clock: ReadClock, note: Callable[[Entry], object],
        broke: Callable[[str, BaseException], object],
    ) -> None:  # fmt: skip
        self._clock, self._note, self._broke = clock, note, broke
        self._registry = registry_of(cache)
        self._registry.on_broken = broke
        self._lock = self._registry.setup.lock
        self._inside = False  # a call that another one makes is a part of that one
        self._requests: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._next_request = self._next_handle = 0
        self._handles: WeakKeyDictionary[Handled, int] = WeakKeyDictionary()
        self._holds: dict[Hold, int] = {}
        self._classes = handle_classes(self)
        self._real: dict[str, Any] = {name: getattr(cache, name) for name in CALLS}
        self._grow, self._launch, self._commit = cache.grow, cache.launch, cache.commit
        for name in CALLS:
            setattr(cache, name, getattr(self, name))

    # -- what all have in common -------------------------------------------------------------------------------------

    def call(
        self, verb: str, given: Callable[[], tuple[Any, ...]], real: Callable[[], Any], facts: Callable[[Any], Any]
    ) -> Any:
        """Make a call and note it. What raises has changed nothing, and is noted if it should not have raised."""
        with self._lock:
            if self._inside:
                return real()
            read = self._clock.read
            read.clear()
            self._inside, first = True, self._next_request
            try:
                wanted = _tried(given)
                answer = real()
            except BaseException as error:
                self._forget_requests(first)
                self._raised(verb, error)
                raise
            finally:
                self._inside = False
            self._tell(verb, wanted, lambda: facts(answer))
            return answer

    def _raised(self, verb: str, error: BaseException) -> None:
        """A call has changed nothing; it is noted if it should not have raised."""
        if not isinstance(error, QuireError) or isinstance(error, BrokenInvariant):
            self._broke(verb, error)

    def _keep(self, verb: str, given: tuple[Any, ...], answer: Any) -> None:
        """The note of a call of every step."""
        self._note(_entry(Entry, (verb, self._clock.time(), tuple(self._clock.read), given, answer)))

    def _tell(self, verb: str, given: tuple[Any, ...] | Exception, facts: Callable[[], Any]) -> None:
        """Note a call that was made. Whatever is wrong with its note, the caller has what he asked for."""
        try:
            if isinstance(given, Exception):
                raise given
            self._note(Entry(verb, self._clock.time(), tuple(self._clock.read), given, facts()))
        except Exception as error:
            self._broke(f"the note of {verb}", error)

    def asked(self, request: Request | Prepared) -> AskedRequest:
        """A request by its number; the first time all of it."""
        plain = request.request if isinstance(request, Prepared) else request
        number, fresh = self._requests.get(plain), None
        if number is None:
            number = self._requests[plain] = self._next_request
            self._next_request += 1
            fresh = replace(plain, tokens=plain.tokens.copy())
        if not isinstance(request, Prepared):
            return AskedRequest(number, False, 0, fresh)
        marks = ready_of(request).marks
        return AskedRequest(number, True, 0 if marks is None else marks.junction, fresh)

    def _forget_requests(self, first: int) -> None:
        """A call that was refused is not noted: what it named first is still to be recorded."""
        if self._next_request > first:
            for request in [request for request, number in self._requests.items() if number >= first]:
                del self._requests[request]
            self._next_request = first

    def number(self, handle: Handled) -> int:
        """Of a handle that a call has returned."""
        return self._handles[handle]

    def hold_number(self, held: Hold) -> int:
        """Of a hold."""
        return self._holds[held]

    def take(self, handle: Any) -> int:
        """A handle that is returned now: its calls are noted too."""
        handle.__class__ = self._classes[type(handle)]
        number = self._handles[handle] = self._next_handle
        self._next_handle += 1
        return number

    def _asked(self) -> AbstractContextManager[bool]:
        """What was lost is given back before a call: which handles, could not be known later."""
        registry = self._registry
        lost = registry.abandoned or registry.lost_plans or registry.lost_finds or registry.lost_writers
        if not lost and not registry.open_prefetches:
            return self._lock
        with self._lock:
            kinds: dict[str, dict[Any, Any]] = {
                "claims": registry.open_claims, "finds": registry.open_finds, "writers": registry.open_writers,
                "prefetches": registry.open_prefetches,
            }  # fmt: skip
            before: dict[str, list[Any]] = {kind: list(some) for kind, some in kinds.items()}
            if not self._inside:
                self._clock.read.clear()
            made = list(self._clock.read)
            self._real["_asked"]()
            gone = [
                (kind, index) for kind, some in before.items() for index, ref in enumerate(some)
                if ref not in kinds[kind] and ref() is None
            ]  # fmt: skip
            read = () if self._inside else tuple(self._clock.read[len(made) :])
            if gone or read:
                self._note(Entry("tidy", self._clock.time(), read, (tuple(gone), not self._inside), None))
        return self._lock

    # -- admission ---------------------------------------------------------------------------------------------------

    def claim(self, requests: Iterable[Request | Prepared], purpose: Purpose = "compute") -> Claims:
        """See Cache."""
        many = relisted(requests)
        real = self._real["claim"]

        def facts(claims: Claims) -> Any:
            promises = [(promise.hit.start, promise.num_tokens) for promise in promises_in(claims)]
            return self.take(claims), promises, list(map(lack_of, claims.refused))

        claims: Claims = self.call(
            "claim", lambda: ([*map(self.asked, many)], purpose), lambda: real(many, purpose), facts
        )
        return claims

    def admit(
        self, claims: Claims, *, token_budget: int | None = None, max_chunk: int | None = None,
        all_or_nothing: bool = False, continuing: Iterable[Sequence] = NO_SEQUENCES,
    ) -> Batch:  # fmt: skip
        """See Cache."""
        going = continuing if continuing is NO_SEQUENCES else relisted(continuing)
        step: dict[str, Any] = {"token_budget": token_budget, "max_chunk": max_chunk, "all_or_nothing": all_or_nothing}
        real = self._real["admit"]

        def given() -> tuple[Any, ...]:
            marks = [promise.prepared.marks for promise in promises_in(claims)]
            junctions = [0 if one is None else one.junction for one in marks]
            return self.number(claims), *step.values(), named_rows(going), junctions

        batch: Batch = self.call("admit", given, lambda: real(claims, continuing=going, **step), self._batch)
        return batch

    def add_sequence_batch(
        self, requests: Iterable[Request | Prepared], *, token_budget: int | None = None, max_chunk: int | None = None,
        all_or_nothing: bool = False, continuing: Iterable[Sequence] = NO_SEQUENCES,
    ) -> Batch:  # fmt: skip
        """See Cache."""
        many, going = relisted(requests), continuing if continuing is NO_SEQUENCES else relisted(continuing)
        step: dict[str, Any] = {"token_budget": token_budget, "max_chunk": max_chunk, "all_or_nothing": all_or_nothing}
        real = self._real["add_sequence_batch"]
        batch: Batch = self.call(
            "add", lambda: ([*map(self.asked, many)], *step.values(), named_rows(going)),
            lambda: real(many, continuing=going, **step), self._batch,
        )  # fmt: skip
        return batch

    def _batch(self, batch: Batch) -> Any:
        """What an admission decided."""
        sequences = [(self._requests[one.request], one.row, one.start, one.prompt_end) for one in batch.sequences]
        spans = [(sequence.row, span.start, span.end) for sequence, span in batch.spans.items()]
        waiting = [sequence.row for sequence in batch.waiting]
        return sequences, spans, waiting, list(map(lack_of, batch.refused)), moved(batch.plan)

    def finish(self, plan: Plan, failed: Iterable[int] = (), undone: Iterable[int] = ()) -> Finished:
        """See Cache."""
        failed, undone, real = relisted(failed), relisted(undone), self._real["finish"]
        done: Finished = self.call(
            "finish", lambda: (plan.number, ints(failed), ints(undone)), lambda: real(plan, failed, undone), finished
        )
        return done


def _tried(given: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...] | Exception:
    """What a call is given, before it changes that; the call itself will say what is wrong with it."""
    try:
        return given()
    except Exception as error:
        return error
