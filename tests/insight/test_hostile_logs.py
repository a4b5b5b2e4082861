"""Logs that nobody should have written: refused with what was asked, what is true and what to do, or survived, in
bounded memory and with work that grows as the log does."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from quire import InputError
from quire.cli.prompts import diff_command, findings_command, lint_command
from quire.insight.findings.alignment import Alignment, EqualRun, align
from quire.insight.findings.find import FindOptions, find_findings
from quire.insight.findings.one_way import Spellings
from quire.insight.findings.prompt_rows import prompt_log
from quire.insight.findings.prompt_rows.prompt_log import LogReader
from quire.trace.prompts.log_lines import LONGEST_LOG_LINE
from quire.trace.prompts.logged_prompts import LogFile, LoggedPrompt

TIME = 1_790_000_000
COMMANDS = {
    "findings": findings_command.main,
    "lint": lint_command.main,
    "diff": lambda words: diff_command.main([words[0], *words]),
}
REFUSED = [
    (b"[1e300, 2]", "a token id is 1e+300; token ids are whole numbers from 0 to 2147483647"),
    (b"[%s]" % b", ".join([b"2147483648"] * 300), "a token id is 2147483648; token ids are whole numbers"),
    (b"[%s]" % b",".join([b"1" + b"0" * 30] * 300), "a token id is 1" + "0" * 30 + "; token ids are whole"),
    (b"[1, 2, %s]" % (b"9" * 5000), "it has a number of thousands of digits; write numbers that are times or token"),
    (b"[5, -1]", "a token id is -1; token ids are whole numbers from 0 to 2147483647"),
    (b"[1.5, 2]", "a token id is 1.5; token ids are whole numbers"),
    (b"[1, NaN]", "a token id is nan; token ids are whole numbers"),
    (b"[true]", "a token id is true or false; token ids are whole numbers"),
    (b'[1, "a secret"]', "a token id is text; token ids are whole numbers"),
    (b"[[1, [2]]]", "a token id is a list; token ids are whole numbers"),
    (b"[%s]" % b",".join([b"[7]"] * 65_537), "it has 65,537 prompts, and a line may have 65,536; write one request"),
    (b"[]", "its prompt is an empty list; give text, token ids, or a list of them"),
    (b"[" * 100_000 + b"]" * 100_000, "it is not JSON (RecursionError); write one JSON object per line"),
    (b'"' + b"\xff" * 9 + b'"', "is no UTF-8; write the log as UTF-8, or pass --skip-bad"),
]  # fmt: skip
TIMES = [
    ("-1", "its time, 'time', is -1; give seconds or milliseconds since the epoch, or ISO 8601"),
    ("1e300", "its time, 'time', is 1e+300; give seconds"),
    ("NaN", "its time, 'time', is nan; give seconds"),
    ("-Infinity", "its time, 'time', is -inf; give seconds"),
    ("1" + "0" * 400, "its time, 'time', is 1000000000000000000000000000000000000...; give seconds"),
    ('"nan"', "its time, 'time', is 'nan'; give seconds"),
    ('"2026-02-31"', "its time, 'time', is '2026-02-31'; give seconds"),
    ("{}", "its time, 'time', is {}; give seconds"),
    ("null", "it has no time: the field 'time' is not there; add it, or pass --skip-bad"),
]


def lines(count: int = 20) -> bytes:
    """A log with nothing wrong."""
    text = list(range(1000, 1300))
    return b"".join(json.dumps({"time": TIME + n, "prompt": [*text, n]}).encode() + b"\n" for n in range(count))


def line(prompt: bytes, time: str = str(TIME)) -> bytes:
    return b'{"time": %s, "prompt": %s}\n' % (time.encode(), prompt)


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """What a command says of a log, and its exit status."""

    def ask(text: bytes, *words: str, command: str = "findings") -> tuple[int, str]:
        path = tmp_path / "log.jsonl"
        path.write_bytes(text)
        status = COMMANDS[command]([str(path), *words])
        out, err = capsys.readouterr()
        return status, err if status == 2 else out + err

    return ask


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("prompt", "why"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_prompt_is_refused_and_can_be_left_out(
    told: Callable[..., tuple[int, str]], prompt: bytes, why: str, command: str
) -> None:
    text = lines(3) + line(prompt)
    status, said = told(text, command=command)
    assert status == 2 and said.startswith(f"quire {command}: log.jsonl line 4: ") and why in said
    assert len(said) < 300 and "secret" not in said
    status, said = told(text, "--skip-bad", command=command)
    assert status == 0 and "3 " in said


@pytest.mark.parametrize(("time", "why"), TIMES)
def test_a_bad_time_is_refused(told: Callable[..., tuple[int, str]], time: str, why: str) -> None:
    status, said = told(lines(3) + line(b"[1, 2]", time))
    assert status == 2 and f"log.jsonl line 4: {why}" in said
    status, said = told(line(b"[1, 2]", time) + lines(3))  # the first line decides which field has it
    assert status == 2 and "log.jsonl line 1: " in said and ("--time-unit" in said or "--time-field" in said)


@pytest.mark.parametrize("times", [[TIME] * 60, list(range(TIME + 60, TIME, -1)), range(TIME, TIME * 9, TIME // 9)])
def test_any_order_of_times_will_do(told: Callable[..., tuple[int, str]], times: Iterable[int]) -> None:
    text = list(range(1000, 1300))
    log = b"".join(json.dumps({"time": time, "prompt": [n, *text]}).encode() + b"\n" for n, time in enumerate(times))
    assert told(log)[0] == 0


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (b"", "it has no requests"),
        (bytes(5000), "log.jsonl line 1: it is not JSON"),
        (b"{}\n" * 9, "line 1: it has neither messages nor a prompt"),
        (lines()[:-200], "line 20: it is not JSON (JSONDecodeError)"),
        (gzip.compress(random.Random(1).randbytes(99) + lines(300))[:-900], "log.jsonl"),
        (gzip.compress(lines(900), 0)[:-900], "log.jsonl: the gzip data ends or breaks here"),
        (b"\x1f\x8b" + lines(), "the gzip data ends or breaks here"),
        (lines().decode().encode("utf-16"), "line 1: "),
        (gzip.compress(lines(3) + b"[" + b" " * LONGEST_LOG_LINE), "line 4: it is longer than 33,554,432 bytes"),
        (b"a" + b" " * 4000 + b"!", "line 1: it is not JSON"),  # nearly the header of a table
        ((b"a" + b" " * 90) * 40, "line 1: it is not JSON"),
    ],
    ids=range(11),
)
def test_what_is_no_log_is_refused(told: Callable[..., tuple[int, str]], log: bytes, why: str) -> None:
    status, said = told(log)
    assert status == 2 and why in said and "; " in said


def test_sizes_may_have_any_number_of_digits(told: Callable[..., tuple[int, str]]) -> None:
    for memory, block in (("1", "1"), (str(10**30), str(1 << 24))):
        assert told(lines(80), "--memory", memory, "--block-size", block)[0] == 0
    for command in ("findings", "diff"):
        status, said = told(lines(80), "--block-size", "1" + "0" * 30, command=command)
        assert status == 2 and "no prompt is as long as a block; give at most 16777216" in said


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert findings_command.main([str(pipe)]) == 2  # nobody writes, and nobody waits
    assert "it can be read once, and some prompts are looked at again" in capsys.readouterr().err


def test_lint_reads_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = b"".join(line(json.dumps([n, *range(1000, 1300)]).encode(), str(TIME + n)) for n in range(9))
    writer = threading.Thread(target=lambda: pipe.write_bytes(text))
    writer.start()
    assert lint_command.main([str(pipe)]) == 1
    writer.join()
    assert "tokens per request are lost" in capsys.readouterr().out


def test_a_log_that_changes_while_it_is_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines())
    file, reader = LogFile(str(path)), LogReader()
    for prompt in file.prompts():
        reader.add(prompt)
    log = reader.finish()
    assert [len(one) for one in findings_command.tokens_again(file, log, [3, 5]).values()] == [301, 301]
    for text in (lines(4), lines().replace(b"1100, ", b"")):  # cut, or written anew
        path.write_bytes(text)
        with pytest.raises(InputError, match=r"its line 6 is another than before.*; give a copy of it"):
            findings_command.tokens_again(file, log, [5])


def test_many_tokens_in_one_prompt_take_bounded_memory(told: Callable[..., tuple[int, str]]) -> None:
    log = lines() + line(b"[%s]" % b",".join(b"%d" % (n % 90_000) for n in range(200_000)))
    tracemalloc.start()
    try:
        assert told(log)[0] == 0
        assert tracemalloc.get_traced_memory()[1] < 100 * 200_000
    finally:
        tracemalloc.stop()


def test_applications_without_number_are_counted_and_few_names_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_log, "MOST_NAMES", 500)
    reader = LogReader()
    text = np.arange(1000, 1040, dtype=np.int32)
    tracemalloc.start()
    try:
        for n in range(1200):
            name = f"{n // 2}" + "x" * 100_000
            reader.add(LoggedPrompt(text, float(n), name=name, line=n + 1))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    log = reader.finish()
    assert len(set(log.names.tolist())) == 600 and (np.bincount(log.names) == 2).all()
    shown = [one for one in log.name_list if one is not None]
    assert len(shown) == 500 and {len(one) for one in shown} == {200} and shown[0].endswith("x...")
    assert (
        find_findings(log, FindOptions(), lambda numbers: dict.fromkeys(numbers, text), lambda *_: None).requests
        == 1200
    )


def steps(work: Callable[[], Any]) -> int:
    """Lines of Python that it runs through."""
    count = 0

    def see(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def shuffled(pieces: int) -> Alignment:
    """Two prompts of the same pieces in another order."""
    dice = random.Random(pieces)
    order = dice.sample(range(pieces), pieces)
    mine, other = (np.repeat(np.array(one), 2) * 2 + np.tile([0, 1], pieces) for one in (range(pieces), order))
    sizes = np.full(2 * pieces, 20, np.int32)
    return align(mine.astype(np.int32), sizes, other.astype(np.int32), sizes)


def spelled(texts: int) -> Callable[[], None]:
    """One beginning of a text, and many ends."""

    def learn() -> None:
        pairs = []
        for n in range(texts):
            mine, other = (np.array([1, 2, 3, 100 + one, 4, 5, 6], np.int32) for one in (n, n + 1))
            sizes = np.full(7, 20, np.int32)
            aligned = align(mine, sizes, other, sizes)
            aligned.kept = [EqualRun(4, 4, 3, 60)]
            aligned.common = 2  # what stands there begins with 3, each time
            pairs.append(aligned)
        written = Spellings(pairs, 64)
        row = np.array([1, 2, *[3, 99] * texts, 4, 5], np.int32)
        written.row((row, np.full(len(row), 20, np.int32)))

    return learn


@pytest.mark.parametrize("few", [lambda n: lambda: (shuffled(n).swapped, shuffled(n).dense), spelled])
def test_twice_as_much_takes_twice_the_work(few: Callable[[int], Callable[[], Any]]) -> None:
    assert steps(few(160)) < 3 * steps(few(80))


def test_what_is_kept_in_order_is_as_much_as_can_be() -> None:
    dice = random.Random(4)
    for _ in range(300):
        pieces = [dice.randrange(1, 9) for _ in range(dice.randrange(1, 9))]  # in chunks of 20 tokens
        texts = [list(range(100 * nth, 100 * nth + size)) for nth, size in enumerate(pieces)]
        order = dice.sample(range(len(pieces)), len(pieces))
        mine, other = (np.array([-2 - at, *(chunk for nth in one for chunk in texts[nth])], np.int32)
                       for at, one in enumerate((range(len(pieces)), order)))  # fmt: skip
        pair = align(mine, np.full(len(mine), 20, np.int32), other, np.full(len(other), 20, np.int32))
        most = max(
            sum(pieces[nth] for nth in some)
            for count in range(len(pieces) + 1) for some in combinations(range(len(pieces)), count)
            if sorted(some, key=order.index) == list(some)
        )  # fmt: skip
        assert sum(run.tokens for run in pair.kept) == 20 * most
        assert all(a.mine < b.mine and a.other < b.other for a, b in pairwise(pair.kept))


def test_runs_that_change_places_are_those_that_cross_another() -> None:
    dice = random.Random(3)
    for _ in range(500):
        places = dice.sample(range(30), dice.randrange(1, 12))
        runs = [EqualRun(nth * 3, place * 3, 2, dice.randrange(1, 5)) for nth, place in enumerate(places)]
        pair = align(*(np.zeros(0, np.int32),) * 4)
        pair.runs, pair.other = runs, np.zeros(100, np.int32)
        crossing = [a for a in runs if any((a.mine < b.mine) != (a.other < b.other) for b in runs if a is not b)]
        assert pair.swapped == crossing
