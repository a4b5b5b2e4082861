"""Two processes: `quire prefill` computes, `quire chat --prefill-peer` decodes; its words are those of one process."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("msgspec")

from quire.cli import chat, prefill  # noqa: E402

from ..net.certificates import Authority  # noqa: E402

SECRET = "a secret of at least sixteen bytes"
BYTES = re.compile(r"([\d,]+) bytes from the peer")
Say = Callable[[str], None]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_SECRET", SECRET)


class Prefill:
    """The other process."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "quire.cli.main", "prefill", "--listen", "127.0.0.1:0", *options]
        shared = os.environ | {"QUIRE_SECRET": SECRET}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=shared)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.way = ["--prefill-peer", self.address]

    def end(self) -> str:
        """Ask it to go; what it has noted."""
        self.process.terminate()
        return self.process.communicate(timeout=240)[1]


@pytest.fixture(scope="module")
def other(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefill]:
    """Inside TLS, where there is a command that makes certificates."""
    options, way = ["--model", folder], []
    if shutil.which("openssl") is not None:
        tls = Authority(tmp_path_factory.mktemp("ca")).issue("other")
        options += ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
        way = ["--tls-ca", str(tls.ca)]
    made = Prefill(*options)
    made.way = ["--prefill-peer", made.address, *way]
    yield made
    made.process.kill()
    made.process.communicate(timeout=240)


QUESTIONS = "Good morning, how are you?\nAnd now, what shall we do today?\n/new\nGood morning, how are you?\n"


@pytest.mark.parametrize("options", [[], ["--temperature", "1.0", "--seed", "3"], ["--drafts", "3"]])
def test_the_words_are_those_of_one_process(
    options: list[str],
    folder: str,
    other: Prefill,
    say: Say,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["--model", folder, "--max-tokens", "12", *options]
    say(QUESTIONS)
    assert chat.main(common) == 0
    alone = capsys.readouterr()
    say(QUESTIONS)
    assert chat.main([*common, *other.way]) == 0
    both = capsys.readouterr()
    assert both.out == alone.out != "" and "computed here" not in both.err
    sent = [int(number.replace(",", "")) for number in BYTES.findall(both.err)]
    assert len(sent) >= 2 and sent[1] < 2 * sent[0], "of the second prompt only what was new"
    assert other.process.poll() is None


def test_another_model_does_not_fit(
    folder: str,
    other: Prefill,
    say: Say,
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("Hello\n")
    assert chat.main(["--model", folder, "--dtype", "bfloat16", *other.way]) == 0
    notes = capsys.readouterr().err
    assert "computed here: " in notes and "dtype: 'torch.float32' here, 'torch.bfloat16' there" in notes


def test_another_secret_is_refused(
    folder: str, other: Prefill, say: Say, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("QUIRE_SECRET", SECRET + "!")
    say("Hello\n")
    assert chat.main(["--model", folder, *other.way]) == 0
    assert "computed here: " in capsys.readouterr().err


def test_bad_options(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("QUIRE_SECRET", raising=False)
    short = tmp_path / "short"
    short.write_text("short\n")
    for main, options, words in (
        (prefill.main, [], "no secret was given; put at least 16 bytes"),
        (prefill.main, ["--secret-file", str(tmp_path / "none")], "No such file"),
        (prefill.main, ["--secret-file", str(short)], "16"),
        (chat.main, ["--prefill-peer", "127.0.0.1:9"], "no secret was given"),
        (chat.main, ["--prefill-peer", "127.0.0.1:9", "--secret-file", str(short)], "16"),
    ):
        assert main(["--model", folder, *options]) == 2
        assert words in capsys.readouterr().err
    monkeypatch.setenv("QUIRE_SECRET", SECRET)
    assert prefill.main(["--model", folder, "--listen", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_what_is_wrong_with_the_way_is_told_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Secret, address, port, certificates: there is no model in that folder, and nobody finds out."""
    junk, short = tmp_path / "junk.pem", tmp_path / "short"
    junk.write_text("no certificate")
    short.write_text("short")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        for main, options, words in (
            (prefill.main, ["--secret-file", str(short)], "it needs 16 bytes or more"),
            (prefill.main, ["--listen", "nowhere"], "it is not host:port"),
            (prefill.main, ["--listen", busy], "choose a free address"),
            (prefill.main, ["--tls-ca", str(junk)], "give PEM files"),
            (prefill.main, ["--tls-cert", str(junk), "--tls-key", str(junk)], "give PEM files"),
            (chat.main, ["--prefill-peer", "127.0.0.1:9", "--secret-file", str(short)], "it needs 16 bytes or more"),
            (chat.main, ["--prefill-peer", "nowhere"], "it is not host:port"),
            (chat.main, ["--prefill-peer", "127.0.0.1:9", "--patience", "0"], "give numbers above 0"),
            (chat.main, ["--prefill-peer", "127.0.0.1:9", "--tls-ca", str(junk)], "give PEM files"),
            (chat.main, ["--prefill-peer", "127.0.0.1:9", "--tls-cert", str(junk)], "only one of certificate and key"),
        ):
            assert main(["--model", str(tmp_path / "no model"), *options]) == 2
            told = capsys.readouterr().err
            assert words in told and "no model" not in told


def test_it_goes_on_alone_when_the_other_is_gone(
    folder: str,
    other: Prefill,
    say: Say,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["--model", folder, "--max-tokens", "12"]
    say(QUESTIONS)
    assert chat.main(common) == 0
    alone = capsys.readouterr()
    notes = other.end()
    assert other.process.returncode == 0 and notes.count("delivered") in (0, 9)  # 0: this test was run alone
    say(QUESTIONS)
    assert chat.main([*common, *other.way]) == 0
    both = capsys.readouterr()
    assert both.out == alone.out and both.err.count("computed here: ") == 3
