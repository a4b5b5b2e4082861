"""Keys as digests: whose a header has, what is kept of one, and that digests of two purposes have nothing in common."""

from __future__ import annotations

import pickle

import pytest

from quire.net.secrets import LONGEST, KeyRing

KEY = b"sk-0a1b2c3d4e5f6a7b8c9d"


def ring(purpose: bytes = b"quire-test-key") -> KeyRing:
    made = KeyRing(purpose)
    assert made.add(KEY, "alice") and made.add(b"sk-another-key-of-hers", "alice")
    return made


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer  ", b"BEARER "])
def test_a_header_with_a_key_says_whose_it_is(scheme: bytes) -> None:
    assert ring().whose(scheme + KEY) == ring().whose(scheme + KEY + b" ") == "alice"


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer ", KEY, b"Basic " + KEY, b"Bearer " + KEY[:-1], b"Bearer " + KEY + b"x"]
)
def test_any_other_header_is_nobodys(header: bytes) -> None:
    assert ring().whose(header) is None


def test_a_key_that_is_too_long_is_not_taken_for_its_beginning() -> None:
    made = KeyRing(b"quire-test-key")
    assert made.add(b"k" * LONGEST) and made.whose(b"Bearer " + b"k" * LONGEST) is not None
    assert made.whose(b"Bearer " + b"k" * (LONGEST + 1)) is None


def test_a_key_is_there_once_and_has_a_name() -> None:
    made = ring()
    assert len(made) == 2 and made.names == {"alice"} and not made.add(KEY, "bob")
    assert made.whose(b"Bearer " + KEY) == "alice"
    assert made.add(b"sk-a-key-without-a-name") and (made.whose(b"Bearer sk-a-key-without-a-name") or "")[:4] == "key-"


def test_keys_are_not_kept_and_purposes_share_no_digest() -> None:
    one, other = ring(), ring(b"quire-other-key")
    assert KEY not in pickle.dumps(one)
    assert not set(one._names) & set(other._names)
