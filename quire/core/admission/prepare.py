"""Making requests ready for a claim, and refusing those that cannot be claimed in this cache. Holds nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import get_args

from quire.core.records.errors import InputError, StateError, UnknownError, listed, say, shown
from quire.core.records.request import Request
from quire.core.state.prepared import Prepared, Purpose, ReadyRequest, Waiting, ready_of
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup

PURPOSES = frozenset(get_args(Purpose))


def check_device(setup: Setup, act: str) -> None:
    """Sequences live on the device."""
    if not setup.smallest_pool:  # all groups have none, or each has some
        raise StateError(say(act, "this cache has no device slots", "use find and writer, or give the device some"))


def ready_for(
    setup: Setup, requests: Iterable[Request | Prepared], purpose: Purpose, kept: Waiting | None = None
) -> list[ReadyRequest]:
    """Requests made ready, each fit for one claim in this cache; `kept`: those that are so from an earlier one."""
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        raise InputError(say(f"purpose {shown(purpose)}", "it is unknown", "use 'compute' or 'decode'"))
    many = requests if type(requests) is list else listed("a batch of requests", requests)
    ready: list[ReadyRequest] = []
    if kept is not None and kept.ready:
        return [_kept(setup, item, kept) for item in many]
    for item in many:  # a comprehension is a call of its own
        ready.append(ReadyRequest(setup, item) if type(item) is Request else _checked(setup, item))
    return ready


def _kept(setup: Setup, item: Request | Prepared, kept: Waiting) -> ReadyRequest:
    """What is kept of a request, which is kept no more, or the request made ready."""
    if isinstance(item, Request):
        return kept.take(item) or _checked(setup, item)
    ready = _checked(setup, item)
    kept.take(ready.request)
    return ready


def _checked(setup: Setup, item: Request | Prepared) -> ReadyRequest:
    """What was prepared ahead, or is not a plain Request."""
    if isinstance(item, Request):
        return ReadyRequest(setup, item)
    if not isinstance(item, Prepared):
        raise InputError(say(f"claim of a {type(item).__name__}", "it is not a Request", "pass quire.Request objects"))
    ready = ready_of(item)
    if ready.setup is setup and not ready.seated:
        return ready
    name = f"prepared request {shown(item.request.id)}"
    if ready.setup is not setup:
        raise UnknownError(say(name, "another cache prepared it", "prepare it with the cache that claims it"))
    fact = "it was admitted before, and its tokens are that sequence's"
    raise StateError(say(name, fact, "prepare the request again"))


def ready_to_claim(registry: Registry, requests: Iterable[Request | Prepared], purpose: Purpose) -> list[ReadyRequest]:
    """The same for a batch: each has an id of its own, which no live sequence has; sequences live on the device."""
    if not registry.setup.smallest_pool:
        check_device(registry.setup, "claim")
    ready = ready_for(registry.setup, requests, purpose, registry.waiting)
    for prepared in ready:
        name = prepared.request.id
        if name in registry.sequences:
            raise StateError(say(f"claim for request {shown(name)}", "a sequence of that id is live", "use another id"))
    if len(ready) > 1:
        _check_apart(ready)
    return ready


def _check_apart(ready: list[ReadyRequest]) -> None:
    seen: set[Hashable] = set()
    for prepared in ready:
        name = prepared.request.id
        if name in seen:
            fact = "it is twice in the batch"
            raise InputError(say(f"claim for request {shown(name)}", fact, "give every request its own id"))
        seen.add(name)
