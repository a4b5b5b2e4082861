"""`quire disagg demo`: two processes, real bytes, the table, and a crash."""

from __future__ import annotations

import pytest

from quire.cli import disagg


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert disagg.main(["demo", "--scale", "8", *words]) == 0
    return capsys.readouterr().out


def test_it_shows_what_each_group_saves(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys)
    assert f"{99_975_168 // 8:,}" in out and f"{309_166_080 // 8:,}" in out and "67.7 % less" in out
    assert "0 wrong pages, first token 4711" in out


def test_it_recovers_when_the_sender_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "--kill", "sender")
    assert "The sender was killed in the middle" in out and "[320, 20, 7] and [320, 20, 7]" in out
    assert "0 wrong pages" in out


def test_it_recovers_when_the_receiver_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "--kill", "receiver")
    assert "A new receiver asked: delivered. Pages still held: [0, 0, 0]." in out


def test_it_says_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert disagg.main([]) == 2
    assert disagg.main(["--help"]) == 0
    assert "--kill" in capsys.readouterr().out
