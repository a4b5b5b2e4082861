"""Incidents of a running cache: what is kept, when a file is written, and that whatever goes wrong harms nobody."""

from __future__ import annotations

import gc
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import (
    BrokenInvariant,
    Cache,
    CacheConfig,
    InputError,
    LayerGroup,
    Request,
    Span,
    StateError,
    TierConfig,
    check,
)
from quire.cli.main import main
from quire.core.colder_tiers import registry_of
from quire.incidents import IncidentPlayer, Incidents, Lines, LoosePlayer, load
from quire.tiers.process import FolderLock
from tests.incidents.lives import state_of

CONFIG = CacheConfig([TierConfig("device", 12)], 4, max_sequences=8, max_length=64)


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tokens(first: int, count: int) -> Any:
    return np.arange(first, first + count, dtype=np.int32)


def made(folder: Path, clock: Clock | None = None, **options: Any) -> tuple[Cache, Incidents]:
    incidents = Incidents(folder, thread=False, apart=False, **options)
    return Cache(CONFIG, clock=clock or Clock(), watchers=[incidents]), incidents


def served(cache: Cache, name: str, first: int, length: int = 9) -> None:
    batch = cache.add_sequence_batch([Request(name, tokens(first, length))])
    cache.commit(batch.sequences)
    cache.release(batch.sequences[0])


def test_a_saved_file_plays_to_the_state_it_was_saved_in(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    for nth in range(6):
        served(cache, f"r{nth}", 50 * (nth % 4))
    player = IncidentPlayer(load(incidents.save("why not")))
    player.run()
    assert state_of(player.cache) == state_of(cache) and player.incident.reason == "why not"


def test_a_file_has_the_order_that_its_cache_had(tmp_path: Path) -> None:
    """Also where a later version chooses another; older files say "auto", which was LRU with windows."""
    groups = (LayerGroup("full", pool="kv"), LayerGroup("local", window=8, pool="kv"))
    cache = Cache(
        replace(CONFIG, groups=groups), watchers=[incidents := Incidents(tmp_path, thread=False, apart=False)]
    )
    assert cache.config.eviction == "auto" and cache.config.order == "adaptive"
    path = incidents.save("why not")
    assert load(path).config.eviction == "adaptive"
    header, *lines = gzip.decompress(path.read_bytes()).splitlines()
    header = header.replace(b'"eviction":"adaptive"', b'"eviction":"auto"')
    old = tmp_path / "old.gz"
    old.write_bytes(gzip.compress(b"\n".join([header, *lines]) + b"\n"))
    assert b'"auto"' in header and load(old).config.eviction == "lru"


def test_what_is_refused_is_refused_as_ever_and_not_kept(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    batch = cache.add_sequence_batch([Request("a", tokens(0, 5))])
    for wrong in (
        lambda: cache.grow([7], tokens(0, 1)), lambda: cache.commit("nobody"), lambda: cache.release([3]),  # type: ignore[list-item,arg-type]
        lambda: cache.claim([Request("a", tokens(0, 5))]), lambda: cache.claim(5), lambda: cache.hint([1], "soon"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises((InputError, StateError)):
            wrong()
    cache.release(batch.sequences[0])
    assert [call[0] for call in load(incidents.save()).calls] == ["add", "release"]


def test_a_request_that_was_refused_first_is_told_whole_later(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    first = cache.add_sequence_batch([Request("a", tokens(0, 5))]).sequences[0]
    again = Request("a", tokens(30, 6))
    with pytest.raises(StateError):
        cache.claim([again])
    cache.release(first)
    with cache.claim([again]) as claims:
        cache.admit(claims)
    player = IncidentPlayer(load(incidents.save()))
    player.run()
    assert state_of(player.cache) == state_of(cache)


def test_texts_that_grew_in_vain_or_were_trimmed_are_found_again(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    first, other = cache.add_sequence_batch([Request("a", tokens(0, 8)), Request("b", tokens(500, 36))]).sequences
    cache.commit([first, other])
    assert cache.grow([first], tokens(8, 8)) is None  # there is no room
    cache.release(other, store=False)
    cache.grow([first], tokens(70, 3))
    cache.commit(first, 8)
    cache.trim(first, 2)
    cache.grow([first], tokens(80, 5))
    cache.commit(first)
    cache.release(first)
    text = np.concatenate([tokens(0, 8), tokens(70, 1), tokens(80, 5), tokens(900, 2)])
    found = cache.add_sequence_batch([Request("again", text)]).sequences[0]
    assert found.start == 14
    player = IncidentPlayer(load(incidents.save()))
    player.run()
    assert state_of(player.cache) == state_of(cache)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_claim_that_was_lost_is_lost_again(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    served(cache, "a", 0)
    kept = cache.claim([Request("b", tokens(0, 9))])
    lost = cache.claim([Request("c", tokens(0, 9))])
    del lost
    gc.collect()
    assert cache.num_free() > 0 and len(cache.open_claims()) == 1
    kept.drop()
    for nth in range(5):  # what the lost one held is evicted
        served(cache, f"d{nth}", 90 + 50 * nth, 17)
    player = IncidentPlayer(load(incidents.save()))
    player.run()
    assert state_of(player.cache) == state_of(cache)


def test_a_ring_that_is_full_forgets_its_beginning_and_says_so(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path, max_bytes=3000)
    for nth in range(40):
        served(cache, f"r{nth}", 50 * nth)
        incidents.work()
    assert incidents._ring.num_bytes <= 3000 and "from the middle" in repr(incidents)
    found = load(incidents.save())
    assert 0 < len(found.calls) < 120
    with pytest.raises(StateError, match="its first calls were dropped"):
        IncidentPlayer(found)
    assert LoosePlayer(found.config).play(found.calls).admitted > 0


def test_a_broken_invariant_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, incidents = made(tmp_path)
    served(cache, "a", 0)

    def broken(*_: object) -> None:
        raise BrokenInvariant("of no kind that there is")

    monkeypatch.setattr("quire.core.cache.clear_tree", broken)
    with pytest.raises(BrokenInvariant):
        cache.clear()
    (path,) = incidents.work()
    assert path.name.endswith("-broken.incident.gz") and "clear raised BrokenInvariant" in load(path).reason


def test_a_call_that_cannot_be_noted_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, incidents = made(tmp_path)
    served(cache, "a", 0)
    monkeypatch.setattr("quire.incidents.record.recorded_calls.moved", lambda _: 1 / 0)
    served(cache, "b", 50)
    monkeypatch.undo()
    incidents.work()
    served(cache, "c", 90)
    assert "ZeroDivisionError" in str(incidents.error) and load(incidents.save()).start == "cut"


def test_no_step_for_long_is_written_once(tmp_path: Path) -> None:
    clock = Clock()
    cache, incidents = made(tmp_path, clock, lines=Lines(hang=30))
    sequence = cache.add_sequence_batch([Request("a", tokens(0, 5))]).sequences[0]
    assert incidents.work() == []
    clock.now = 31.0
    (path,) = incidents.work()
    assert path.name.endswith("-hang.incident.gz") and load(path).reason == "hang: no step for 31 s"
    clock.now = 3000.0
    assert incidents.work() == []
    cache.grow(sequence, tokens(5, 1))
    assert incidents.work() == []
    clock.now = 3100.0
    assert len(incidents.work()) == 1  # there was a step, and then none again
    cache.release(sequence)
    clock.now = 9000.0
    assert incidents.work() == []


def test_a_request_that_waits_too_long_is_written(tmp_path: Path) -> None:
    clock = Clock()
    cache, incidents = made(tmp_path, clock, lines=Lines(waiting=5))
    cache.add_sequence_batch([Request("large", tokens(0, 40))])
    waits = Request("waits", tokens(100, 40))
    for clock.now in (1.0, 5.0, 5.9):
        cache.add_sequence_batch([waits])
    assert incidents.work() == []
    clock.now = 6.5
    cache.add_sequence_batch([waits])
    assert [path.name.split("-")[1].split(".")[0] for path in incidents.work()] == ["waiting"]


def test_few_hits_are_written_when_there_were_more_before(tmp_path: Path) -> None:
    clock = Clock()
    cache, incidents = made(tmp_path, clock, lines=Lines(hit_rate=0.5))
    for nth in range(80):
        served(cache, f"same {nth}", 0)
    assert incidents.work() == []
    for nth in range(80):
        clock.now += 1.0
        served(cache, f"other {nth}", 100 * nth)
    (path,) = incidents.work()
    assert load(path).reason.startswith("hit rate: 0.")


def test_lines_that_are_none_are_refused() -> None:
    for wrong in ({"hang": 0}, {"hit_rate": 1.5}, {"waiting": "long"}, {"hang": True}):
        with pytest.raises(InputError, match="it is not a line to cross"):
            Lines(**wrong)
    with pytest.raises(InputError, match="it is not a time"):
        Incidents(keep="soon")


def test_only_one_hears_of_calls(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two of them hear of its calls"):
        Cache(CONFIG, watchers=[Incidents(tmp_path), Incidents(tmp_path)])
    incidents = Incidents(tmp_path, thread=False)
    Cache(CONFIG, watchers=[incidents])
    with pytest.raises(StateError, match="they watch a cache already"):
        Cache(CONFIG, watchers=[incidents])
    with pytest.raises(InputError, match="has no `admitted`"):
        Cache(CONFIG, watchers=["nobody"])  # type: ignore[list-item]


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache, incidents = made(tmp_path / "file")
    served(cache, "a", 0)
    with pytest.raises(StateError, match="saving an incident"):
        incidents.save()
    served(cache, "b", 0)


def test_a_cache_without_incidents_has_its_own_methods() -> None:
    assert not {"grow", "commit", "claim", "_asked"} & vars(Cache(CONFIG)).keys()


def test_files_that_nobody_asked_for_are_few_and_the_first_stays(tmp_path: Path) -> None:
    clock = Clock()
    cache, incidents = made(tmp_path, clock, lines=Lines(hang=30))
    sequence = cache.add_sequence_batch([Request("a", tokens(0, 5))]).sequences[0]
    asked, written = incidents.save(), list[Path]()
    for _ in range(20):
        clock.now += 1000.0
        written += incidents.work()
        cache.commit(sequence)
        cache.grow(sequence, tokens(5, 1))
        incidents.work()
    assert len(written) == 20 and len(list(tmp_path.iterdir())) == 17 and asked.exists()
    assert written[0].exists() and not written[1].exists() and written[-1].exists()


def test_a_call_that_raises_each_step_is_written_once_and_another_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    cache, incidents = made(tmp_path, clock, lines=Lines(hang=None))
    served(cache, "a", 0)

    def broken(*_: object) -> None:
        raise BrokenInvariant("of no kind that there is")

    monkeypatch.setattr("quire.core.cache.clear_tree", broken)
    monkeypatch.setattr("quire.core.cache.release_sequence", broken)
    sequence = cache.add_sequence_batch([Request("b", tokens(50, 5))]).sequences[0]
    written = []
    for _ in range(500):
        clock.now += 0.5
        for call in (cache.clear, lambda: cache.release([sequence])):
            with pytest.raises(BrokenInvariant):
                call()
        written += incidents.work()
    assert [load(path).reason.split()[1] for path in written] == ["clear", "release"]
    clock.now += 300
    with pytest.raises(BrokenInvariant):
        cache.clear()
    assert len(incidents.work()) == 1


def test_an_invariant_that_a_check_finds_broken_is_written(tmp_path: Path) -> None:
    cache, incidents = made(tmp_path)
    served(cache, "a", 0)
    check(cache)
    assert incidents.work() == []
    registry_of(cache).free_rows.pop()
    with pytest.raises(BrokenInvariant, match="rows are lost"):
        check(cache)
    (path,) = incidents.work()
    assert load(path).reason.startswith("broken: check raised BrokenInvariant")


def test_requests_that_only_wait_are_a_hang(tmp_path: Path) -> None:
    clock = Clock()
    cache, incidents = made(tmp_path, clock, lines=Lines(hang=30))
    held = cache.add_sequence_batch([Request("a", tokens(0, 44))]).sequences[0]
    cache.commit(held)
    hold = cache.hold(held, Span(0, 44))
    cache.release(held)
    waits, written = Request("waits", tokens(100, 40)), list[Path]()
    for _ in range(40):
        clock.now += 1.0
        cache.add_sequence_batch([waits])
        written += incidents.work()
    assert cache.num_sequences == 0
    assert [load(path).reason for path in written] == ["hang: no step for 31 s, and requests ask in vain"]
    assert hold is not None
    cache.drop(hold)
    cache.add_sequence_batch([waits])
    cache.release(cache.sequence("waits"))
    clock.now += 1.0
    cache.add_sequence_batch([Request("never", tokens(0, 60))])  # and is given up
    for _ in range(100):
        clock.now += 1.0
        assert incidents.work() == []


def test_requests_that_wait_where_no_cache_sees_them_are_a_hang(tmp_path: Path) -> None:
    clock = Clock()
    _, incidents = made(tmp_path, clock, lines=Lines(hang=30))
    queue = ["a run"]
    incidents.num_waiting = queue.__len__
    assert incidents.work() == []
    clock.now = 31.0
    assert len(incidents.work()) == 1


@pytest.mark.parametrize("wrong", [b"", b"no gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\xff"])
def test_what_is_no_incident_is_refused(tmp_path: Path, wrong: bytes) -> None:
    (tmp_path / "x").write_bytes(wrong)
    with pytest.raises(InputError, match="incident"):
        load(tmp_path / "x")


PROGRAM = """if True:
    import sys, numpy as np, quire
    from quire.incidents import Incidents
    kept = Incidents(sys.argv[1]); kept.listen()
    cache = quire.Cache(quire.CacheConfig([quire.TierConfig('device', 8)], 4, max_length=32), watchers=[kept])
    batch = cache.add_sequence_batch([quire.Request('a', np.arange(6, dtype=np.int32))])
    print('ready', flush=True)
    sys.stdin.read(); kept.close()
"""


@contextmanager
def server(folder: Path, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that keeps incidents there."""
    command = [sys.executable, "-c", before + PROGRAM, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What `quire incident save` says."""
    status, printed = main(["incident", "save", str(folder)]), capsys.readouterr()
    return status, (printed.err if status else printed.out).strip()


def test_a_server_that_is_told_writes_one(tmp_path: Path) -> None:
    """SIGUSR2, the thread, and the process that writes: all real."""
    with server(tmp_path) as process:
        command = [sys.executable, "-m", "quire.cli", "incident", "save", str(tmp_path)]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert int((tmp_path / "pid").read_text()) == process.pid
        process.communicate()
    incident = load(found)
    assert incident.reason == "signal" and [call[0] for call in incident.calls] == ["add"]
    assert found.endswith("-asked.incident.gz")
    assert not (tmp_path / "pid").exists() and os.stat(found).st_mode & 0o077 == 0
    IncidentPlayer(incident).run()


def test_a_stranger_with_a_dead_servers_number_is_sent_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(tmp_path) as process:
        process.kill()
        process.wait()
    status, said = asked(tmp_path, capsys)
    assert status == 2 and f"process {process.pid}" in said
    with subprocess.Popen([sys.executable, "-c", "open(0).read()"], stdin=subprocess.PIPE, text=True) as stranger:
        (tmp_path / "pid").write_text(f"{stranger.pid}\n")
        status, said = asked(tmp_path, capsys)
        assert status == 2 and f"process {stranger.pid}" in said and "does not keep them any more" in said
        with closing(FolderLock(tmp_path, name="incidents.lock")):  # a server of another machine has the folder
            assert "it is not process" in asked(tmp_path, capsys)[1]
        stranger.communicate("")
    assert stranger.returncode == 0, "SIGUSR2 would have ended it"


def test_who_asks_stops_waiting_when_the_server_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = "import signal, os, quire.incidents.incidents as i\n"
    ends += "i.Incidents._signalled = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    with server(tmp_path, ends):
        assert "ended before it wrote" in asked(tmp_path, capsys)[1]


def test_two_servers_keep_no_incidents_in_one_folder(tmp_path: Path) -> None:
    with server(tmp_path) as process:
        before = signal.getsignal(signal.SIGUSR2)
        with pytest.raises(StateError, match=f"process {process.pid} .* has it open; .* its own folder"):
            Incidents(tmp_path, thread=False).listen()
        assert signal.getsignal(signal.SIGUSR2) is before and (tmp_path / "pid").read_text() == f"{process.pid}\n"


def test_no_server_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = asked(tmp_path, capsys)
    assert status == 2 and "no server keeps any there" in said
