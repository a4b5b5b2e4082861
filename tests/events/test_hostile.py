"""Workers and routers that mean harm: nobody ends a thread, makes a question fail, or fills another's memory."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from zmq.auth import create_certificates

from quire import InputError
from quire.cli.events_command import _lines, _shown
from quire.cli.events_command import main as events
from quire.core.records.events import Fact
from quire.core.store import StoreName, open_store
from quire.events import Follower, Index, Keys, Publisher, RecordedMessage, Recording, Room, Status
from quire.events.follow import index as indexes
from quire.events.follow.read import read
from quire.events.follow.stream_state import PENDING_BYTES, ReplayRequest
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.delta import Delta, DeltaRecords, decoded, encoded
from quire.events.wire.digest import digest_of
from quire.events.wire.field import Form
from quire.events.wire.names import Names
from quire.events.wire.protocol import number
from quire.net.curve_keys import public_key
from quire.net.zmq_sockets import bound_to

from ..waits import until
from . import decoding
from .lives import MIXED, build, ids, run
from .test_publisher import ANY, exact, fetch, published, sent, socket

PROMPT = ids(range(8))


def test_nothing_that_bytes_can_be_harms_anybody(store: StoreName) -> None:
    """The hand-run form of this plays a million; memory is bounded, too."""
    tracemalloc.start()
    told = decoding.play(int(np.random.default_rng().integers(1 << 40)), 300 if store == "compiled" else 50, store)
    assert tracemalloc.get_traced_memory()[1] < 32e6 and told["damaged"] and told["readable"]
    tracemalloc.stop()


class Pair:
    """An index with an honest worker, and payloads of another that can be changed."""

    def __init__(self, groups: Any = MIXED) -> None:
        self.index = Index(max_pages=1_000)
        self.cache = build(32, groups=groups)
        run(self.cache, 1, PROMPT)
        self.maker = PayloadMaker(Names.from_config(self.cache.config), "map", Archive(50, 1 << 24))
        self.whole = self.maker.make(self.cache.take_events(whole=True))
        for worker in ("good", "bad"):
            self.index.add(worker)
        self.index.hear("good", *self.whole)

    def changed(self, **values: Any) -> bytes:
        """The whole state with other values in our field, by place."""
        tree = msgspec.msgpack.decode(self.whole[1])
        for place, value in values.items():
            tree[1][-1]["quire"][int(place[1:])] = value
        return msgspec.msgpack.encode(tree)

    def refused(self, seq: int, payload: bytes, why: str) -> None:
        """The worker is UNKNOWN with a reason; everybody can be asked, and the other is what it was."""
        self.index.hear("bad", seq, payload)
        assert self.index.status("bad") is Status.UNKNOWN and why in self.index.report("bad").reason
        assert self.index.find(PROMPT)["good"].status is Status.EXACT and self.index.find(ids(range(90))) is not None
        assert self.index.check("bad") is not None


def group(kind: str = "full_attention", window: Any = None, tail: int = -1, sink: int = 0) -> list[Any]:
    """A group as our field names it."""
    return [kind, window, tail, sink]


FIELDS = (
    ({"_4": [group(tail=2**63)]}, "Expected"), ({"_4": [group(tail=2**63 - 1)]}, "Expected"),
    ({"_4": [group(sink=2**40)]}, "Expected"), ({"_4": [group(sink=-1)]}, "nothing can be resumed"),
    ({"_4": [group("cross_attention")]}, "nothing can be resumed"), ({"_4": [group()] * 65}, "Expected"),
    ({"_4": [group("x" * 65)]}, "Expected"), ({"_3": ["GPU"] * 9}, "Expected"), ({"_2": 2**63}, "Expected"),
    ({"_11": 2**64 - 1}, "Expected"), ({"_1": -1}, "Expected"), ({"_6": 2**64 - 1}, "Expected"),
    ({"_12": bytes(15)}, "Expected"), ({"_0": 1}, "version 1"), ({"_0": 3}, "version 3"),
)  # fmt: skip


@pytest.mark.parametrize(("values", "why"), FIELDS, ids=str)
def test_what_no_cache_says_is_refused(values: dict[str, Any], why: str) -> None:
    pair = Pair()
    pair.refused(pair.whole[0], pair.changed(**values), why)
    pair.index.hear("bad", *pair.whole)
    assert pair.index.status("bad") is Status.EXACT and pair.index.report("bad").reason == ""


def test_numbers_and_nesting_at_their_limits_are_refused() -> None:
    pair = Pair()
    last = 2**64 - 1
    pair.refused(last, pair.changed(_11=last), "number 18446744073709551615")
    pair.refused(2**63, pair.whole[1], "number")
    pair.refused(0, b"\x93\xcb" + bytes(8) + b"\x91" * 3_000 + b"\x90\xc0", "recursion")
    pair.refused(0, pair.whole[1][:10] + b"\x91\x81\xa5quire" + b"\x91" * 3_000 + b"\x90\xc0", "recursion")
    assert pair.index.hear("bad", 2**63 - 1, pair.changed(_11=2**63 - 1)) is None
    request = pair.index.check("bad")
    assert request == ReplayRequest(2**63, check=True) and len(number(request.start or 0)) == 8


def test_many_small_events_do_not_become_many_objects() -> None:
    payload = b"\x93\xcb" + bytes(8) + b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\x90" * (1 << 20) + b"\xc0"
    pair = Pair()
    tracemalloc.start()
    pair.refused(0, payload, "1048576 events in")
    assert tracemalloc.get_traced_memory()[1] < 4 * len(payload)
    tracemalloc.stop()


def test_a_worker_that_changes_its_shape_or_names_pages_it_has_no_place_for_is_not_exact() -> None:
    pair = Pair()
    pair.index.hear("bad", *pair.whole)
    pair.refused(1, pair.changed(_11=1, _2=8), "other names")
    pair.refused(1, pair.changed(_11=1, _12=bytes(16)), "other names")  # what it had was hashed with another seed
    rows = np.array([[1, 0, 1, 0, 5]], np.int32)  # stored in a tier that it does not name
    apart = {"_5": 1, "_7": rows.tobytes(), "_8": bytes(7) + b"\1", "_9": b"\0", "_10": bytes(8 * 3 * 3 * 2)}
    pair.index.remove("bad")
    pair.index.add("bad")
    pair.index.hear("bad", 0, pair.changed(**apart))
    assert pair.index.status("bad") is Status.REPAIRING and pair.index.report("bad").mismatches == 1


def test_a_worker_with_more_pages_than_there_is_room_for_is_barred_until_it_begins_anew() -> None:
    pair = Pair()
    names = np.arange(1, 1_100, dtype=np.uint64)
    rows = np.array([[1, 0, len(names), 0, 0]], np.int32)
    many = {"_7": rows.tobytes(), "_8": names.tobytes(), "_9": bytes(len(names))}
    pair.refused(0, pair.changed(**many), "1099 pages")
    assert pair.index.pages("bad") == {} and pair.index.check("bad").check
    assert pair.index.hear("bad", *pair.whole) is None and pair.index.status("bad") is Status.UNKNOWN
    other = PayloadMaker(Names.from_config(pair.cache.config), "map", Archive(5, 1 << 20))
    pair.index.hear("bad", *other.make(pair.cache.take_events(whole=True)))
    assert pair.index.status("bad") is Status.EXACT


def test_too_many_pages_are_not_taken_to_be_given_up_again_and_many_that_come_and_go_are() -> None:
    """What a batch stores and does not remove after its last clearing is there then: a cache stores no page twice."""
    pair = Pair()
    many = np.full(1_100, 7, np.uint64)
    rows = np.array([[1, 0, len(many), 0, 0]], np.int32)
    pair.refused(0, pair.changed(_7=rows.tobytes(), _8=many.tobytes(), _9=bytes(len(many))), "1100 pages")

    names, ledger = Names.from_config(pair.cache.config), open_store().Ledger(1, len(MIXED))
    maker = PayloadMaker(names, "map", Archive(5, 1 << 20))
    pair.index.add("busy")
    pages = np.arange(1, 901, dtype=np.uint64)
    for seq, kinds in enumerate(([Fact.STORED, Fact.REMOVED, Fact.STORED], [Fact.STORED, Fact.CLEARED, Fact.STORED])):
        counts = [0 if kind is Fact.CLEARED else len(pages) for kind in kinds]
        rows = np.array([[kind, 0, count, 0, 0] for kind, count in zip(kinds, counts, strict=True)], np.int32)
        told = np.concatenate([pages[:count] + np.uint64(seq) for count in counts])
        records = DeltaRecords(rows, told, np.zeros(len(told), np.uint8))
        ledger.apply(0, *records)
        form = Form.CHANGES if seq else Form.WHOLE
        delta = Delta(seq, 7, 0, names, form, 0, records, digest_of(ledger, 0, len(MIXED), len(names.media)))
        pair.index.hear("busy", seq, encoded(maker._encoder, delta, [], 0.0))
        assert pair.index.status("busy") is Status.EXACT and len(pair.index.pages("busy")) == 900


def test_what_comes_too_early_is_bounded_in_bytes() -> None:
    pair = Pair()
    pair.index.hear("bad", *pair.whole)
    stream = pair.index._streams["bad"]
    names = np.arange(1, 200_001, dtype=np.uint64)
    rows = np.array([[1, 0, len(names), 0, 0]], np.int32)
    one = {"_5": 0, "_7": rows.tobytes(), "_8": names.tobytes(), "_9": bytes(len(names))}
    for seq in range(5, 25):
        pair.index.hear("bad", seq, pair.changed(_11=seq, **one))
        assert stream.pending_bytes == sum(delta.num_bytes for delta in stream.pending.values()) <= PENDING_BYTES
    assert 1 <= len(stream.pending) < 10 and pair.index.status("bad") is Status.REPAIRING and stream.next is None
    pair.index.hear("bad", *pair.whole, asked=True)
    pair.index.remove("bad")
    assert pair.index.status("good") is Status.EXACT


def test_what_comes_too_early_is_bounded_for_all_workers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    pair.index.hear("bad", *pair.whole)
    early = [pair.changed(_5=0, _11=seq) for seq in range(2, 5)]
    room = 3 * decoded(early[0]).num_bytes  # type: ignore[union-attr]
    monkeypatch.setattr(indexes, "PENDING_BYTES", room)
    requests = [pair.index.hear(worker, 2 + nth, early[nth]) for worker in ("bad", "good") for nth in range(2)]
    assert requests == [ReplayRequest(1), None, ReplayRequest(1), ReplayRequest(None)]
    assert pair.index._pending_bytes() == room


def test_a_line_with_messages_too_long_is_cut_and_the_follower_goes_on() -> None:
    with published(build(16)) as publisher, socket(zmq.PUB, ANY, bind=True) as loud:
        end = bound_to(loud)
        index = Index()
        with Follower(index, quiet=0.05, max_message=1 << 16) as follower:
            follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
            follower.follow("loud", end)
            publisher.tell()
            for size in (1 << 16, 1 << 17):
                for _ in range(50):
                    loud.send_multipart([b"", number(0), b"\x93" + b"\x90" * (size - 1)])
                    loud.send_multipart([b"", b"\xff" * size, b""])
            until(lambda: exact(index, publisher), "exact")
            assert index.status("loud") is Status.UNKNOWN


@pytest.mark.parametrize("too_long", [False, True])
def test_how_long_a_message_may_be(too_long: bool) -> None:
    index = Index()
    with socket(zmq.XPUB, ANY, bind=True) as loud, Follower(index, max_message=1 << 12) as follower:
        follower.follow("loud", bound_to(loud))
        assert loud.recv() == b"\1"  # it listens
        loud.send_multipart([b"", number(0), bytes((1 << 12) + too_long)])
        if too_long:
            assert loud.recv() == b"\0"  # it has hung up
        until(lambda: index.report("loud").damaged == 1 - too_long, "heard, or not")


# -- CURVE, defaults, by hand ----------------------------------------------------------------------------------------


def test_only_who_has_the_right_keys_hears_and_asks() -> None:
    server, friend, stranger = Keys.make(), Keys.make(), Keys.make()
    cache = build(16)
    with published(cache, room=Room(keys=server.admitting([friend.public]))) as publisher:
        publisher.tell()
        index, other = Index(), Index()
        with Follower(index, quiet=0.05, keys=friend) as mine, Follower(other, quiet=0.05, keys=stranger) as theirs:
            theirs.follow("w", publisher.endpoint, publisher.replay_endpoint, server=server.public)
            theirs.follow("plain", publisher.endpoint, publisher.replay_endpoint, server=stranger.public)
            mine.follow("w", publisher.endpoint, publisher.replay_endpoint, server=server.public.decode())
            until(lambda: exact(index, publisher), "exact")
            run(cache, 1, PROMPT)
            publisher.tell()
            until(lambda: index.find(PROMPT), "heard")
            assert set(other.workers().values()) == {Status.UNKNOWN} and other.find(PROMPT) == {}
            with pytest.raises(InputError, match="public key"):
                mine.follow("v", publisher.endpoint)


def test_all_who_know_the_servers_key_may_come_when_nobody_is_named(tmp_path: Any) -> None:
    public, secret = create_certificates(tmp_path, "worker")
    keys, index = Keys.read(secret), Index()
    with published(build(16), room=Room(keys=keys)) as publisher, Follower(index, quiet=0.05) as follower:
        publisher.tell()
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint, server=public)
        until(lambda: exact(index, publisher), "exact")
    assert keys.secret.decode() not in repr(keys)
    with pytest.raises(InputError, match="no secret key"):
        Keys.read(public)
    with pytest.raises(InputError, match=r"Keys.make\(\)"):
        Keys(b"short", b"shorter")
    with pytest.raises(InputError, match="no secret one"):
        Room(keys=Keys(keys.public, b""))


@pytest.mark.parametrize("text", [b"\xff" * 40, b" " * 40, b"#" * 40, b'"' * 40])
def test_what_is_no_key_is_told_where_it_is_named(text: bytes) -> None:
    for name in (lambda: Keys(text, b""), lambda: Keys.make().admitting([text]), lambda: public_key(text)):
        with pytest.raises(InputError, match="not a Z85 text"):
            name()
    one, other = Keys.make(), Keys.make()
    with pytest.raises(InputError, match="not that of the secret one"):
        Keys(one.public, other.secret)


def test_the_name_of_a_file_may_look_like_a_key(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public, _ = create_certificates(tmp_path, "worker")
    name = "keys/of/production/worker-number-01.key0"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(Path(public).read_bytes())
    assert len(name) == 40 and public_key(name) == public_key(public) != name.encode()


def test_without_an_endpoint_no_other_machine_reaches_it() -> None:
    try:
        with Publisher(build(4)) as publisher:
            assert publisher.endpoint == "tcp://127.0.0.1:5557"
    except Exception as error:  # somebody has that port: that it was asked for is what counts
        assert "tcp://127.0.0.1:5557" in str(error)


def test_what_others_chose_does_not_steer_a_terminal_nor_end_the_tail(capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"type": "BlockStored", "block_hashes": 7, "medium": "\x1b[2J", "token_ids": {b"k": [b"\1"]}}
    assert "\x1b" not in "".join(map(_shown, _lines(read(msgspec.msgpack.encode([1.0, [odd], {}])) | {
        "seq": 1, "topic": "", "status": "?"})))  # fmt: skip
    times: tuple[Any, ...] = (1e300, float("nan"), -1e18, "x", [])
    for ts in times:
        assert "damaged" in read(msgspec.msgpack.encode([ts, [], 0]))
    assert "damaged" in read(b"\x93\xcb" + bytes(8) + b"\x91" * 3_000 + b"\x90\xc0")


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\xff", b"\0\0\0\x01\xc1", b"\0\0\0\x0c\x94\xcb\x7f\xf0" + bytes(8)])
def test_a_damaged_recording_is_told_in_one_line(damage: bytes, tmp_path: Any, capsys: Any) -> None:
    path = tmp_path / "stream.qev"
    path.write_bytes(b"quire-events 1\n" + damage)
    assert events(["replay", str(path), "inproc://nowhere", "--speed", "0"]) == 2
    told = capsys.readouterr().err
    assert "record the stream again" in told and ("4294967295 bytes long" in told) == (damage == b"\xff" * 4)


def test_numbers_in_a_recording_are_checked(tmp_path: Any, capsys: Any) -> None:
    path = tmp_path / "stream.qev"
    for values in ([0.0, b"", -1, b""], [float("nan"), b"", 0, b""], [1e12, b"", 0, b""], [-1.0, b"", 0, b""]):
        body = msgspec.msgpack.encode(values)
        path.write_bytes(b"quire-events 1\n" + len(body).to_bytes(4, "big") + body)
        assert events(["replay", str(path), "inproc://nowhere", "--speed", "0"]) == 2
        assert "message 0 of" in capsys.readouterr().err


def test_reprs_are_short_and_have_no_tokens(tmp_path: Any) -> None:
    cache, index = build(16), Index()
    run(cache, 1, ids(range(77_000, 77_008)))
    with published(cache) as publisher, Follower(index) as follower:
        publisher.tell()
        sent(publisher)
        ((topic, seq, payload),) = fetch(publisher, number(0))
        index.add("w")
        index.hear("w", seq, payload)
        message = RecordedMessage(1.5, topic, seq, payload)
        things = [publisher, follower, index, message, Recording(tmp_path / "f"), Room(), Keys.make()]
        told = [repr(thing) for thing in [*things, index.find(ids(range(77_000, 77_008))), index.report("w")]]
    assert all(len(text) < 300 and "770" not in text for text in told), told
    assert told[0].startswith("Publisher(tcp://127.0.0.1:") and "1 batches published, 0 waiting" in told[0]
    assert told[1:4] == ["Follower(0 workers)", "Index(1 workers, 1 of them exact, 2 pages)",
                         f"RecordedMessage(0, b'', {len(payload)} bytes, at 1.500 s)"]  # fmt: skip
    assert "closed" in repr(publisher) and "ended" in repr(follower)


def test_the_command_line_speaks_curve(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    public, secret = create_certificates(tmp_path, "worker")
    mine, my_secret = create_certificates(tmp_path, "router")
    done = threading.Event()
    with published(build(16), room=Room(keys=Keys.read(secret).admitting([mine]))) as publisher:

        def tell() -> None:
            while not done.wait(0.02):
                publisher.tell(whole=True)

        teller = threading.Thread(target=tell)
        teller.start()
        how = ["--server", public, "--keys", my_secret, "--count", "1"]
        try:
            assert events(["tail", publisher.endpoint, *how]) == 0 and "[exact]" in capsys.readouterr().out
            assert events(["record", publisher.endpoint, str(tmp_path / "s.qev"), *how]) == 0
            assert events(["tail", publisher.endpoint, "--seconds", "0.2"]) == 0  # a stranger hears nothing
            assert capsys.readouterr().out.splitlines() == [f"1 batches in {tmp_path / 's.qev'}"]
        finally:
            done.set()
            teller.join()
    assert events(["replay", str(tmp_path / "s.qev"), ANY, "--client", mine]) == 2
    assert "add --keys FILE" in capsys.readouterr().err
