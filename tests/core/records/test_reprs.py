"""What public objects say of themselves: short, of use in a log, and nothing that a user has said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import quire
from quire import (
    Cache,
    CacheConfig,
    Cleared,
    Created,
    Encoder,
    Finished,
    InputError,
    LayerGroup,
    Media,
    ModelLayer,
    Moved,
    Prefetch,
    Removed,
    Request,
    Retained,
    RetainRange,
    Retention,
    Scope,
    Setback,
    Snapshot,
    Span,
    Stored,
    TierConfig,
    split_layers,
)
from quire.core.store import StoreName

TOKEN, SALT, DIGEST, UUID, EXTRA = 31_337_001, "hush-hush", b"a picture of a cat", "cat.jpeg", 808_808_001
SECRETS = (*(str(TOKEN + place) for place in range(9)), SALT, DIGEST.decode(), UUID, str(EXTRA), "717171")
LONGEST = 400


def tokens() -> Any:
    return np.arange(TOKEN, TOKEN + 9, dtype=np.int32)


def secret(name: str, **options: Any) -> Request:
    """A request of which nothing but its name and its sizes may be told."""
    media = (Media(DIGEST, (Span(1, 3),), UUID),)
    extra = np.array([EXTRA, *[0] * 8], np.int64)
    heard = Encoder(4, np.array([717171] * 4, np.int32))
    return Request(
        name, tokens(), Scope(salt=SALT, lora="poet"), extra_ids=extra, media=media, encoder=heard,
        retention=Retention((RetainRange(0, 4, 80),)), **options,
    )  # fmt: skip


def objects(store: StoreName) -> list[Any]:
    """One of everything that the core gives out or takes, and twice what changes in its life."""
    groups = (LayerGroup("text"), LayerGroup("cross", cross=True))
    config = CacheConfig((TierConfig("device", 4), TierConfig("host", 8)), 4, groups, 4, 64, events=True)
    cache = Cache(config, store=store)
    request = secret("a", resume_points=(4,), max_new_tokens=3)
    made: list[Any] = [
        cache,
        config,
        cache.progress(),
        config.tiers[0],
        groups[0],
        request,
        request.encoder,
        request.media[0],
        Span(0, 4),
        Snapshot(1, 8, 3),
    ]
    made += [request.scope, request.retention, RetainRange(0, 4, 80), cache.prepare(request), *cache.probe([request])]
    claims = cache.claim([request, secret("long", length=99)])
    made += [claims, claims[0], *claims.refused]
    batch = cache.admit(claims)
    (sequence,) = batch.sequences
    step = cache.launch()
    cache.commit(step)
    made.append(step)
    held = cache.hold(sequence, Span(0, 4))
    assert held is not None
    setback = Setback(sequence, 8, 0, lost=True, request=request)
    made += [batch, sequence, held, setback, Finished((setback,)), cache.stats(), cache.usage()]
    made += [Stored(0, None, (1, 2), (35, 35), tokens(), 4, request.scope), Removed(0, (1, 2)), Moved(0, 1, 0, 1)]
    made += [Retained(0, 1, 35, 80), Created(0, (4, 8)), Cleared(0), *cache.take_events()]
    cache.drop(held)
    cache.release(sequence)
    with cache.find(request) as found, cache.writer(secret("w"), tier=1) as writer:  # type: ignore[union-attr]
        made += [found, writer]
        texts = [repr(found), repr(writer)]
    assert [repr(found), repr(writer)] != texts, "open or closed"
    made += slow_objects(store)
    plan = cache.offload(1)
    receipt = cache.explain(request)
    made += [receipt, *receipt.misses, receipt.client(), *receipt.client().misses]
    layers = [ModelLayer(64, None if nth % 6 == 5 else 512) for nth in range(26)]
    made += [layers[0], split_layers(layers)]
    return [*made, plan, *plan, *(move.kind for move in plan), cache.take_events(whole=True)]


def slow_objects(store: StoreName) -> list[Any]:
    """What a slow tier has besides."""
    tiers = (TierConfig("device", 4), TierConfig("host", 8), TierConfig("disk", 8, slow=True))
    cache = Cache(CacheConfig(tiers, 4, max_length=64, lasting=True), store=store)
    request = replace(secret("a"), encoder=None)
    (sequence,) = cache.add_sequence_batch([request]).sequences
    cache.commit(sequence)
    cache.release(sequence)
    plan = cache.copy_down(8)
    cache.finish(plan)
    changes, prefetch = cache.lasting_changes(), cache.prefetch(request)
    assert isinstance(prefetch, Prefetch) and len(changes.nodes.tokens)
    prefetch.close()
    return [plan, changes, changes.nodes, changes.pages, prefetch]


def public() -> set[type]:
    """Classes of the package's public names, errors and warnings aside."""
    found = [getattr(quire, name) for name in quire.__all__]
    return {item for item in found if inspect.isclass(item) and not issubclass(item, Exception)}


def test_no_repr_tells_what_was_said(store: StoreName) -> None:
    made = objects(store)
    assert public() <= {type(item) for item in made}, "a public class without an example"
    for item in made:
        for text in (repr(item), str(item), f"{[item]}"):
            assert not [word for word in SECRETS if word in text], text
            assert len(text) < LONGEST or item is made[1], text  # a config is told whole: a log shall rebuild it
            assert " object at 0x" not in text


def test_a_request_says_whose_it_is_and_how_large() -> None:
    assert repr(Request("a", tokens())) == "Request('a', 9 tokens)"
    assert repr(secret("b", beams=2, resume_points=(4,))) == (
        "Request('b', 9 tokens, extra ids, 1 media, 1 resume points, retention, scope=Scope(lora='poet', a salt), "
        "beams=2, encoder=Encoder(4 places, named by tokens))"
    )


def test_long_things_stay_short(store: StoreName) -> None:
    """Ten thousand tokens, ten thousand blocks."""
    many = tuple(range(10_000))
    stored = Stored(0, None, many, many, np.arange(40_000, dtype=np.int32), 4, None)
    asked = Request("a", np.arange(10_000, dtype=np.int32), resume_points=(4,) * 10_000)
    for item in (stored, Removed(0, many), asked, Media(DIGEST, tuple(Span(n, n + 1) for n in many))):
        assert len(repr(item)) < LONGEST


WRONG = {
    "a picture for its digest": lambda: Media(DIGEST * 99, (Span(0, 1),)),
    "a name for a digest": lambda: Media(SALT, (Span(0, 1),)),  # type: ignore[arg-type]
    "an encoder's content for its digest": lambda: Encoder(4, digest=DIGEST * 99),
    "a prompt for a salt": lambda: Scope(salt=[TOKEN, SALT]),  # type: ignore[arg-type]
    "a prompt for an id": lambda: Request([TOKEN, SALT], tokens()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_no_error_tells_it_either(wrong: Callable[[], Any]) -> None:
    with pytest.raises(InputError) as caught:
        wrong()
    assert not [word for word in SECRETS if word in str(caught.value)] and len(str(caught.value)) < LONGEST
