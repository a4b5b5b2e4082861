"""Wrong calls on a live cache: each must raise a QuireError that says so, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fuzzing.subject import Subject
from fuzzing.world import build
from fuzzing.world.plain import Ask
from quire import Encoder, Plan, QuireError, Scope, Sequence, Span

Wrong = tuple[str, Callable[[], object]]


def misuses(subject: Subject, ask: Ask) -> Iterator[Wrong]:
    """Every wrong call that the state of the cache allows to make, by name."""
    yield from _wrong_anytime(subject, ask)
    yield from _wrong_for_groups(subject, ask)
    if subject.live:
        yield from _wrong_with(subject, ask, min(subject.live.items())[1])
    if subject.plans:
        plan = min(subject.plans.items())[1]
        yield "finish with a move it has not", lambda: subject.cache.finish(plan, [len(plan)])


def _wrong_anytime(subject: Subject, ask: Ask) -> Iterator[Wrong]:
    cache, request = subject.cache, build.request(ask)
    yield "claim one id twice", lambda: cache.claim([request, request])
    yield "claim for an unknown purpose", lambda: cache.claim([request], "fun")  # type: ignore[arg-type]
    yield "no budget at all", lambda: cache.add_sequence_batch([request], token_budget=-1)
    yield "finish a plan to come", lambda: cache.finish(Plan(1 << 30, np.empty((0, 11), np.int32)))
    yield "grow a row that does not live", lambda: cache.grow(np.array([subject.world.rows], np.int32))
    yield "keep less than nothing", lambda: cache.truncate(request, -1)
    yield "forget nobody in particular", lambda: cache.forget(Scope())
    yield "ask for nobody", lambda: cache.sequence("nobody")


def _wrong_for_groups(subject: Subject, ask: Ask) -> Iterator[Wrong]:
    cache, world = subject.cache, subject.world
    request = build.request(replace(ask, encoder=None, snapshots=(), uncut=()))
    tokens = np.zeros(3, np.int32)
    yield "an encoder of another length", lambda: Encoder(4, tokens)
    if world.num_own == world.num_groups:
        heard = replace(request, encoder=Encoder(3, tokens))
        yield "an encoder of nobody", lambda: cache.claim([heard])
    yield "an encoder with two names", lambda: Encoder(3, tokens, b"0123456789abcdef")
    if world.has_state:
        longer = replace(request, length=len(ask.tokens) + 1)
        yield "room for tokens that no state knows", lambda: cache.claim([longer])
    end = len(ask.tokens)
    yield "a resume point behind the prompt", lambda: replace(request, resume_points=[end + 1])
    yield "a resume point at nothing", lambda: replace(request, resume_points=[0])
    yield "an uncut span beyond the prompt", lambda: replace(request, uncut=[Span(0, end + 1)])
    yield "uncut spans that overlap", lambda: replace(request, uncut=[Span(0, 1), Span(0, end)])
    yield "an uncut span of nothing", lambda: replace(request, uncut=[Span(0, 0)])


def _wrong_with(subject: Subject, ask: Ask, live: Sequence) -> Iterator[Wrong]:
    cache = subject.cache
    taken = build.request(Ask(str(live.id), ask.tokens))
    yield "claim a live id", lambda: cache.claim([taken])
    yield "fork to a live id", lambda: cache.fork(live, [live.id])
    yield "trim what is committed", lambda: cache.trim(live, live.length - live.committed + 1)
    yield "commit what is not there", lambda: cache.commit(live, live.length + 1)
    yield "grow beyond the longest", lambda: cache.grow(live, num_tokens=subject.world.max_length + 8)
    yield "grow a row twice", lambda: cache.grow([live, live])
    yield "hold what has no slots", lambda: cache.hold(live, Span(0, subject.world.max_length * 2))


def refused(wrong: Wrong) -> str | None:
    """None when the call was refused as it should be, else what happened instead."""
    name, call = wrong
    try:
        call()
    except QuireError as error:
        return None if "; " in str(error) else f"{name}: the message has no cure: {error}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return f"{name}: it was not refused"
