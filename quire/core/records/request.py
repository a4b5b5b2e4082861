"""Request: what a user asks of the cache, frozen and checked. Knows no pages."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quire.core.records.caller_arguments import keep_tuples, quick_init
from quire.core.records.encoder import Encoder
from quire.core.records.errors import InputError, check_text, say, shown
from quire.core.records.hint_words import check_session
from quire.core.records.identity import Media, Scope, media_before, token_words
from quire.core.records.retain import Retention, bound_to
from quire.core.records.span import Span, cut_before

Int32 = NDArray[np.int32]
PLAIN = Scope()
NO_MEDIA: tuple[Media, ...] = ()
NO_POINTS: tuple[int, ...] = ()
NO_UNCUT: tuple[Span, ...] = ()
LONGEST_TENANT = 256  # characters
MOST_POINTS = 64  # resume points of a request
CONVERTED = "np.asarray({}, dtype=np.int32)"
_INT32 = np.dtype(np.int32)
_ONE, _ZERO = 1, 0  # defaults: a value that is one of these very objects need not be checked
_TOLD = ("scope", "length", "reuse", "reuse_limit", "redo_blocks", "beams", "extra_tokens", "max_new_tokens", "encoder")


@quick_init
@dataclass(frozen=True, eq=False)
class Request:
    """Token ids and what belongs to them. `id` names the sequence while it lives.

    `max_new_tokens` counts up to max_length. Probes count the slots for that many; and a request that could not
    generate them with the whole device to itself is refused permanently. With 0 it is let in, and grows as far as there
    is room.
    """

    id: Hashable
    tokens: Int32
    scope: Scope = PLAIN
    length: int | None = None  # tokens to make room for, when that is not len(tokens)
    extra_ids: NDArray[np.int64] | None = None  # one per token; 0 is a plain token
    media: Sequence[Media] = NO_MEDIA  # kept as a tuple
    retention: Retention | None = None
    reuse: bool = True  # False: neither looked up nor stored
    reuse_limit: int | None = None  # leading tokens that may be reused, when that is not all; storing knows no limit
    redo_blocks: int = _ZERO  # blocks at the end of what it finds that are computed all the same, for a drafter (EAGLE)
    beams: int = _ONE  # slots for forking into this many at the end of the prompt
    extra_tokens: int = _ZERO  # slots behind the prompt, for drafts
    max_new_tokens: int = 0  # what it may still generate
    resume_points: Sequence[int] = (
        NO_POINTS  # positions where others may go on from: ends of its system prompt, documents
    )
    encoder: Encoder | None = None  # what cross groups read
    uncut: Sequence[Span] = NO_UNCUT  # tokens that one step computes together, as those of an image; kept ascending
    tenant: str | None = None  # whose it is, for schedulers; pages are kept apart by the scope, never by this
    session: str | None = None  # requests that follow one another; what the last one left behind goes first
    snapshots: InitVar[Sequence[int]] = NO_POINTS  # what resume_points were called; kept there

    def __post_init__(self, snapshots: Sequence[int]) -> None:
        check_tokens(self.tokens, "a request")
        if type(self.id) is not str or not self.id.isascii():
            check_id(self.id, "request")
        if self.scope is not PLAIN and not isinstance(self.scope, Scope):
            raise InputError(
                say(f"request {shown(self.id)}", f"its scope is a {type(self.scope).__name__}", "pass a Scope")
            )
        if not len(self.tokens):
            raise InputError(say(f"request {shown(self.id)}", "it has no tokens", "pass at least one token"))
        new = self.max_new_tokens
        usual = self.beams is _ONE and self.extra_tokens is self.redo_blocks is _ZERO and self.length is None
        if not usual or type(new) is not int or new < 0:
            self._check_numbers()
        if self.reuse is not True and self.reuse is not False:
            fact = f"its reuse is {shown(self.reuse)}"
            raise InputError(say(f"request {shown(self.id)}", fact, "pass True or False"))
        if self.reuse_limit is not None and (type(self.reuse_limit) is not int or self.reuse_limit < 0):
            fact = "it must be a whole number of at least 0"
            raise InputError(
                say(f"request {shown(self.id)} with reuse_limit {shown(self.reuse_limit)}", fact, "correct it")
            )
        if self.retention is not None and not isinstance(self.retention, Retention):
            fact = f"its retention is a {type(self.retention).__name__}"
            raise InputError(say(f"request {shown(self.id)}", fact, "pass a Retention"))
        if self.media is not NO_MEDIA or self.extra_ids is not None:
            self._check_words()
        if self.resume_points is not NO_POINTS or snapshots is not NO_POINTS:
            self._check_points(snapshots)
        if self.encoder is not None and not isinstance(self.encoder, Encoder):
            fact = f"its encoder is a {type(self.encoder).__name__}"
            raise InputError(say(f"request {shown(self.id)}", fact, "pass an Encoder"))
        if self.uncut is not NO_UNCUT:
            self._check_uncut()
        if self.tenant is not None:
            check_tenant(self.tenant, f"request {shown(self.id)}")
        if self.session is not None:
            check_session(self.session, f"request {shown(self.id)}")

    def __repr__(self) -> str:
        """Whose it is and how large; never what it says."""
        parts = [f"{len(self.tokens)} tokens"]
        parts += ["extra ids"] if self.extra_ids is not None else []
        parts += [f"{len(self.media)} media"] if self.media else []
        parts += [f"{len(self.resume_points)} resume points"] if self.resume_points else []
        parts += [f"{len(self.uncut)} uncut spans"] if self.uncut else []
        parts += ["retention"] if self.retention is not None else []
        usual = {field.name: field.default for field in fields(self)}
        given = [(name, getattr(self, name)) for name in _TOLD]
        parts += [f"{name}={shown(value)}" for name, value in given if value != usual[name]]
        return f"Request({shown(self.id)}, {', '.join(parts)})"

    def _check_points(self, snapshots: Sequence[int]) -> None:
        name = f"request {shown(self.id)}"
        given = self.resume_points
        if snapshots is not NO_POINTS:
            fact = "Request.snapshots is called resume_points; the old name goes with 0.3"
            warnings.warn(fact, DeprecationWarning, stacklevel=4)
            given = snapshots
            if isinstance(given, list | tuple):  # one behind the prompt was never taken
                given = (*self.resume_points, *(at for at in given if type(at) is not int or at <= len(self.tokens)))
        if not isinstance(given, list | tuple) or not all(type(at) is int and at > 0 for at in given):
            fact = f"its resume points are {shown(given)}"
            raise InputError(say(name, fact, "pass a list of positions above 0"))
        points = tuple(sorted(set(given)))
        if points and points[-1] > len(self.tokens):
            fact = f"it has {len(self.tokens)} tokens"
            raise InputError(say(f"{name} with the resume point {points[-1]}", fact, "give positions in the prompt"))
        if len(points) > MOST_POINTS:
            fact = f"a request has at most {MOST_POINTS}"
            raise InputError(say(f"{name} with {len(points)} resume points", fact, "name those that matter most"))
        object.__setattr__(self, "resume_points", points or NO_POINTS)

    def _check_uncut(self) -> None:
        keep_tuples(self, "uncut")
        name = f"request {shown(self.id)}"
        if not isinstance(self.uncut, tuple) or not all(isinstance(one, Span) and one for one in self.uncut):
            fact = f"its uncut spans are {shown(self.uncut)}"
            raise InputError(say(name, fact, "pass a list of Spans with at least one token each"))
        spans = tuple(sorted(self.uncut))
        object.__setattr__(self, "uncut", spans)
        if spans and spans[-1].end > len(self.tokens):
            fact = f"it has {len(self.tokens)} tokens"
            raise InputError(say(f"{name} with the uncut span {spans[-1]}", fact, "give spans inside the prompt"))
        for one, other in pairwise(spans):
            if other.start < one.end:
                cure = "make them one span, or correct them"
                raise InputError(say(f"{name} with the uncut spans {one} and {other}", "they overlap", cure))
        for place in self.resume_points:
            if (at := cut_before(place, spans)) < place:
                fact = f"no step ends inside the uncut span that begins at {at}"
                raise InputError(say(f"{name} with a resume point at {place}", fact, "leave one of them out"))

    def _check_numbers(self) -> None:
        counts = ("extra_tokens", "max_new_tokens", "redo_blocks")
        for name, least in (("length", 1), ("beams", 1), *((name, 0) for name in counts)):
            value = getattr(self, name)
            if value is None and name == "length":
                continue
            if not isinstance(value, int) or value < least:
                fact = f"it must be a whole number of at least {least}"
                raise InputError(say(f"request {shown(self.id)} with {name} {shown(value)}", fact, "correct it"))

    def _check_words(self) -> None:
        keep_tuples(self, "media")
        if not isinstance(self.media, tuple) or not all(isinstance(item, Media) for item in self.media):
            raise InputError(
                say(f"request {shown(self.id)}", "its media are not a list of Media", "pass a list of Media")
            )
        ids = self.extra_ids
        if ids is None:
            return
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.shape != self.tokens.shape:
            fact = "it must be an int64 array with one number per token"
            raise InputError(say(f"extra_ids of request {shown(self.id)}", fact, "use np.zeros(len(tokens), np.int64)"))

    @classmethod
    def dummy(
        cls, id: Hashable, num_tokens: int, *, beams: int = 1, extra_tokens: int = 0, encoder_length: int = 0
    ) -> Request:
        """A warm-up or padding request: takes slots like any other, shares nothing, leaves nothing behind."""
        if type(num_tokens) is not int or num_tokens < 1:
            raise InputError(
                say(f"dummy {shown(id)} of {shown(num_tokens)} tokens", "it has no tokens", "pass at least 1")
            )
        tokens = np.ones(num_tokens, np.int32)
        space = Scope(space="dummy")
        encoder = Encoder(encoder_length) if encoder_length else None
        return cls(id, tokens, space, reuse=False, beams=beams, extra_tokens=extra_tokens, encoder=encoder)

    def continued(self, tokens: Int32, kept: int) -> Request:
        """The same request later: `tokens` is everything so far, of which the first `kept` are still its prompt's."""
        ids = self.extra_ids
        if ids is not None:
            ids = np.concatenate([ids[:kept], np.zeros(len(tokens) - kept, np.int64)])
        media = tuple(item for part in self.media for item in media_before(part, kept))
        made = len(tokens) - kept
        points = tuple(at for at in self.resume_points if at <= kept)
        uncut = tuple(Span(one.start, min(one.end, kept)) for one in self.uncut if one.start < kept)
        return replace(
            self, tokens=tokens, length=None, extra_ids=ids, media=media, beams=1 if made else self.beams,
            reuse_limit=None,  # those tokens have been computed since
            retention=None if self.retention is None else bound_to(self.retention, kept),
            max_new_tokens=max(self.max_new_tokens - made, 0), uncut=uncut or NO_UNCUT,
            resume_points=points or NO_POINTS,
        )  # fmt: skip

    def words(self) -> NDArray[np.uint64] | None:
        """Extra ids and media, word by word; None for plain text."""
        if self.extra_ids is None and not self.media:
            return None
        return token_words(len(self.tokens), self.extra_ids, self.media)


def check_tenant(tenant: object, what: str) -> None:
    """A name that can be written and sent. It is never shown: it may identify a user."""
    if not isinstance(tenant, str):
        raise InputError(say(what, f"its tenant is a {type(tenant).__name__}", "pass a string, or None"))
    if not 1 <= len(tenant) <= LONGEST_TENANT:
        fact = f"the name of its tenant has {len(tenant)} characters"
        raise InputError(say(what, fact, f"use 1 to {LONGEST_TENANT}, or None"))
    try:
        tenant.encode()
    except UnicodeEncodeError:
        fact = "the name of its tenant has a half of a surrogate pair"
        raise InputError(say(what, fact, "use whole characters")) from None


def check_id(name: Hashable, what: str) -> None:
    """Ids are keys of a dict."""
    try:
        hash(name)
    except TypeError:
        fact = f"its id is a {type(name).__name__}, and an id must be hashable"
        raise InputError(say(f"a {what}", fact, "use a string or a number")) from None
    if isinstance(name, str) and not name.isascii():
        check_text(name, f"the id of a {what}")


def check_tokens(tokens: object, what: str) -> None:
    """Tokens travel as one-dimensional, contiguous int32 arrays: a list costs more to convert than to admit."""
    if isinstance(tokens, np.ndarray):
        if tokens.dtype == _INT32 and tokens.ndim == 1 and tokens.flags.c_contiguous:
            return
        fact = f"its tokens are {tokens.dtype} with shape {tokens.shape}"
        cure = "use np.ascontiguousarray(tokens, dtype=np.int32)"
        if tokens.ndim != 1:
            cure = "pass one row: the tokens of one sequence, as a one-dimensional array"
    else:
        fact, cure = (
            f"its tokens are a {type(tokens).__name__}",
            "convert once, on arrival: " + CONVERTED.format("tokens"),
        )
    if _is_text(tokens):
        fact, cure = "its tokens are text", "pass token ids: " + CONVERTED.format("tokenizer.encode(text)")
    raise InputError(say(what, fact, cure))


def _is_text(tokens: object) -> bool:
    """Text, or a list of words: not yet token ids."""
    if isinstance(tokens, np.ndarray):
        return tokens.dtype.kind in "US"
    first = tokens[0] if isinstance(tokens, list | tuple) and tokens else tokens
    return isinstance(first, str | bytes)
