"""What makes two blocks the same block besides their token ids: scope, extra ids, media. Knows no tree.

A scope names the tree a request walks in. Extra ids and media enter at the tokens they cover, as three words per token,
so equal words mean equal content and a common prefix can end inside any block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from quire.core.records.caller_arguments import keep_tuples
from quire.core.records.errors import InputError, check_text, say, shown
from quire.core.records.span import Span

ScopeValue = int | str | bytes | None
ScopeDigest = bytes  # four digests of 16 bytes: LoRA, salt, epoch and space, each as typed as in a scope's key
Words = NDArray[np.uint64]
_PART = 16  # bytes of a digest
_EXTRA_ID = 1  # first word of a token that has only an extra id


@dataclass(frozen=True, slots=True)
class Scope:
    """Namespace of a chain. Requests share pages only within one scope; None differs from 0 and from ''."""

    lora: ScopeValue = None
    salt: ScopeValue = None
    epoch: ScopeValue = None  # of the model: new weights, new epoch
    space: ScopeValue = None  # set by the cache for streams of its own (dummies, encoders)
    key: bytes = field(init=False, repr=False, compare=False)  # typed and length-prefixed: no two scopes have one key

    def __post_init__(self) -> None:
        values = {"lora": self.lora, "salt": self.salt, "epoch": self.epoch, "space": self.space}
        key = b"".join([_typed(value, name) for name, value in values.items()])
        object.__setattr__(self, "key", key)

    def __repr__(self) -> str:
        """That there is a salt, and never which."""
        plain = (("lora", self.lora), ("epoch", self.epoch))
        parts = [f"{name}={shown(value)}" for name, value in plain if value is not None]
        parts += [f"a {name}" for name in ("salt", "space") if getattr(self, name) is not None]
        return f"Scope({', '.join(parts)})"

    def covers(self, other: Scope) -> bool:
        """Whether another scope has all that this one names: its LoRA, its salt, its epoch."""
        pairs = ((self.lora, other.lora), (self.salt, other.salt), (self.epoch, other.epoch), (self.space, other.space))
        return all(mine is None or _typed(mine) == _typed(theirs) for mine, theirs in pairs)

    @property
    def digest(self) -> ScopeDigest:
        """What stands for the scope where its salt must stay secret; equal scopes have equal ones."""
        return digest_of(self.key)

    def covers_digest(self, digest: ScopeDigest) -> bool:
        """Whether the scope of a digest has all that this one names."""
        mine = self.digest
        parts = (slice(at, at + _PART) for at in range(0, len(mine), _PART))
        values = (self.lora, self.salt, self.epoch, self.space)
        return all(value is None or mine[part] == digest[part] for value, part in zip(values, parts, strict=True))

    def event_hash(self, seed: bytes) -> int:
        """64-bit name of the scope in the events of caches with that seed (CacheConfig.event_seed)."""
        return _event_hash(self.digest, seed)


@dataclass(frozen=True, slots=True)
class RestoredScope:
    """A scope that was not named since its pages came back from an earlier process: its digest is all there is."""

    digest: ScopeDigest = field(repr=False)

    def event_hash(self, seed: bytes) -> int:
        """As that of the scope itself."""
        return _event_hash(self.digest, seed)


def scope_of_digest(digest: ScopeDigest) -> Scope | RestoredScope:
    """The scope of a digest, if it names nothing; else what is known of it."""
    return Scope() if digest == Scope().digest else RestoredScope(digest)


def _event_hash(digest: ScopeDigest, seed: bytes) -> int:
    """Of the digest, so that pages from disk, whose salts are unknown, have the names that routers look for."""
    name = blake2b(digest, digest_size=8, key=seed, person=b"quire-scope").digest()
    return int.from_bytes(name, "little") or 1


def digest_of(key: bytes) -> ScopeDigest:
    """The digest of the scope that has this key."""
    parts: list[bytes] = []
    at = 0
    while at < len(key):
        end = at + 1 if key[at : at + 1] == b"n" else at + 5 + int.from_bytes(key[at + 1 : at + 5], "little")
        person = b"quire-scope-%d" % len(parts)
        parts.append(blake2b(key[at:end], digest_size=_PART, person=person).digest())
        at = end
    return b"".join(parts)


def _typed(value: ScopeValue, name: str = "value") -> bytes:
    match value:
        case None:
            return b"n"
        case bool():
            raise InputError(say("a scope value", "it is a bool; a bool names nothing", "use an int, a str or bytes"))
        case int():
            raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
            return b"i" + len(raw).to_bytes(4, "little") + raw
        case str():
            check_text(value, f"the {name} of a scope")
            raw = value.encode()
            return b"s" + len(raw).to_bytes(4, "little") + raw
        case bytes():
            return b"b" + len(value).to_bytes(4, "little") + value
    raise InputError(say("a scope value", f"it is a {type(value).__name__}", "use an int, a str, bytes or None"))


@dataclass(frozen=True, slots=True)
class Media:
    """One image, sound or clip: a digest of its content and the token runs it covers, in order."""

    digest: bytes
    runs: Sequence[Span]  # kept as a tuple
    uuid: str | None = None

    def __post_init__(self) -> None:
        keep_tuples(self, "runs")
        if not isinstance(self.digest, bytes) or not 16 <= len(self.digest) <= 64:
            raise InputError(say("a media digest", f"it is {kind_of(self.digest)}", "pass a hash of 16 to 64 bytes"))
        runs = self.runs if isinstance(self.runs, tuple) else ()
        if not runs or not all(isinstance(run, Span) and run for run in runs):
            raise InputError(say("media without tokens", f"runs are {self.runs}", "give at least one non-empty Span"))
        if isinstance(self.uuid, str):
            check_text(self.uuid, "the uuid of media")

    def __repr__(self) -> str:
        """How much of a prompt it is; never what it shows."""
        return f"Media({len(self.runs)} runs, {sum(map(len, self.runs))} tokens)"

    def _fingerprint(self) -> bytes:
        """20 bytes that stand for content and uuid."""
        return blake2b(_typed(self.digest) + _typed(self.uuid), digest_size=20, person=b"quire-media").digest()


def media_before(media: Media, num_tokens: int) -> tuple[Media, ...]:
    """What is left of it in the first `num_tokens` tokens: one item, or none."""
    runs = tuple(Span(run.start, min(run.end, num_tokens)) for run in media.runs if run.start < num_tokens)
    return (replace(media, runs=runs),) if runs else ()


def kind_of(value: object) -> str:
    """What was given in place of a digest, without telling it."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def token_words(num_tokens: int, extra_ids: NDArray[np.int64] | None, media: Sequence[Media]) -> Words | None:
    """Three words per token, all zero for a plain one; None when every token is plain."""
    if not media and (extra_ids is None or not extra_ids.any()):
        return None
    words = np.zeros((num_tokens, 3), np.uint64)
    if extra_ids is not None:
        words[:, 0] = np.where(extra_ids != 0, _EXTRA_ID, 0)
        words[:, 1] = extra_ids.view(np.uint64)
    covered = np.zeros(num_tokens, bool)
    for item in media:
        _cover(words, covered, item)
    return words


def _cover(words: Words, covered: NDArray[np.bool_], item: Media) -> None:
    print_ = item._fingerprint()
    low, high = int.from_bytes(print_[:8], "little"), int.from_bytes(print_[8:16], "little")
    top = int.from_bytes(print_[16:], "little") << 32  # the word's lower half is the offset inside the item
    consumed = 0
    for run in item.runs:
        if run.end > len(words):
            fact = f"the request has {len(words)} tokens"
            raise InputError(say(f"media run [{run.start}, {run.end})", fact, "end the run with the tokens"))
        place = slice(run.start, run.end)
        if covered[place].any():
            raise InputError(
                say(f"media run [{run.start}, {run.end})", "another run covers part of it", "make runs disjoint")
            )
        covered[place] = True
        for token in np.flatnonzero(words[place, 0]) + run.start:  # an extra id under an image: both count
            words[token] = _both(words[token], print_)
        plain = np.flatnonzero(words[place, 0] == 0) + run.start
        words[plain, 0], words[plain, 1] = np.uint64(low | 2), np.uint64(high)
        words[place, 2] = np.uint64(top) + np.arange(consumed, consumed + len(run), dtype=np.uint64)
        consumed += len(run)


def _both(words: Words, print_: bytes) -> Words:
    mixed = blake2b(words.tobytes() + print_, digest_size=24, person=b"quire-both").digest()
    both = np.frombuffer(mixed, np.uint64).copy()
    both[0] |= np.uint64(2)  # never taken for a bare extra id, whose first word is 1
    return both
