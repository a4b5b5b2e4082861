"""Prefills: what one engine computes for others: prompts and first tokens, by request or by order. Lives in its thread.

start, or an order that came -> a run of one token -> finished: pages and token are held until asked for -> over
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from quire.core.records.errors import QuireError
from quire.core.records.request import Int32
from quire.core.state.sequence import Sequence as Live
from quire.engine.disagg import prefill_orders as orders
from quire.engine.loop.admission_gate import AdmissionGate
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.step.runs.branch import Run
from quire.transfer import Aux, EndpointThread, Key, Sending, with_logits


class Prefill(NamedTuple):
    """A prompt that is being computed."""

    key: Key
    run: Run


class Unsent(NamedTuple):
    """A prompt that is computed, and to be put when there is room to send it."""

    length: int
    aux: Aux
    free: Callable[[], None]  # gives its pages back


class Prefills:
    """Context-only runs. With a `gate` those that were ordered come in through it; `check` refuses keys in use."""

    def __init__(
        self, engine: Engine, pump: EndpointThread, check: Callable[[Key], None], gate: AdmissionGate | None,
        tell: Callable[[str], None], *, eager: bool,
    ) -> None:  # fmt: skip
        self._engine, self._pump = engine, pump
        self._eager = eager  # put pages at once; False: when they are asked for, since room in host memory is short
        self._check, self._gate = check, gate
        self._tell = tell  # a line per prompt that was sent, or was not
        self.running: dict[object, Prefill] = {}  # by sequence
        self.unsent: dict[Key, Unsent] = {}

    def has(self, key: Key) -> bool:
        """It is being computed."""
        return any(key == prefill.key for prefill in self.running.values())

    def start(
        self, key: Key, tokens: Int32 | Sequence[int], sampling: Sampling, *, logits: bool = False, **options: Any
    ) -> Run:
        """Compute a prompt and its first token. With `logits`, and for several answers and beams anyway, those go with
        it, and the other side chooses.
        """
        self._check(key)
        one = first_token_of(sampling)
        try:
            run = self._engine.submit(tokens, one, **options)
        except QuireError as refused:
            self._refuse(key, str(refused))
            raise
        run.keeps_logits = logits or orders.needs_logits(sampling)
        self.running[run.branches[0].id] = Prefill(key, run)
        return run

    def finished(self, sequence: Live, free: Callable[[], None]) -> bool:
        """A sequence computes no more: if it was one of these, its pages are held until asked for.

        False: they cannot be held yet. The sequence keeps them until `free` is called.
        """
        prefill = self.running.pop(sequence.id, None)
        if prefill is None:
            return True
        key, run = prefill
        if not run.answers[0].tokens:
            self._refuse(key, run.error or "its prompt was not computed")
            return True
        aux = Aux(first_tokens=(run.answers[0].tokens[0],), cached_tokens=run.reused)
        if run.logits is not None:
            aux = with_logits(aux, run.logits.numpy()[None])
        with self._pump as endpoint:
            try:
                endpoint.send(key, sequence.id)
            except QuireError as wrong:  # too many sessions, or one that is stuck
                endpoint.refuse(key, str(wrong))
                return True
        self.unsent[key] = Unsent(sequence.prompt_end, aux, free)
        return self._put(key)

    def _put(self, key: Key) -> bool:
        """Send it if that can be done now."""
        unsent = self.unsent[key]
        with self._pump as endpoint:
            if not self._eager and not endpoint.is_asked_for(key):
                return False
            try:
                done = endpoint.put(key, unsent.length, last=True, aux=unsent.aux)
            except QuireError as wrong:  # more than staging has room for, or its session is over
                endpoint.refuse(key, str(wrong))
                done = True
        if done:
            del self.unsent[key]
        return done

    def step(self) -> None:
        """Start what was ordered, stop what is not wanted any more, say what will not come."""
        for id, (key, run) in list(self.running.items()):
            if run.done:  # before it had pages
                del self.running[id]
                self._refuse(key, run.error or "its prompt was not computed")
        for key, unsent in list(self.unsent.items()):
            if self._put(key):
                unsent.free()
        for key, body in self._pump.endpoint.take_orders():
            self._compute(key, body)
        for key in self._pump.endpoint.take_withdrawn():
            self._withdraw(key)

    def over(self, session: Sending) -> None:
        """A prompt was sent, or was not."""
        with suppress(Exception):  # a listener that fails costs no prompt
            sent = f"{session.length:,} tokens, {session.num_bytes:,} bytes sent"
            self._tell(f"{session.key}: {sent}; {_in_words(session)}")

    def _refuse(self, key: Key, reason: str) -> None:
        with self._pump as endpoint:
            endpoint.refuse(key, reason)

    def _compute(self, key: Key, body: bytes) -> None:
        """What a peer has ordered; it learns why when it is not computed."""
        try:
            order = orders.unpack(body)
        except QuireError as wrong:
            self._refuse(key, str(wrong))
            return
        tenant = order.tenant if self._engine.config.scheduling == "fair" else None
        if self._gate is not None and not self._gate.enter(0, tenant):
            self._refuse(key, "as many runs are in the engine as it takes")
            return
        place = None if self._gate is None else _Place(self._gate, tenant)
        try:
            options: dict[str, Any] = {"scope": order.scope, "tenant": order.tenant, "listener": place}
            options |= {"session": order.session, "back": order.back, "resume_points": order.resume_points}
            self.start(key, order.tokens, order.sampling, logits=order.logits, **options)
        except QuireError:  # told already; or a key in use, whose session goes on
            if self._gate is not None:
                self._gate.leave(tenant)

    def _withdraw(self, key: Key) -> None:
        """The peer that ordered it does not want it, wherever it is by now."""
        for prefill in [one for one in self.running.values() if one.key == key]:
            self._engine.cancel(prefill.run)
        with self._pump as endpoint:
            if endpoint.is_sending(key):
                endpoint.cancel(key, "the peer that ordered it does not want it any more")


def first_token_of(sampling: Sampling) -> Sampling:
    """How one token is chosen here. Other fields are for the decoding engine: where they matter, logits are sent."""
    return Sampling(1, sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed, priority=sampling.priority)


class _Place:
    """Hears of an ordered run only that it is over: its place at the gate is free again."""

    def __init__(self, gate: AdmissionGate, tenant: Hashable) -> None:
        self._gate, self._tenant = gate, tenant

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        return False

    def over(self, run: Run) -> None:
        self._gate.leave(self._tenant)


def _in_words(session: Sending) -> str:
    verdict = session.verdict
    assert verdict is not None
    return f"{verdict.outcome}, {verdict.reason}" if verdict.reason else str(verdict.outcome)
