"""Strings that UTF-8 cannot encode are refused where they come in, and never shown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire import InputError, Media, Request, Scope, Span
from quire.core.records.errors import check_text, is_text

HALF = "secret\ud800"
TOKENS = np.ones(4, np.int32)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Scope(salt=HALF), "the salt of a scope"),
        (lambda: Scope(lora=HALF), "the lora of a scope"),
        (lambda: Scope(epoch=HALF), "the epoch of a scope"),
        (lambda: Scope(space=HALF), "the space of a scope"),
        (lambda: Media(bytes(16), [Span(0, 2)], uuid=HALF), "the uuid of media"),
        (lambda: Request(HALF, TOKENS), "the id of a request"),
    ],
)
def test_half_of_a_character_is_refused(make: Callable[[], object], what: str) -> None:
    """An event with it could not be sent, and a page's name not be made of it."""
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(f"{what}: character 6 of it is half of a pair")
    assert "secret" not in str(caught.value)


def test_all_other_text_is_taken() -> None:
    for text in ("", "a", "grün", "猫", "\N{CAT}", "\0", "\ufffe"):
        check_text(text, "it")
        assert is_text(text) and Scope(salt=text).key and Request(text, TOKENS).id == text
    assert not is_text(HALF) and is_text(None) and is_text(5)
    assert Scope(salt="a").key != Scope(lora="a").key
