"""Event templates: many stores at once say what they would say one by one, whatever names they carry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire import Scope
from quire.events.wire.encode import MANY
from quire.events.wire.template import HASH, PARENT, TOKEN

from .lives import build, ids, run
from .test_encode import Stream, encodings

MARKS = [number.to_bytes(8, "big") for number in (HASH, PARENT)] + [b"\xce" + TOKEN.to_bytes(4, "big")]
TEXTS = [b"\xc2" + mark for mark in MARKS[:2]] + [b"\xce\xb1" + MARKS[2][1:]]


@pytest.mark.parametrize("text", [text.decode() for text in TEXTS], ids=["hash", "parent", "tokens"])
@pytest.mark.parametrize("scope", ["salt", "lora"])
@encodings
def test_a_name_that_looks_like_a_gap_is_left_alone(encoding: Any, scope: str, text: str) -> None:
    """Salts come from whoever sends requests: none of them may make a batch that routers cannot read."""
    stream = Stream(build(64, 0), encoding)
    for name in range(MANY):
        run(stream.cache, name, ids(range(100 * name, 100 * name + 4)), scope=Scope(**{scope: text}))
    events = stream.tell()
    assert len(events) == MANY and {event["parent_block_hash"] for event in events} == {None}
    told = {event["lora_name"] if scope == "lora" else event["extra_keys"][0][0] for event in events}
    assert {name.removeprefix("dynamo-cache-salt:") for name in told} == {text}
    assert msgspec.msgpack.decode(stream.payload)[2] == 0
