"""RunMaker: a run out of what was asked for, checked and ready to be queued. Queues nothing; changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from quire.core.cache import Cache
from quire.core.records.identity import Scope
from quire.core.records.request import Int32, Request
from quire.core.state.prepared import Prepared
from quire.engine.deadlines.first_token import SubmitOptions, TokenDeadline, wanted_first_token
from quire.engine.model.layers import Model
from quire.engine.sampling.params import Sampling, checked_sampling
from quire.engine.sampling.token_rules import check_ids, rules_of
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.setup.submission import (
    Away,
    TokenPrompt,
    check_begun,
    check_limits,
    check_scope,
    mask_of,
    parted,
    prepared_request,
    with_room,
)
from quire.engine.step.runs.beam import beams_of
from quire.engine.step.runs.branch import Branch, Listener, Run
from quire.engine.step.runs.page_hints import submitted_hints
from quire.engine.step.runs.tenant import Together
from quire.engine.structured_outputs.grammar import Grammars
from quire.engine.structured_outputs.token_mask import TokenMask

Tokens = Int32 | Sequence[int] | TokenPrompt


class Asker(NamedTuple):
    """Who asks, and who hears of it."""

    scope: Scope
    tenant: str | Together | None
    listener: Listener | None = None


class NewRun(NamedTuple):
    """A run that nobody has queued yet."""

    run: Run
    branch: Branch  # its first one
    prepared: Prepared
    wanted: TokenDeadline | None


class RunMaker:
    """One engine's."""

    def __init__(
        self, cache: Cache, config: EngineConfig, model: Model, grammars: Grammars, clock: Callable[[], float]
    ) -> None:
        self._model, self._cache, self._config, self._grammars, self._clock = model, cache, config, grammars, clock
        self._vocabulary, self._numbers = int(model.module.config.get_text_config().vocab_size), count()

    def make(
        self, tokens: Tokens, sampling: Sampling, asker: Asker, hints: SubmitOptions, *,
        mask: TokenMask | None = None, begun: Sequence[int] | Away = (),
    ) -> NewRun:  # fmt: skip
        """What can never be served is refused."""
        wanted = wanted_first_token(hints, self._config, begun)
        prompt, uncut = parted(tokens, self._vocabulary)
        check_scope(asker.scope)
        page_hints = submitted_hints(hints)
        check_limits(self._model, self._config, len(prompt), checked_sampling(sampling))
        check_ids(sampling, self._vocabulary)
        check_begun(begun, sampling, self._vocabulary)
        rules = rules_of(sampling, prompt, self._model.eos_ids, self._model.tokenizer)
        mask = mask_of(self._grammars, mask, sampling)
        number = next(self._numbers)
        request = Request(
            (number, -1), prompt, asker.scope, beams=sampling.beams, max_new_tokens=sampling.max_tokens,
            retention=page_hints.retention, session=page_hints.session, resume_points=page_hints.resume_points,
            uncut=uncut, tenant=None if isinstance(asker.tenant, Together) else asker.tenant,
        )  # fmt: skip
        prepared = prepared_request(self._cache, with_room(self._config, request), sampling.max_tokens)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        run = Run(request, sampling, seed, asker.listener, self._clock())
        run.arrival, run.rules, run.hints = number, rules, page_hints
        run.beams = beams_of(sampling, self._model.eos_ids)
        branch = Branch(run, 0, request.id, prompt, mask)
        run.branches.append(branch)
        return NewRun(run, branch, prepared, wanted)
