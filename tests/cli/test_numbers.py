"""Numbers of the command line: what is no number, has no end or is below 0 is refused, and not compared with."""

from __future__ import annotations

import pytest

from quire.cli.main import main

PLACES = (
    ("lint log.jsonl", "--allow"), ("diff old.jsonl new.jsonl", "--allow"),
    ("replay sample", "--prefetch-wait"), ("replay sample", "--disk-latency"), ("sweep sample", "--prefetch-wait"),
    ("plan sample --model llama-3-8b", "--worker-price"), ("plan sample --model llama-3-8b", "--host-price"),
    ("incident play file", "--speed"), ("incident play file", "--from"), ("serve --model none", "--patience"),
    ("serve --model none", "--route-seconds"), ("serve --model none", "--replica-gpus"),
    ("chat --model none", "--patience"), ("events record tcp://127.0.0.1:1", "--seconds"),
)  # fmt: skip


@pytest.mark.parametrize(("command", "option"), PLACES)
@pytest.mark.parametrize("number", ["nan", "inf", "-1", "much"])
def test_a_number_that_is_none_is_refused(
    command: str, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--allow nan` let every change pass: nothing is above it."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), f"{option}={number}"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and option in told and repr(number) in told, told


@pytest.mark.parametrize("command", ["plan sample --model llama-3-8b", "fleet sample", "serve --model none"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_share_that_is_no_number_is_refused(command: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), f"--deadlines={number}"])
    assert ended.value.code == 2 and "is not a finite number" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["lint none.jsonl", "diff none.jsonl none.jsonl"])
def test_whole_and_broken_numbers_are_taken(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number in ("0", "0.5", "1e3"):
        assert main([*command.split(), "--allow", number]) == 2
        assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["lint log.jsonl", "findings log.jsonl", "trace make log.jsonl -o made.jsonl"])
@pytest.mark.parametrize("rate", ["nan", "inf", "-1", "0", "0/h"])
def test_a_rate_that_is_none_is_refused(command: str, rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), f"--rate={rate}"]) == 2
    assert ": it is not a rate; give requests per second, above 0" in capsys.readouterr().err
