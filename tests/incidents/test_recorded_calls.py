"""No call can be forgotten: whatever a cache can be asked to do is recorded, or named here as changing nothing."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getmembers, isfunction, signature
from typing import Any

import pytest

from quire import Cache, CacheConfig, TierConfig
from quire.core.outside.find import Found
from quire.core.outside.prefetch import Prefetch
from quire.core.outside.writer import Writer
from quire.core.records.errors import InputError
from quire.core.state.claims import Claims
from quire.incidents.record.read_clock import ReadClock
from quire.incidents.record.recorded_calls import CALLS, RecordedCalls
from quire.incidents.record.recorded_handles import handle_classes

ONLY_TELLS = "it tells what there is"
UNCHANGED = {
    "prepare": "a request's own work: no page, no row; the calls that name it say that it was prepared",
    "probe": "holds nothing; handles that it finds lost are noted by _asked",
    "explain": "holds nothing; handles that it finds lost are noted by _asked",
    "watch": "who hears of sequences decides nothing",
    "take_table_changes": "drains only what engines copy: which cells they have not seen; no decision reads it",
    "take_stats": "drains only its own marks: what was told last",
    "take_events": "drains only the queue of events; a cache that plays an incident makes none",
    **dict.fromkeys(
        (
            "sequence", "num_sequences", "tokens", "table", "state_table", "progress", "num_free",
            "slots_to_completion", "usage", "stats", "open_claims", "open_finds", "open_writers", "open_plans",
            "open_steps", "open_prefetches",
            "background_plans",
        ),
        ONLY_TELLS,
    ),
}  # fmt: skip
HANDLES: dict[type, set[str]] = {  # what their public methods only tell, or do by another one of them
    Claims: {"close"}, Found: {"blocks", "tiers", "slots", "lost"}, Writer: {"blocks", "slots", "taken"},
    Prefetch: set(),
}  # fmt: skip


def public(kind: type) -> set[str]:
    """Methods and properties without an underscore."""
    own = (name for one in kind.__mro__ if one.__module__.startswith("quire.") for name in vars(one))
    return {
        name for name in own if not name.startswith("_") and (callable(getattr(kind, name)) or is_property(kind, name))
    }


def is_property(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name), property)


def test_every_call_of_a_cache_is_recorded_or_changes_nothing() -> None:
    recorded = set(CALLS) - {"_asked"}
    assert recorded | UNCHANGED.keys() == public(Cache)
    assert not recorded & UNCHANGED.keys() and all(UNCHANGED.values())


@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_call_is_called_as_the_cache_is(name: str) -> None:
    assert signature(getattr(RecordedCalls, name)) == signature(getattr(Cache, name))


@pytest.mark.parametrize("kind", HANDLES, ids=lambda kind: kind.__name__)
def test_every_call_of_a_handle_is_recorded_or_changes_nothing(kind: type) -> None:
    recorded = handle_classes(recorder())[kind]
    noted = {name for name, one in getmembers(recorded, isfunction) if name in vars(recorded)}
    methods = {name for name in public(kind) if not is_property(kind, name)}
    assert noted | HANDLES[kind] == methods and not noted & HANDLES[kind]
    for name in noted:
        assert plain(getattr(recorded, name)) == plain(getattr(kind, name)), name


def plain(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """What a method can be given; its annotations are those of another module."""
    return [(one.name, one.kind, one.default) for one in signature(method).parameters.values()]


def recorder() -> RecordedCalls:
    cache = Cache(CacheConfig([TierConfig("device", 4)]))
    return RecordedCalls(cache, ReadClock(lambda: 0.0), lambda _: None, lambda *_: None)


def test_what_a_recorded_call_refuses_says_what_the_cache_says() -> None:
    plain_cache, recorded = (Cache(CacheConfig([TierConfig("device", 4)])) for _ in range(2))
    RecordedCalls(recorded, ReadClock(lambda: 0.0), lambda _: None, lambda *_: None)
    wrongs: list[Callable[[Any], object]] = [
        lambda cache: cache.fail(7), lambda cache: cache.launch(7), lambda cache: cache.trim(7, 1),
        lambda cache: cache.commit([], tokens=5), lambda cache: cache.grow([], num_tokens="many"),
    ]  # fmt: skip
    for wrong in wrongs:
        said = []
        for cache in (plain_cache, recorded):
            with pytest.raises(InputError) as told:
                wrong(cache)
            said.append(str(told.value))
        assert said[0] == said[1]
