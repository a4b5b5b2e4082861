"""Peer: prefill here, decode there. The engine's side of a transfer: what to send when a prompt is computed, what to do
when one has arrived, or has not.

    context-only      prefill(key, tokens)        computed as any run of one token; its pages and that token are sent
    generation-only   decode(key, tokens, source) waits for both; without them it is computed here after all

Owns no bytes and no sockets: the endpoint does, and moves them on a thread of its own while the engine computes.
Everything here runs in the engine's thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch

from quire.core.records.errors import InputError, QuireError, StateError, say
from quire.core.records.identity import Scope
from quire.core.records.plan import Plan
from quire.core.records.request import PLAIN, Int32, Request
from quire.core.records.span import Span
from quire.core.sequences.setbacks import Finished
from quire.core.state.sequence import Sequence as Live
from quire.engine.disagg import prefill_orders as orders
from quire.engine.disagg.prefills import Prefills
from quire.engine.disagg.staging import addressable
from quire.engine.loop.admission_gate import AdmissionGate
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.setup.submission import AWAY, checked_prompt
from quire.engine.step.runs.branch import Run
from quire.engine.step.runs.page_hints import checked_hints, hints_among
from quire.engine.step.runs.step_work import Turn
from quire.tiers.base import Bytes
from quire.transfer import (
    Aux,
    Endpoint,
    EndpointThread,
    Key,
    Limits,
    Link,
    Outcome,
    QuireView,
    Receiving,
    Session,
    Source,
    StagedView,
    layout_of,
)
from quire.transfer.wire.verdict import check_key

_log = logging.getLogger("quire.engine")


class AddressedLink(Link, Protocol):
    """A link that others can dial."""

    @property
    def address(self) -> str:
        """Where they find it."""
        ...


LinkMaker = Callable[[list[Bytes]], AddressedLink]  # from pages it can address, uint8 [slots, page_bytes] per group


class _Unasked(NamedTuple):
    """A prompt that a peer shall send, and that has not been asked for yet."""

    run: Run
    source: Source
    until: float  # on the engine's clock; then it is computed here


class _Coming(NamedTuple):
    """A prompt that has been asked for."""

    run: Run
    known: int  # tokens of it that were here before


class Peer:
    """One engine among others. It is the engine's connector, so the engine can have no other one.

    With `serve` peers may order prompts. Pages on a GPU go through host memory for `staged` prompts at a time.
    """

    def __init__(
        self, engine: Engine, make_link: LinkMaker, *, model: str = "", limits: Limits | None = None,
        serve: bool = False, staged: int = 4, tell: Callable[[str], None] = lambda _: None,
        gate: AdmissionGate | None = None,
    ) -> None:  # fmt: skip
        if engine.closed:
            raise StateError(say("a peer for this engine", "it is closed", "make a new one"))
        if engine.connector_side.connector is not None:
            raise StateError(say("a peer for this engine", "it has a connector already", "make another engine"))
        self.engine = engine
        view, pages = addressable(QuireView(engine.cache, self._carry_out), engine, staged)
        self.link = make_link(pages)
        facts = layout_of(view.shape(), "engine", model=model, dtype=str(engine.model.dtype))
        self.endpoint = Endpoint(self.link, view, facts, limits=limits, alone=False, orders=serve)
        self.pump = EndpointThread(self.endpoint)
        self._limit = (limits or Limits()).transfer
        eager = not isinstance(view, StagedView)
        self.prefills = Prefills(engine, self.pump, self._check, gate, tell, eager=eager)
        self._unasked: dict[Key, _Unasked] = {}
        self._coming: dict[Key, _Coming] = {}
        self._closed = self._left = False
        self.num_fallbacks = 0  # prompts that did not come and were computed here
        engine.connector_side.connector = self
        engine.participants.append(self)

    def __repr__(self) -> str:
        waiting = len(self._unasked) + len(self._coming)
        prompts = len(self.prefills.running) + len(self.prefills.unsent)
        return f"Peer({self.link!r}, waits for {waiting} prompts, computes {prompts}, {self.num_fallbacks} fell back)"

    # -- asking ------------------------------------------------------------------------------------------------------

    def prefill(self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, **options: Any) -> Run:
        """Compute a prompt and its first token for a peer, which asks for them under `key`."""
        return self.prefills.start(key, tokens, sampling, **options)

    def decode(
        self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, *, source: str, order: bool = False,
        scope: Scope = PLAIN, **options: Any,
    ) -> Run:  # fmt: skip
        """An answer to a prompt that `source` computes under `key`. With `order` this engine asks it to."""
        self._check(key)
        if options.get("mask") is not None and sampling.structured_outputs is None:
            fact = "a peer that does not know it chooses the first token"
            raise InputError(say("a mask of one's own", fact, "submit it to the engine itself"))
        there, body = Source((source,)), b""
        if order:
            seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
            sampling = replace(sampling, seed=seed)  # both sides must draw the same
            prompt = checked_prompt(tokens, self.engine.vocabulary)
            body = orders.pack(
                prompt, sampling, seed, scope, options.get("tenant"), checked_hints(hints_among(options))
            )
        run = self.engine.submit(tokens, sampling, begun=AWAY, scope=scope, **options)
        self._unasked[key] = _Unasked(run, there, self.engine.clock() + self._limit)
        with self.pump as endpoint:
            if order:
                endpoint.order(key, source, body)
            endpoint.expect(key, there)
        return run

    def _check(self, key: Key) -> None:
        check_key(key)
        with self.pump as endpoint:
            if self.prefills.has(key) or key in self._unasked or endpoint.knows(key):
                raise StateError(say(f"a transfer of {key}", "that key is in use, or over", "use another epoch"))

    @property
    def num_open(self) -> int:
        """Transfers under way, or waiting for room: the engine is not done."""
        here = len(self.prefills.running) + len(self.prefills.unsent) + len(self._unasked)
        return here + self.endpoint.num_open

    # -- the engine's side: a Connector, and a turn of its own in each step ------------------------------------------

    def matched(self, request: Request, start: int) -> int:
        """Prompts come whole or not at all: nothing is brought into those that are computed here."""
        return 0

    def allocated(self, sequence: Live, span: Span) -> int:
        """As nothing matches, it is never asked."""
        return 0

    def finished(self, sequence: Live, free: Callable[[], None]) -> bool:
        """Of a prompt that was computed for a peer the endpoint holds the pages; they may be released here."""
        return self.prefills.finished(sequence, free)

    def step(self) -> None:
        """Compute what was ordered, ask for prompts that there is room for now, take what has come."""
        self.prefills.step()
        self._ask()
        for key in [key for key, coming in self._coming.items() if coming.run.done]:
            with self.pump as endpoint:
                endpoint.cancel(key)
        for session in self.pump.ended():
            self._over(session)

    def _ask(self) -> None:
        """First come, first served, beside those who wait for pages here; who has waited too long is one of them."""
        for key in [key for key, unasked in self._unasked.items() if unasked.run.done]:
            del self._unasked[key]
            with self.pump as endpoint:
                endpoint.cancel(key)
        strangers: set[Source] = set()  # peers not met yet: theirs wait for the next round, those of others do not
        for key, (run, source, until) in list(self._unasked.items()):
            if self.engine.scheduler.must_wait(run):
                return
            session, why = None, ""
            if self.engine.clock() > until:
                why = f"no room, or no hello, for {self._limit:g} s"
            elif source in strangers:
                continue  # in order per source: otherwise both sides could wait for room
            with self.pump as endpoint:
                met = endpoint.met(source)
                try:
                    session = endpoint.receive(key, run.branches[0].request(), source) if not why else None
                except QuireError as wrong:
                    why = str(wrong)
                if why:
                    endpoint.cancel(key)
                landing = None if session is None else endpoint.landing(session)
            if session is None and not why:
                if met:
                    self.engine.scheduler.make_way(run.branches[0])
                    return  # there is no room
                strangers.add(source)
                continue
            del self._unasked[key]
            if session is not None:
                self._coming[key] = _Coming(run, 0 if landing is None else landing.start)
            else:
                self._fall_back(run, why)

    def _over(self, session: Session) -> None:
        """Give its pages back, or decode what has come; if it has not, compute it, from where all groups can start."""
        with self.pump as endpoint:
            endpoint.conclude(session)
        if not isinstance(session, Receiving):
            self.prefills.over(session)
            return
        run, known = self._coming.pop(session.key)
        assert session.verdict is not None
        delivered, run.received = session.verdict.outcome is Outcome.DELIVERED, session.num_bytes
        first = self._first(run, session.aux)
        if delivered and not run.done and first is not None:
            self.engine.adopt(run.branches[0], first, reused=known)
            return
        if delivered:  # and of no use: its prompt stays findable
            self.engine.cache.release(self.engine.cache.sequence(run.request.id), back=run.hints.back)
        if not run.done:
            self._fall_back(
                run, session.verdict.reason or "what came with its pages is not a first token, or not logits"
            )

    def _first(self, run: Run, aux: Aux | None) -> int | torch.Tensor | None:
        """What the answers begin with, checked: one token or, for several answers and beams, logits."""
        vocabulary = self.engine.vocabulary
        if aux is None:
            return None
        if orders.needs_logits(run.sampling):
            fits = aux.vocabulary == vocabulary and len(aux.logits) == 4 * vocabulary
            return torch.from_numpy(aux.logits_array().copy()).to(self.engine.model.device) if fits else None
        return next((token for token in aux.first_tokens[:1] if 0 <= token < vocabulary), None)

    def _fall_back(self, run: Run, why: str) -> None:
        _log.warning("a prompt did not come from its peer and is computed here: %s", why)
        self.num_fallbacks += 1
        run.fallback = why
        self.engine.scheduler.queues.wait(run.branches[0])

    def _carry_out(self, plan: Plan) -> Finished:
        """Pages move before a peer writes into their old slots; setbacks of running branches are dealt with."""
        engine = self.engine
        engine.set_back(engine.plans.settle(), Turn())
        finished = engine.plans.run(plan)
        own = [setback for setback in finished.setbacks if engine.scheduler.holder(setback.holder) is None]
        engine.set_back([setback for setback in finished.setbacks if setback not in own], Turn())
        return Finished(tuple(own), finished.plan)

    def close(self) -> bool:
        """Cancel what is under way and leave, when nothing touches pages any more; False: a peer may, for ever."""
        if not self._closed:
            self._closed = True
            self.pump.close()
            self._unasked.clear()
        self._left = self._left or self.endpoint.leave("the engine is closing")
        return self._left
