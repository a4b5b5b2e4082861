"""Making requests ready for a claim, and refusing those that cannot be claimed in this cache. Holds nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import get_args

from quire.core.records.errors import InputError, StateError, UnknownError, listed, say, shown
from quire.core.records.request import Request
from quire.core.state.prepared import Prepared, Purpose, ReadyRequest, ready_of
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup

PURPOSES = frozenset(get_args(Purpose))


def check_device(setup: Setup, act: str) -> None:
    """Sequences live on the device."""
    if not setup.smallest_pool:  # all groups have none, or each has some
        raise StateError(say(act, "this cache has no device slots", "use find and writer, or give the device some"))


def ready_for(setup: Setup, requests: Iterable[Request | Prepared], purpose: Purpose) -> list[ReadyRequest]:
    """Requests made ready, each fit for one claim in this cache."""
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        raise InputError(say(f"purpose {shown(purpose)}", "it is unknown", "use 'compute' or 'decode'"))
    many = requests if type(requests) is list else listed("a batch of requests", requests)
    return [ReadyRequest(setup, item) if type(item) is Request else _checked(setup, item) for item in many]


def _checked(setup: Setup, item: Request | Prepared) -> ReadyRequest:
    """What was prepared ahead, or what is no plain Request."""
    if isinstance(item, Request):
        return ReadyRequest(setup, item)
    if not isinstance(item, Prepared):
        raise InputError(say(f"claim of a {type(item).__name__}", "it is no Request", "pass quire.Request objects"))
    ready = ready_of(item)
    if ready.setup is setup and not ready.seated:
        return ready
    name = f"prepared request {shown(item.request.id)}"
    if ready.setup is not setup:
        raise UnknownError(say(name, "another cache prepared it", "prepare it with the cache that claims it"))
    fact = "it was admitted before, and its tokens are that sequence's"
    raise StateError(say(name, fact, "prepare the request again"))


def check_ids(registry: Registry, ready: list[ReadyRequest]) -> None:
    """Every request of a batch has an id of its own, and no live sequence has it."""
    for prepared in ready:
        name = prepared.request.id
        if name in registry.sequences:
            raise StateError(say(f"claim for request {shown(name)}", "a sequence of that id is live", "use another id"))
    if len(ready) == 1:
        return
    seen: set[Hashable] = set()
    for prepared in ready:
        name = prepared.request.id
        if name in seen:
            fact = "it is twice in the batch"
            raise InputError(say(f"claim for request {shown(name)}", fact, "give every request its own id"))
        seen.add(name)
