"""`quire events`: tail, record, replay, over real sockets."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ..events.lives import build, ids, run  # first: it skips all of this where a package is missing

# isort: split
from quire import Scope
from quire.cli import main as cli
from quire.events import Index, Publisher, Recording, Status


class Talker:
    """Publishes a request every time the last one was sent, until told to stop."""

    def __init__(self, **options: Any) -> None:
        self.cache = build(16, 16)
        self.publisher = Publisher(self.cache, "tcp://127.0.0.1:*", **options)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._talk)

    def _talk(self) -> None:
        turn = 0
        while not self._ended.wait(0.005):
            turn += 1
            run(self.cache, turn, ids(range(turn % 7 * 100, turn % 7 * 100 + 21)), scope=Scope(salt="pepper"))
            self.publisher.tell(whole=turn % 10 == 0)

    def __enter__(self) -> Talker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.publisher.close()


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_tail_prints_batches(encoding: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Talker(encoding=encoding, topic="kv@pod") as talker:
        assert cli.main(["events", "tail", talker.publisher.endpoint, "--count", "30", "--topic", "kv"]) == 0
        told = capsys.readouterr().out
        assert "stored" in told and "GPU group 0" in told and "(5 blocks)" in told and "kv@pod" in told
        assert "[exact]" in told and "cleared" in told and "pages published" in told
        assert cli.main(["events", "tail", talker.publisher.endpoint, "--count", "12", "--json"]) == 0
        batches = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        numbers = [batch["seq"] for batch in batches]
        assert numbers == list(range(numbers[0], numbers[0] + 12))
        assert any(event["type"] == "BlockStored" and event["token_ids"] for b in batches for event in b["events"])
        assert {batch["status"] for batch in batches} <= {"exact", "unknown"} and batches[-1]["status"] == "exact"


def test_a_recorded_stream_can_be_published_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recording, endpoint = tmp_path / "stream", "ipc://socket"  # a socket's whole path has 107 characters at most
    with Talker() as talker:
        assert cli.main(["events", "record", talker.publisher.endpoint, str(recording), "--count", "25"]) == 0
    assert "25 batches" in capsys.readouterr().out
    index = Index()
    index.add("w", mendable=False)
    for message in Recording(recording):
        index.hear("w", message.seq, message.payload)
    assert index.status("w") is Status.EXACT and index.pages("w")

    heard: list[int] = []
    listener = threading.Thread(
        target=lambda: heard.append(cli.main(["events", "record", endpoint, str(tmp_path / "copy"), "--count", "25"]))
    )
    listener.start()
    assert cli.main(["events", "replay", str(recording), endpoint, "--speed", "0"]) == 0
    listener.join(120)
    assert heard == [0]
    first, second = ([(m.topic, m.seq, m.payload) for m in Recording(path)] for path in (recording, tmp_path / "copy"))
    assert first == second


def test_bad_input_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["events", "tail", "nowhere"]) == 2
    assert "names no transport" in capsys.readouterr().err
    other = tmp_path / "other"
    other.write_bytes(b"something else entirely")
    assert cli.main(["events", "replay", str(other), "tcp://127.0.0.1:*"]) == 2
    assert "not a recorded stream" in capsys.readouterr().err
    assert cli.main(["events", "replay", str(tmp_path / "none"), "tcp://127.0.0.1:*"]) == 2
    assert "No such file" in capsys.readouterr().err
    assert cli.main(["events", "tail", "tcp://127.0.0.1:1", "--seconds", "0.01"]) == 0
    for words in (["tail", "tcp://127.0.0.1:1", "--count", "0"], ["replay", "x", "y", "--speed", "-1"], []):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["events", *words])


def test_a_cut_recording_says_where(tmp_path: Path) -> None:
    with Talker() as talker:
        assert cli.main(["events", "record", talker.publisher.endpoint, str(tmp_path / "a"), "--count", "3"]) == 0
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(whole[:-5])
    assert cli.main(["events", "replay", str(tmp_path / "b"), "tcp://127.0.0.1:*", "--speed", "0"]) == 2
