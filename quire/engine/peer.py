"""Peer: prefill here, decode there. The engine's side of a transfer: what to send when a prompt is computed, what to do
when one has arrived, or has not.

    context-only      prefill(key, tokens)        computed as any run of one token; its pages and that token are sent
    generation-only   decode(key, tokens, source) waits for both; without them it is computed here after all

Owns no bytes and no sockets: the endpoint does. Lives in the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quire.core.errors import InputError, QuireError, StateError, say
from quire.core.finish import Finished
from quire.core.plan import Plan
from quire.core.request import Int32, Request
from quire.core.sequence import Sequence as Live
from quire.core.span import Span
from quire.engine.branch import Branch, Run
from quire.engine.engine import Engine
from quire.engine.sampling import Sampling
from quire.engine.schedule import Turn
from quire.tiers.base import Bytes
from quire.transfer import Aux, Endpoint, Key, Limits, Link, Outcome, QuireView, Receiving, Source, layout_of
from quire.transfer.verdict import check_key

LinkMaker = Callable[[list[Bytes]], Link]  # from the device's pages, uint8 [slots, page_bytes] per group


class Peer:
    """One engine among others. It is the engine's connector, so the engine can have no other one."""

    def __init__(self, engine: Engine, make_link: LinkMaker, *, model: str = "", limits: Limits | None = None) -> None:
        if engine.model.device.type != "cpu":
            fact = f"pages are on {engine.model.device}"
            raise InputError(say("transfer of pages", fact, "use an engine whose pages a link can address"))
        if engine.outside.connector is not None:
            raise StateError(say("a peer for this engine", "it has a connector already", "make another engine"))
        self.engine = engine
        self.link = make_link([arena.numpy() for arena in engine.pages.arenas])
        view = QuireView(engine.cache, self._carry_out)
        layout = layout_of(view.shape(), "engine", model=model, dtype=str(engine.model.dtype))
        self.endpoint = Endpoint(self.link, view, layout, limits=limits)
        self._limit = (limits or Limits()).transfer
        self._sending: dict[object, tuple[Key, Run]] = {}  # by sequence
        self._waiting: dict[Key, tuple[Run, Source, float]] = {}  # no room for them yet; how long they wait for it
        self._coming: dict[Key, Run] = {}
        self.num_fallbacks = 0  # prompts that did not come and were computed here
        engine.outside.connector = self
        engine.beside.append(self)

    # -- asking ------------------------------------------------------------------------------------------------------

    def prefill(self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, **wishes: Any) -> Run:
        """Compute a prompt and its first token for somebody else, who asks for them under `key`."""
        self._check(key)
        try:
            run = self.engine.submit(tokens, replace(_plain(sampling), max_tokens=1, drafts=0), **wishes)
        except QuireError as refused:
            self.endpoint.refuse(key, str(refused))
            raise
        self._sending[run.branches[0].id] = (key, run)
        return run

    def decode(
        self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, *, source: str, **wishes: Any
    ) -> Run:
        """An answer to a prompt that `source` computes under `key`."""
        self._check(key)
        there = Source((source,))
        run = self.engine.submit(tokens, _plain(sampling), away=True, **wishes)
        self._waiting[key] = (run, there, self.engine.clock() + self._limit)
        self.endpoint.expect(key, there)
        return run

    def _check(self, key: Key) -> None:
        check_key(key)
        sending = any(key == other for other, _ in self._sending.values())
        if sending or key in self._waiting or self.endpoint.knows(key):
            raise StateError(say(f"a transfer of {key}", "that key is in use, or over", "use another epoch"))

    @property
    def num_open(self) -> int:
        """Transfers under way, or waiting for room: the engine is not done."""
        books = self.endpoint.books
        return len(self._sending) + len(self._waiting) + len(books.dispatches) + len(books.arrivals)

    # -- the engine's side: a Connector, and a turn of its own in each step ------------------------------------------

    def matched(self, request: Request, start: int) -> int:
        """Prompts come whole or not at all."""
        return 0

    def allocated(self, sequence: Live, span: Span) -> int:
        """Nothing is brought into prompts that are computed here."""
        return 0

    def finished(self, sequence: Live, free: Callable[[], None]) -> bool:
        """Of a prompt that was computed for a peer the endpoint holds the pages; they may be released here."""
        key, run = self._sending.pop(sequence.id, (None, None))
        if key is None or run is None:
            return True
        if not run.answers[0].tokens:
            self.endpoint.refuse(key, run.error or "its prompt was not computed")
            return True
        try:
            self.endpoint.send(key, sequence.id)
            aux = Aux(first_tokens=(run.answers[0].tokens[0],), cached_tokens=run.reused)
            self.endpoint.put(key, sequence.prompt_end, last=True, aux=aux)
        except QuireError as wrong:  # too many sessions, or one that is stuck
            self.endpoint.cancel(key, str(wrong))
        return True

    def step(self) -> None:
        """Ask for prompts that there is room for now; hear what has come, and say what will not."""
        for id, (key, run) in list(self._sending.items()):
            if run.done:  # before it had pages
                del self._sending[id]
                self.endpoint.refuse(key, run.error or "its prompt was not computed")
        self._ask()
        for key, run in self._coming.items():
            if run.done:
                self.endpoint.cancel(key)
        for session in self.endpoint.step():
            if isinstance(session, Receiving):
                self._arrived(self._coming.pop(session.key), session)

    def _ask(self) -> None:
        """First come, first served; who has waited too long for room is computed like anybody else."""
        for key, (run, source, until) in list(self._waiting.items()):
            asked = None
            late = self.engine.clock() > until or bool(self.endpoint.stuck)
            try:
                if not run.done and not late:
                    asked = self.endpoint.receive(key, run.branches[0].request(), source)
                    if asked is None:
                        return
            except QuireError:
                late = True
            del self._waiting[key]
            if asked is not None:
                self._coming[key] = run
                continue
            self.endpoint.cancel(key)
            if not run.done:
                self._fall_back(run)

    def _arrived(self, run: Run, session: Receiving) -> None:
        """Decode it; if it has not come, compute it here, from where all layer groups can start."""
        assert session.verdict is not None
        delivered = session.verdict.outcome is Outcome.DELIVERED
        first = session.aux.first_tokens[:1] if session.aux is not None else ()
        if delivered and not run.done and first and 0 <= first[0] < self.engine.vocabulary:
            self.engine.adopt(run.branches[0], first[0])
            return
        if delivered:  # and of no use: its prompt stays findable
            self.engine.cache.release(self.engine.cache.sequence(run.request.id))
        if not run.done:
            self._fall_back(run)

    def _fall_back(self, run: Run) -> None:
        self.num_fallbacks += 1
        self.engine.scheduler.put(run.branches[0])

    def _carry_out(self, plan: Plan) -> Finished:
        """Pages move before a peer writes into their old slots; setbacks of running branches are dealt with."""
        engine = self.engine
        engine.set_back(engine.moves.settle(), Turn())
        finished = engine.moves.run(plan)
        own = [setback for setback in finished.setbacks if not _is_running(engine, setback.holder)]
        engine.set_back([setback for setback in finished.setbacks if setback not in own], Turn())
        return Finished(tuple(own), finished.plan)

    def close(self) -> bool:
        """Cancel what is under way and leave, when nobody touches pages any more; False: somebody may, for ever."""
        for key in [*self._waiting, *self._coming, *self.endpoint.books.dispatches]:
            self.endpoint.cancel(key, "the engine is closing")
        self._waiting.clear()
        while self.endpoint.books.dispatches or self.endpoint.books.arrivals:
            if self.endpoint.stuck:
                return False  # its pages are never given back: the process must end
            self.endpoint.step(0.01)
        return self.endpoint.close()


def _is_running(engine: Engine, holder: object) -> bool:
    branches: list[Branch] = [*engine.scheduler.ready, *engine.scheduler.prompts, *engine.scheduler.held]
    return any(branch.sequence is holder for branch in branches)


def _plain(sampling: Sampling) -> Sampling:
    if sampling.n > 1 or sampling.beams > 1:
        fact = f"n is {sampling.n}, beams are {sampling.beams}, and one first token is sent"
        raise InputError(say("an answer over a transfer", fact, "ask for one answer; others find its prompt cached"))
    return sampling
