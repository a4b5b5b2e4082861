"""Peer: prefill here, decode there. The engine's side of a transfer: what to send when a prompt is computed, what to do
when one has arrived, or has not.

    context-only      prefill(key, tokens)        computed as any run of one token; its pages and that token are sent
    generation-only   decode(key, tokens, source) waits for both; without them it is computed here after all

Owns no bytes and no sockets: the endpoint does, and moves them on a thread of its own while the engine computes.
Everything here runs in the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from quire.core.errors import QuireError, StateError, say
from quire.core.finish import Finished
from quire.core.identity import Scope
from quire.core.plan import Plan
from quire.core.request import PLAIN, Int32, Request
from quire.core.sequence import Sequence as Live
from quire.core.span import Span
from quire.engine import orders
from quire.engine.branch import Branch, Run
from quire.engine.engine import Engine
from quire.engine.sampling import Sampling
from quire.engine.schedule import Turn
from quire.engine.staging import reachable
from quire.tiers.base import Bytes
from quire.transfer import (
    Aux,
    Endpoint,
    Key,
    Limits,
    Link,
    Outcome,
    Pump,
    QuireView,
    Receiving,
    Session,
    Source,
    layout_of,
    with_logits,
)  # fmt: skip
from quire.transfer.verdict import check_key

LinkMaker = Callable[[list[Bytes]], Link]  # from pages it can address, uint8 [slots, page_bytes] per group


class Peer:
    """One engine among others. It is the engine's connector, so the engine can have no other one.

    With `serve` peers may order prompts. Pages on a GPU go through host memory for `staged` prompts at a time.
    """

    def __init__(
        self, engine: Engine, make_link: LinkMaker, *, model: str = "", limits: Limits | None = None,
        serve: bool = False, staged: int = 4, tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        if engine.outside.connector is not None:
            raise StateError(say("a peer for this engine", "it has a connector already", "make another engine"))
        self.engine = engine
        view, pages = reachable(QuireView(engine.cache, self._carry_out), engine, staged)
        self.link = make_link(pages)
        facts = layout_of(view.shape(), "engine", model=model, dtype=str(engine.model.dtype))
        self.endpoint = Endpoint(self.link, view, facts, limits=limits, alone=False, orders=serve)
        self.pump = Pump(self.endpoint)
        self._limit = (limits or Limits()).transfer
        self._sending: dict[object, tuple[Key, Run]] = {}  # by sequence
        self._waiting: dict[Key, tuple[Run, Source, float]] = {}  # not asked for yet; until when they wait for that
        self._coming: dict[Key, Run] = {}
        self._tell = tell  # a line per prompt that was sent, or was not
        self.num_fallbacks = 0  # prompts that did not come and were computed here
        engine.outside.connector = self
        engine.beside.append(self)

    # -- asking ------------------------------------------------------------------------------------------------------

    def prefill(
        self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, *, logits: bool = False, **wishes: Any
    ) -> Run:
        """Compute a prompt and its first token for somebody else, who asks for them under `key`.

        With `logits`, and for several answers and beams anyway, those go with it, and the other side chooses.
        """
        self._check(key)
        one = replace(sampling, max_tokens=1, drafts=0, n=1, beams=1)
        try:
            run = self.engine.submit(tokens, one, **wishes)
        except QuireError as refused:
            self._refuse(key, str(refused))
            raise
        run.keeps_logits = logits or orders.needs_logits(sampling)
        self._sending[run.branches[0].id] = (key, run)
        return run

    def decode(
        self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, *, source: str, order: bool = False,
        scope: Scope = PLAIN, **wishes: Any,
    ) -> Run:  # fmt: skip
        """An answer to a prompt that `source` computes under `key`. With `order` this engine tells it to."""
        self._check(key)
        there = Source((source,))
        run = self.engine.submit(tokens, sampling, away=True, scope=scope, **wishes)
        self._waiting[key] = (run, there, self.engine.clock() + self._limit)
        with self.pump as endpoint:
            if order:
                endpoint.order(key, source, orders.pack(run.prompt, sampling, run.seed, scope))
            endpoint.expect(key, there)
        return run

    def _check(self, key: Key) -> None:
        check_key(key)
        sending = any(key == other for other, _ in self._sending.values())
        with self.pump as endpoint:
            if sending or key in self._waiting or endpoint.knows(key):
                raise StateError(say(f"a transfer of {key}", "that key is in use, or over", "use another epoch"))

    def _refuse(self, key: Key, reason: str) -> None:
        with self.pump as endpoint:
            endpoint.refuse(key, reason)

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
            self._refuse(key, run.error or "its prompt was not computed")
            return True
        aux = Aux(first_tokens=(run.answers[0].tokens[0],), cached_tokens=run.reused)
        if run.logits is not None:
            aux = with_logits(aux, run.logits.numpy()[None])
        with self.pump as endpoint:
            try:
                endpoint.send(key, sequence.id)
                if not endpoint.put(key, sequence.prompt_end, last=True, aux=aux):
                    endpoint.refuse(key, "its pages could not be held")
            except QuireError as wrong:  # too many sessions, one that is stuck, or more than staging has room for
                endpoint.refuse(key, str(wrong))
        return True

    def step(self) -> None:
        """Compute what was ordered, ask for prompts that there is room for now, take what has come."""
        for id, (key, run) in list(self._sending.items()):
            if run.done:  # before it had pages
                del self._sending[id]
                self._refuse(key, run.error or "its prompt was not computed")
        for key, body in self.endpoint.take_orders():
            self._compute(key, body)
        for key in self.endpoint.take_withdrawn():
            for run in [run for other, run in self._sending.values() if other == key]:
                self.engine.cancel(run)
        self._ask()
        for key in [key for key, run in self._coming.items() if run.done]:
            with self.pump as endpoint:
                endpoint.cancel(key)
        for session in self.pump.ended():
            self._over(session)

    def _compute(self, key: Key, body: bytes) -> None:
        """What a peer has ordered; it learns why when it is not computed."""
        try:
            order = orders.unpack(body)
        except QuireError as wrong:
            self._refuse(key, str(wrong))
            return
        with suppress(QuireError):  # told already; or a key in use, whose session goes on
            self.prefill(key, order.tokens, order.sampling, logits=order.logits, scope=order.scope)

    def _ask(self) -> None:
        """First come, first served; who has waited too long for room is computed like anybody else."""
        for key, (run, source, until) in list(self._waiting.items()):
            asked, why = None, ""
            with self.pump as endpoint:
                if self.engine.clock() > until:
                    why = f"no room, or no hello, for {self._limit:g} s"
                elif not run.done:
                    try:
                        asked = endpoint.receive(key, run.branches[0].request(), source)
                    except QuireError as wrong:
                        why = str(wrong)
                    if asked is None and not why and endpoint.met(source):
                        return  # there is no room; what has a source that is not met yet holds nobody up
                    if asked is None and not why:
                        continue
                del self._waiting[key]
                if asked is not None:
                    self._coming[key] = run
                else:
                    endpoint.cancel(key)
            if why and not run.done:
                self._fall_back(run, why)

    def _over(self, session: Session) -> None:
        """Give its pages back, or decode what has come; if it has not, compute it, from where all groups can start."""
        with self.pump as endpoint:
            endpoint.conclude(session)
        if not isinstance(session, Receiving):
            sent = sum(reader.num_bytes for reader in session.readers.values())
            self._tell(f"{session.key}: {session.length:,} tokens, {sent:,} bytes sent; {_in_words(session)}")
            return
        run = self._coming.pop(session.key)
        assert session.verdict is not None
        delivered, run.received = session.verdict.outcome is Outcome.DELIVERED, session.num_bytes
        first = self._first(run, session.aux)
        if delivered and not run.done and first is not None:
            self.engine.adopt(run.branches[0], first)
            return
        if delivered:  # and of no use: its prompt stays findable
            self.engine.cache.release(self.engine.cache.sequence(run.request.id))
        if not run.done:
            self._fall_back(run, session.verdict.reason or "what came with its pages is no first token, or no logits")

    def _first(self, run: Run, aux: Aux | None) -> int | torch.Tensor | None:
        """What the answers begin with, checked: one token or, for several answers and beams, logits."""
        known = self.engine.vocabulary
        if aux is None:
            return None
        if orders.needs_logits(run.sampling):
            fits = aux.vocabulary == known and len(aux.logits) == 4 * known
            return torch.from_numpy(aux.logits_array().copy()).to(self.engine.model.device) if fits else None
        return next((token for token in aux.first_tokens[:1] if 0 <= token < known), None)

    def _fall_back(self, run: Run, why: str) -> None:
        self.num_fallbacks += 1
        run.fallback = why
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
        for session in self.pump.close():
            self.endpoint.conclude(session)
        self.endpoint.alone = True  # what follows is nobody's to decide any more
        for key in [*self._waiting, *self._coming, *self.endpoint.books.dispatches]:
            self.endpoint.cancel(key, "the engine is closing")
        self._waiting.clear()
        while self.endpoint.books.dispatches or self.endpoint.books.arrivals:
            if self.endpoint.stuck:
                return False  # its pages are never given back: the process must end
            self.endpoint.step(0.01)
        return self.endpoint.close()


def _in_words(session: Session) -> str:
    verdict = session.verdict
    assert verdict is not None
    return f"{verdict.outcome}, {verdict.reason}" if verdict.reason else str(verdict.outcome)


def _is_running(engine: Engine, holder: object) -> bool:
    branches: list[Branch] = [*engine.scheduler.ready, *engine.scheduler.prompts, *engine.scheduler.held]
    return any(branch.sequence is holder for branch in branches)
