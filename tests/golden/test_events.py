"""Event streams that earlier versions recorded, followed by today's code, or refused with the cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire import InputError
from quire.events import Index, Recording, Status
from quire.events.follow.read import read
from quire.events.wire.field import VERSION

from .events import ENCODINGS, PROMPTS, Encoding, stream

HERE = Path(__file__).resolve().parent / "events-2"
HELD = [(8, (0, 8)), (8, (0, 8)), (8, (4, 4)), (20, (20, 0))]  # of each prompt: tokens, and how many by tier
RUN = 1  # of our field: which publisher it was


def parts(payload: bytes) -> list[Any]:
    """A batch but for its time and its publisher's number, which differ from run to run."""
    _, events, rank = msgspec.msgpack.decode(payload)
    carrier = events[-1]
    field = carrier["quire"] if isinstance(carrier, dict) else carrier[-1]
    field[RUN] = 0
    return [events, rank]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_stream_of_version_2_is_followed(encoding: Encoding) -> None:
    index = Index()
    index.add("old", mendable=False)
    for message in Recording(HERE / f"{encoding}.qev"):
        assert index.hear("old", message.seq, message.payload) is None
        assert index.status("old") is Status.EXACT
    held = [index.find(tokens, scope) for tokens, scope in PROMPTS]
    there = [(holding["old"].tokens, holding["old"].tiers) if holding else None for holding in held]
    assert there == HELD and index.report("old").rank == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_this_version_says_the_same(encoding: Encoding) -> None:
    """A change of our field has a number of its own, and a golden stream."""
    assert VERSION == 2
    kept = list(Recording(HERE / f"{encoding}.qev"))
    today = stream(encoding)
    assert [message.seq for message in kept] == [message.seq for message in today] == [0, 1, 2, 3]
    assert [parts(message.payload) for message in kept] == [parts(message.payload) for message in today]


@pytest.mark.parametrize(("version", "cure"), [(1, "upgrade the worker"), (3, "upgrade the router")])
def test_another_version_of_our_field_is_refused_with_the_cure(version: int, cure: str) -> None:
    (message, *_) = Recording(HERE / "map.qev")
    ts, events, rank = msgspec.msgpack.decode(message.payload)
    events[-1]["quire"][0] = version
    payload = msgspec.msgpack.encode([ts, events, rank])
    index = Index()
    index.add("other", mendable=False)
    index.hear("other", message.seq, payload)
    assert index.status("other") is Status.UNKNOWN
    assert index.report("other").reason == f"it speaks version {version} of our field, we read {VERSION}: {cure}"
    shown = read(payload)
    assert cure in shown["quire"]["unread"] and shown["events"] == read(message.payload)["events"]


def test_a_recording_of_a_later_format_is_refused_with_the_cure(tmp_path: Path) -> None:
    raw = (HERE / "map.qev").read_bytes()
    (tmp_path / "later.qev").write_bytes(raw.replace(b"quire-events 1\n", b"quire-events 2\n", 1))
    (tmp_path / "other.qev").write_bytes(b"GIF89a")
    with pytest.raises(InputError, match="upgrade Quire"):
        list(Recording(tmp_path / "later.qev"))
    with pytest.raises(InputError, match="not a recorded stream"):
        list(Recording(tmp_path / "other.qev"))
