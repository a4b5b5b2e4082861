"""How `quire replay` and `quire sweep` end when something outside ends them: one line, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

QUIRE = [sys.executable, "-m", "quire.cli"]
HEAR_CTRL_C = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a job in the background does not
)
RUN = "import sys; from quire.cli.main import main; sys.exit(main(sys.argv[1:]))"
ONE = ["replay", "sample", "--limit", "20", "--block-size", "512"]


def ended(words: list[str], **how: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*QUIRE, *words], stderr=subprocess.PIPE, text=True, timeout=240, **how)  # type: ignore[call-overload, no-any-return]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_device_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = ended([*ONE, "--json"], stdout=full)
    assert done.returncode == 1
    assert done.stderr == "quire replay: standard output: No space left on device; write it elsewhere\n"


def test_a_pipe_whose_reader_has_enough_is_no_word() -> None:
    read, write = os.pipe()
    os.close(read)
    done = ended([*ONE, "--json"], stdout=write)
    os.close(write)
    assert done.returncode == 141 and done.stderr == ""


@pytest.mark.parametrize("word", ["replay", "sweep"])
def test_standard_input_that_says_nothing_is_one_line(word: str) -> None:
    done = ended([word, "-"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith(f"quire {word}: ")


ENDS = [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]


@pytest.mark.parametrize(("how", "code", "told"), ENDS)
def test_signals_end_in_one_line(how: signal.Signals, code: int, told: str, tmp_path: Path) -> None:
    pipe = tmp_path / "endless"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", HEAR_CTRL_C + RUN, "replay", str(pipe)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with pipe.open("w"):  # it has begun to read
        child.send_signal(how)
        assert child.wait(120) == code
    assert child.stderr is not None
    with child.stderr as said:
        assert said.read() == f"quire replay: {told}\n"
