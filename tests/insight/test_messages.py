"""Conversations of text: findings and comparisons name the message, with a tokenizer of bytes and its template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.cli.main import main

RULES = "Answer in short sentences, name your sources, and never give more than three examples of anything at all. " * 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two tokenizers of one model, with other templates: the second writes a line of its own in front."""
    pytest.importorskip("transformers")
    from ..engine.words import byte_tokenizer

    place = tmp_path_factory.mktemp("tokenizers")
    tokenizer = byte_tokenizer()
    lines = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    for name, front in (("old", ""), ("new", "{{ messages[-1].content[:9] }}\n")):
        tokenizer.chat_template = front + lines
        tokenizer.save_pretrained(place / name)
    return str(place / "old"), str(place / "new")


def write(path: Path, stamped: bool) -> str:
    with path.open("w") as file:
        for number in range(40):
            line = {"time": 1763290000 + number, "session_id": "s"}
            rules = f"{RULES}Now: {number * 37 % 97:04}. {RULES}" if stamped else RULES
            asked = {"role": "user", "content": f"{number * 7919 % 1000003:07} is what I ask"}
            line["messages"] = [{"role": "system", "content": rules}, asked]
            file.write(json.dumps(line) + "\n")
    return str(path)


def test_a_finding_names_the_message(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path / "log.jsonl", True)
    assert main(["findings", log, "--tokenizer", folders[0], "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert one["kind"] == "changed" and one["message"] == "in message 0 (system)"
    first = len("[system]" + RULES + "Now: ")  # a token is a character
    assert first <= one["token"] <= first + 4


def test_a_template_that_rotates_its_first_line_is_found(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path / "log.jsonl", False)
    same = ["diff", log, log, "--tokenizer", folders[0]]
    assert main(same) == 0
    assert "No request reuses less than before" in capsys.readouterr().out
    assert main([*same, "--new-tokenizer", folders[1]]) == 1
    text = capsys.readouterr().out
    assert "(before the first message)" in text and "-> 0.0 %" in text
