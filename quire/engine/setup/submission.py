"""Submission: what an engine refuses before anything is queued, with the reason. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from quire.core.cache import Cache
from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.identity import Scope
from quire.core.records.request import NO_UNCUT, Int32, Request
from quire.core.records.span import Span
from quire.core.state.claim import Refusal
from quire.core.state.prepared import Prepared
from quire.engine.model.layers import Model
from quire.engine.sampling.params import Sampling
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.structured_outputs.grammar import Grammars
from quire.engine.structured_outputs.token_mask import TokenMask


class Away(Enum):
    """Where an answer begins whose prompt is computed by a peer."""

    AWAY = "away"


AWAY = Away.AWAY


class TokenPrompt(NamedTuple):
    """Token ids, and spans of them that one step computes together, as those of an image."""

    tokens: Int32 | Sequence[int]
    uncut: Sequence[Span] = NO_UNCUT

    def __repr__(self) -> str:
        return f"TokenPrompt({len(self.tokens)} tokens, {len(self.uncut)} uncut spans)"


LESS = "shorten the prompt or lower max_tokens, or give the cache more memory"


class EngineBusy(StateError):
    """As many runs are in the engine as it takes; submit again when some are done."""


def checked_prompt(tokens: Int32 | Sequence[int], vocabulary: int) -> Int32:
    """Token ids as one row of int32 that the model knows."""
    try:
        wide = np.asarray(tokens)
    except ValueError:
        wide = np.empty((0, 0))
    if wide.shape == (0,):
        raise InputError(say("a prompt", "it is empty", "pass at least one token"))
    if wide.dtype.kind == "O" and wide.ndim == 1 and all(isinstance(token, int) for token in wide.tolist()):
        fact = f"one of them is too large for any model: the model knows 0 to {vocabulary - 1}"
        raise InputError(say("a prompt of token ids", fact, "use the model's own tokenizer"))
    if wide.ndim != 1 or wide.dtype.kind not in "iu":
        fact = f"they are {wide.dtype} of shape {wide.shape}"
        raise InputError(say("a prompt of token ids", fact, "pass whole numbers in one row"))
    if wide.min() < 0 or wide.max() >= vocabulary:
        fact = f"they go from {wide.min()} to {wide.max()}, the model knows 0 to {vocabulary - 1}"
        raise InputError(say("submit of token ids", fact, "use the model's own tokenizer"))
    return np.array(wide, dtype=np.int32)  # its own: the caller may go on to use the array


def check_scope(scope: Scope) -> None:
    """Which requests share its pages, as the caller names them."""
    if not isinstance(scope, Scope):
        cure = "pass a Scope, such as Scope(lora='name')"
        raise InputError(say(f"scope={shown(scope)}", f"it is a {type(scope).__name__}", cure))


def check_limits(model: Model, config: EngineConfig, num_tokens: int, sampling: Sampling) -> None:
    """Lengths, and what this model cannot do."""
    longest, most = num_tokens + sampling.max_tokens, min(config.max_length, model.max_length)
    if longest > most:
        ask = f"a prompt of {num_tokens} tokens and {sampling.max_tokens} to generate"
        raise InputError(
            say(ask, f"that is {longest}; one request may reach {most}", "shorten the prompt or lower max_tokens")
        )
    if sampling.drafts and model.recurrent:
        fact = "this model has a recurrent state, which cannot be taken back"
        raise InputError(say(f"speculation with {sampling.drafts} drafts", fact, "leave drafts at 0"))
    if sampling.beams > config.max_sequences:
        fact = f"max_sequences is {config.max_sequences}"
        raise InputError(say(f"a beam search with {sampling.beams} beams", fact, "use fewer beams"))


def parted(given: Int32 | Sequence[int] | TokenPrompt, vocabulary: int) -> tuple[Int32, Sequence[Span]]:
    """A prompt's token ids, checked, and its uncut spans."""
    tokens, uncut = given if isinstance(given, TokenPrompt) else TokenPrompt(given)
    return checked_prompt(tokens, vocabulary), uncut


def with_room(config: EngineConfig, request: Request) -> Request:
    """The request, if what one step must compute together has room in it beside all that may decode."""
    longest, most = max(map(len, request.uncut), default=0), config.longest_uncut
    if longest > most:
        fact = f"a step has room for {most}: max_num_tokens less what other sequences decode, and at most max_chunk"
        raise InputError(say(f"an uncut span of {longest} tokens", fact, "enlarge max_num_tokens or max_chunk"))
    return request


def check_begun(begun: Sequence[int] | Away, sampling: Sampling, vocabulary: int) -> None:
    """An answer that goes on here: there is one, it is not complete, and the model knows its tokens."""
    if isinstance(begun, Away) or not len(begun):
        return
    ask = f"an answer that goes on behind {len(begun)} tokens"
    if sampling.n > 1 or sampling.beams > 1:
        raise InputError(say(ask, "there are several answers", "submit it from the beginning, with the same seed"))
    if len(begun) >= sampling.max_tokens:
        raise InputError(say(ask, f"max_tokens is {sampling.max_tokens}", "it is complete: leave it"))
    checked_prompt(begun, vocabulary)


def mask_of(grammars: Grammars, given: TokenMask | None, sampling: Sampling) -> TokenMask | None:
    """The mask that was given, or that of `structured_outputs`. Beams weigh all tokens: they have none."""
    wanted = sampling.structured_outputs
    mask = grammars.mask(wanted) if given is None and wanted is not None else given
    if mask is not None and sampling.beams > 1:
        ask = f"a mask of tokens with beams {sampling.beams}"
        raise InputError(say(ask, "beams are weighed by the model's own numbers", "leave one of them out"))
    return mask


def prepared_request(cache: Cache, request: Request, max_tokens: int) -> Prepared:
    """Ready to be claimed; refused if it could never fit, as it is or when it comes back with its answer so far."""
    prepared = cache.prepare(request)
    whole = np.resize(request.tokens, len(request.tokens) + max_tokens - 1)
    later = replace(request.continued(whole, len(request.tokens)), id=(request.id, "later"), reuse=False, beams=1)
    with cache.claim([prepared, later]) as claims:
        if claims.refused:
            ask = f"a prompt of {len(request.tokens)} tokens and {max_tokens} to generate"
            raise InputError(say(ask, in_words(claims.refused[0], cache.config), LESS))
    return prepared


def in_words(refusal: Refusal, config: CacheConfig) -> str:
    """What a request needs and what there is, as a user counts it."""
    what = {"slots": "pages", "tokens": "tokens in one step", "sequences": "sequences", "order": "places"}
    where = "" if refusal.group is None else f" of the layer group {config.groups[refusal.group].name!r}"
    return f"it needs {refusal.need} {what[refusal.reason]}{where}, {refusal.have} are there"
