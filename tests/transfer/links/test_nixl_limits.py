"""What a peer of the NIXL link can cost that knows the secret and keeps to no rule: its names and READs have an end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire.transfer.geometry.byte_rows import to_bytes
from quire.transfer.links import nixl as links
from quire.transfer.links import pulls
from quire.transfer.links.connection import DONE
from quire.transfer.links.tcp import WORD
from quire.transfer.links.writes import WRITE

from .link_suite import new_pages, slots
from .raw_peer import SECRET, RawPeer
from .test_link_limits import shut_in_the_middle
from .test_nixl_link import pytestmark as pytestmark

REFUSED = b"its door is shut, or reading failed"


class ReadingPeer(RawPeer):
    """A peer with an agent and one page of its own; `lie` moves that page to where nothing is registered."""

    def __init__(self, link: Any, *, lie: int = 0) -> None:
        super().__init__(link)
        assert self.heard_frame()[0] == links.AGENT
        api = links._api()
        self.page = np.full(1 << 20, 5, np.uint8)
        self.agent = api.nixl_agent("raw", api.nixl_agent_config(backends=["UCX"]))
        self.memory = self.agent.register_memory(np.array([(self.page.ctypes.data, 1 << 20, 0)], np.uint64), "DRAM")
        pool = links.POOL.pack(self.page.ctypes.data + lie, 1 << 20)
        self.met = struct.pack("<I", 1) + pool + self.agent.get_agent_metadata()
        self.say(self.frame(links.AGENT, self.met))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.until(lambda: not self.link._peers and not self.link._reads and not self.link._departed)
        self.agent.deregister_memory(self.memory)

    def turn(self) -> None:
        super().turn()
        if hasattr(self, "agent"):
            self.agent.get_new_notifs()  # its memory is read only while it looks

    def pull(self, door: int, ticket: int, *, last: bool, size: int = 48, slot: int = 0, count: int = 1) -> bytes:
        moves = np.array([(0, 0, slot << 20, size)] * count, np.int64).reshape(-1, 4)
        return self.frame(links.PULL, WRITE.pack(door, ticket, last) + to_bytes(moves))


@pytest.fixture
def link() -> Iterator[Any]:
    made = links.NixlLink("b", new_pages(2), SECRET)
    yield made
    assert made.close()


def clean(link: Any) -> bool:
    return not link._pulls and not link._reads and not link._spoilt and not link._remote


def test_a_peer_made_by_hand_is_served(link: Any) -> None:
    """What the others of this file rest on."""
    door = link.door(slots([3], []))
    with ReadingPeer(link) as peer:
        peer.say(peer.pull(door.number, 1, last=True, size=1 << 20, slot=3))
        assert peer.heard_frame() == (DONE, WORD.pack(1, True))
        assert (link.pages[0][3] == 5).all() and not link._pulls[next(iter(link._pulls))].writes
    assert clean(link)


def test_writes_that_never_end_are_bounded(link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every READ of them ends; their last part does not come."""
    monkeypatch.setattr(pulls, "MOST_WRITES", 8)
    door = link.door(slots([0], []))
    with ReadingPeer(link) as peer:
        for ticket in range(8):
            peer.say(peer.pull(door.number, ticket, last=False))
            peer.until(lambda: bool(link._pulls) and not link._reads)
        peer.say(peer.pull(door.number, 3, last=True))  # one does end
        assert peer.heard_frame() == (DONE, WORD.pack(3, True))
        peer.say(peer.pull(door.number, 8, last=False))
        peer.until(lambda: not link._reads)
        assert not peer.news
        peer.say(peer.pull(door.number, 9, last=False))
        assert peer.why_lost() == "it names a write while 8 are not over"
    assert clean(link)


def test_refused_writes_that_never_end_are_bounded(link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "MOST_WRITES", 8)
    with ReadingPeer(link) as peer:
        peer.say(b"".join(peer.pull(77, ticket, last=False) for ticket in range(9)))
        assert peer.why_lost() == "it names a write while 8 are not over"
    assert clean(link)


@pytest.mark.parametrize(("limit", "most"), [("MOST_READS", 4), ("MOST_ROWS", 8)])
def test_reads_under_way_are_bounded(link: Any, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    """Named at once, so that none has ended when the last of them comes."""
    monkeypatch.setattr(pulls, limit, most)
    door = link.door(slots([0], []))
    with ReadingPeer(link) as peer:
        peer.say(b"".join(peer.pull(door.number, ticket, last=True, count=2) for ticket in range(5)))
        assert peer.why_lost() == "it names more to read while 4 READs of 8 rows are under way"
    assert clean(link) and door.shut()


def test_reads_of_all_peers_are_bounded(link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it a write is refused; nobody is lost for what others do."""
    monkeypatch.setattr(links, "MOST_READS_OF_ALL", 0)
    door = link.door(slots([0], []))
    with ReadingPeer(link) as peer:
        peer.say(peer.pull(door.number, 1, last=True))
        assert peer.heard_frame() == (DONE, WORD.pack(1, False) + REFUSED)


@pytest.mark.parametrize("stays", [True, False])
def test_reads_that_fail_leave_nothing_behind(link: Any, stays: bool) -> None:
    """They name memory that is not the peer's; it waits for the answers, or goes at once and comes back."""
    door = link.door(slots([0], []))
    for _ in range(2):
        with ReadingPeer(link, lie=1 << 40) as peer:
            peer.say(b"".join(peer.pull(door.number, ticket, last=ticket != 2) for ticket in range(3)))
            peer.until(lambda: len(link._reads) == 3)
            for ticket in (0, 1) if stays else ():
                assert peer.heard_frame() == (DONE, WORD.pack(ticket, False) + REFUSED)
        assert clean(link)


@pytest.mark.parametrize("call", ["transfer", "check_xfer_state"])
def test_a_read_that_nixl_calls_an_error_has_failed(link: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Mostly NIXL raises; an end that is not DONE is an error all the same."""
    begin, check = link._agent.transfer, link._agent.check_xfer_state
    if call == "transfer":
        monkeypatch.setattr(link._agent, call, lambda _: "ERR")
    else:  # a READ may be over when it has begun: it is not asked about then
        monkeypatch.setattr(link._agent, "transfer", lambda handle: {"DONE": "PROC"}.get(it := begin(handle), it))
        monkeypatch.setattr(link._agent, call, lambda handle: {"DONE": "ERR"}.get(check(handle), "PROC"))
    door = link.door(slots([0], []))
    with ReadingPeer(link) as peer:
        peer.say(peer.pull(door.number, 1, last=True))
        assert peer.heard_frame() == (DONE, WORD.pack(1, False) + REFUSED)
    assert clean(link)


def test_frames_that_no_link_sends_end_the_connection(link: Any) -> None:
    door = link.door(slots([0], []))
    with ReadingPeer(link) as peer:
        peer.say(peer.frame(links.AGENT, peer.met))
        assert peer.why_lost() == "it names its agent again"
    with ReadingPeer(link) as peer:
        peer.say(peer.pull(door.number, 1, last=True) + peer.pull(door.number, 1, last=True))
        assert peer.why_lost() == "it goes on with a write that it has ended"
    with ReadingPeer(link) as peer:
        peer.say(peer.pull(door.number, 1, last=True, size=1 << 20, count=65))
        assert "bytes at once" in peer.why_lost()
    with RawPeer(link) as peer:
        peer.say(peer.frame(links.AGENT, struct.pack("<I", 0) + bytes(links.MAX_METADATA + 1)))
        assert "it names 0 pools in" in peer.why_lost()
    assert clean(link)


def test_a_write_of_a_tcp_peer_ends_at_a_shut_door(link: Any) -> None:
    """Page bytes that come through the socket, as a tcp link sends them, are stopped like those that are read."""
    shut_in_the_middle(link, 700_000)
