"""A record whose fields are set at once is made, shown, copied and refused like any frozen dataclass."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, InitVar, dataclass, field, fields, replace

import numpy as np
import pytest

from quire import Request
from quire.core.records.caller_arguments import quick_init


@dataclass(frozen=True, eq=False)
class Plain:
    name: str
    size: int = 3
    old: InitVar[int] = 0
    tags: tuple[str, ...] = field(default=("a",))

    def __post_init__(self, old: int) -> None:
        if old:
            object.__setattr__(self, "size", old)


@quick_init
@dataclass(frozen=True, eq=False)
class Quick(Plain):
    pass


def test_every_field_is_set_and_what_is_not_kept_reaches_the_checks() -> None:
    for kind in (Plain, Quick):
        assert vars(kind("x")) == {"name": "x", "size": 3, "tags": ("a",)}
        assert vars(kind("x", 5, tags=())) == {"name": "x", "size": 5, "tags": ()}
        assert kind("x", old=7).size == 7


def test_its_init_says_what_the_usual_one_says() -> None:
    assert inspect.signature(Quick) == inspect.signature(Plain)
    for wrong in ((), ("x", 1, 2, (), 4)):
        with pytest.raises(TypeError, match=r"Quick\.__init__\(\)"):
            Quick(*wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sizes'"):
        Quick("x", sizes=3)  # type: ignore[call-arg]


def test_a_request_cannot_be_changed_and_can_be_copied() -> None:
    request = Request("r", np.arange(4, dtype=np.int32), reuse_limit=2)
    with pytest.raises(FrozenInstanceError):
        request.reuse_limit = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del request.reuse_limit
    for other in (copy.copy(request), pickle.loads(pickle.dumps(request)), replace(request)):
        assert other is not request
        assert all(np.array_equal(getattr(other, one.name), getattr(request, one.name)) for one in fields(Request))
    assert vars(request).keys() == {one.name for one in fields(Request)}
