"""Conversations of text: findings and comparisons name the message, with a tokenizer of bytes and its template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_lint_names_the_message_of_few_prompts_without_times(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    rules = [f"{RULES}Now: {hour:02}:17. {RULES}" for hour in range(4)]
    asked = {"role": "user", "content": "What is new?"}
    for stamped in (True, False):
        talks = [[{"role": "system", "content": one if stamped else RULES}, asked] for one in rules]
        log.write_text("".join(json.dumps({"messages": one}) + "\n" for one in talks))
        assert main(["lint", str(log), "--tokenizer", folders[0]]) == int(stamped)
        text = capsys.readouterr().out
        assert ("Where: in message 0 (system)." in text) is stamped
        assert ("Nothing keeps these prompts from sharing more." in text) is not stamped
    assert main(["lint", str(log), "--tokenizer", folders[1]]) == 0, "a line that is equal in all of them"


def test_a_template_is_filled_with_examples_at_other_times(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, data = tmp_path / "old.jinja", tmp_path / "new.jinja", tmp_path / "examples.jsonl"
    old.write_text(f"{RULES}\nAnswer this:\n{{{{ question }}}}\nToday is {{{{ strftime_now('%d %B') }}}}.")
    new.write_text(
        f"You are kind.\nToday is {{{{ strftime_now('%d %B') }}}}.\n{RULES}\nAnswer this:\n{{{{ question }}}}"
    )
    data.write_text("".join(json.dumps({"question": f"What of {n * 7919}?"}) + "\n" for n in range(5)))
    same = ["--data", str(data), "--tokenizer", folders[0]]
    assert main(["lint", str(old), *same]) == 0, "what the clock writes stands behind what stays"
    capsys.readouterr()
    assert main(["lint", str(new), *same]) == 1
    text = capsys.readouterr().out
    assert "at token 24 is another" in text and "Where: in line 2 of what the template makes." in text
    assert main(["diff", str(old), str(new), *same]) == 1
    text = capsys.readouterr().out
    assert "(in line 2 of what the template makes) in 4 requests" in text and "a day" not in text
    assert main(["diff", str(new), str(old), *same]) == 0
    chat = tmp_path / "chat.jinja"
    chat.write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
    )
    talk = [{"messages": [{"role": "system", "content": RULES}, {"role": "user", "content": str(n)}]} for n in range(3)]
    data.write_text("".join(json.dumps(one) + "\n" for one in talk))
    assert main(["lint", str(chat), *same]) == 0


def chat_example(folder: Path, count: int, **more: object) -> tuple[list[str], int]:
    """A chat template before and after it writes the day in front of the rules, with data; tokens of the rules."""
    begin, end = "{% for m in messages %}[{{ m.role }}]", "{{ m.content }}\n{% endfor %}"
    (folder / "old.jinja").write_text(begin + end)
    (folder / "new.jinja").write_text(begin + "{{ strftime_now('%j %M') if m.role == 'system' }}" + end)
    rules = {"role": "system", "content": [{"type": "text", "text": RULES}] if more.pop("parts", False) else RULES}
    lines = [
        {"who": "desk" if n % 2 else "mail", "messages": [rules, {"role": "user", "content": f"{n * 7919:07}"}], **more}
        for n in range(count)
    ]
    (folder / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [str(folder / "old.jinja"), str(folder / "new.jinja"), "--data", str(folder / "d.jsonl")], len(RULES)


def told_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 1
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_rate_makes_a_day_of_examples(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was dropped without a word."""
    words, _ = chat_example(tmp_path, 5)
    words += ["--tokenizer", folders[0]]
    told = told_of(capsys, "diff", *words, "--rate", "30/h")
    assert told["lost_tokens_per_day"] == round(told["lost_tokens"] / 5 * 30 * 24), "of 5 examples, at 30 an hour"
    (loss,) = told["losses"]
    assert loss["tokens_per_day"] == told["lost_tokens_per_day"]
    (one,) = told_of(capsys, "lint", *words[1:], "--rate", "30/h")["faults"]
    assert one["lost_tokens_per_day"] == pytest.approx(one["lost_tokens"] / 5 * 30 * 24, abs=1)
    assert told_of(capsys, "diff", *words)["lost_tokens_per_day"] is None
    assert main(["diff", *words, "--rate", "30/h"]) == 1
    assert f"At this rate {told['lost_tokens_per_day']:,} tokens a day are computed again." in capsys.readouterr().out


def test_a_loss_says_which_blocks_of_whom(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words, rules = chat_example(tmp_path, 6)
    told = told_of(capsys, "diff", *words, "--tokenizer", folders[0], "--name-field", "who", "--block-size", "8")
    first, second = told["losses"]
    assert {first["application"], second["application"]} == {"desk", "mail"}
    assert (first["line"], second["line"]) == (2, 3), "the first request of all finds nothing in any case"
    one = first["example"]
    shared = len("[system]") + rules + len("\n[user]") + 1  # all questions begin with a zero
    assert one["token"] == first["token"] == len("[system]00") and shared <= one["old_token"] <= shared + 2
    assert one["blocks"] == [1, one["old_token"] // 8] and one["line"] == one["old_line"] == 2
    assert first["message"] == one["message"] == "before the first message, in line 1 of what the template makes"
    assert one["old_message"] == "in message 1 (user), in line 2 of what the template makes"
    assert main(["diff", *words, "--tokenizer", folders[0]]) == 1
    text = capsys.readouterr().out
    assert f"See line 2 of {words[3]}: it shared up to token {one['old_token']:,} (in message 1 (user)" in text


def test_content_in_parts_is_named_too(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = chat_example(tmp_path, 4, parts=True)
    late = "{% for m in messages %}[{{ m.role }}]{{ m.content[0].text if m.content is not string else m.content }}"
    (tmp_path / "new.jinja").write_text(
        f"{late}{{% if loop.first %}}{{{{ strftime_now('%j %M') }}}}{RULES}{{% endif %}}{{% endfor %}}"
    )
    (one,) = told_of(capsys, "lint", *words[1:], "--tokenizer", folders[0])["faults"]
    assert one["message"].startswith("behind message 0 (system), in line 1")


def test_what_means_nothing_for_examples_is_refused(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = chat_example(tmp_path, 3)
    for option, cure in (
        ("--time-field=at", "--rate says how often"), ("--time-unit=s", "--rate says how often"),
        ("--scope-field=who", "all examples are of one scope"), ("--drop-tools", "the template decides"),
    ):  # fmt: skip
        assert main(["diff", *words, "--tokenizer", folders[0], option]) == 2
        told = capsys.readouterr().err
        assert f"quire diff: {option.partition('=')[0]} with --data: " in told and cure in told


def test_a_log_is_not_read_as_a_template(
    tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = chat_example(tmp_path, 3)
    log = write(tmp_path / "log.jsonl", False)
    assert main(["lint", log, *words[2:], "--tokenizer", folders[0]]) == 2
    assert "its name is that of a log; leave out --data" in capsys.readouterr().err


def test_limits_and_bad_examples(tmp_path: Path, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words, _ = chat_example(tmp_path, 5)
    words += ["--tokenizer", folders[0]]
    assert told_of(capsys, "diff", *words, "--limit", "3")["requests"] == 3
    data = tmp_path / "d.jsonl"
    data.write_text("[]\n" + data.read_text())
    assert main(["diff", *words]) == 2
    assert "d.jsonl line 1: it is not a JSON object" in capsys.readouterr().err
    assert main(["diff", *words, "--skip-bad", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["requests"] == 5 and err.count("skipped: d.jsonl line 1: it is not a JSON object") == 2
    picky = (
        tmp_path / "new.jinja"
    ).read_text() + "{% if messages[-1].content == '0007919' %}{{ raise_exception('no') }}{% endif %}"
    (tmp_path / "new.jinja").write_text(picky)
    assert main(["diff", *words, "--skip-bad"]) == 2
    assert "has 5 requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "example", "fault"),
    [
        ("{{ a", "{}", "it is not a template"), ("{{ a.b.c }}", "{}", "the template refuses it: UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "{}", "SecurityError"), ("", "{}", "makes an empty prompt"),
        ("{{ a }}", "[1]", "line 1: it is not a JSON object"), ("{{ 1 // 0 }}", "{}", "ZeroDivisionError"),
        ("{% for n in range(9999) %}{{ 'x' * 99999 }}{% endfor %}", "{}", "more than 16,777,216 characters"),
        ("{% for n in range(10 ** 9) %}x{% endfor %}", "{}", "OverflowError"),
    ],
)  # fmt: skip
def test_templates_that_cannot_be_filled(
    tmp_path: Path,
    folders: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    template: str,
    example: str,
    fault: str,
) -> None:
    path, data = tmp_path / "t.jinja", tmp_path / "d.jsonl"
    path.write_text(template)
    data.write_text(example + "\n")
    assert main(["lint", str(path), "--data", str(data), "--tokenizer", folders[0]]) == 2
    told = capsys.readouterr().err
    assert fault in told and told.count("\n") == 1
    assert main(["lint", str(path)]) == 2
    assert "there is no data to fill it with; pass --data FILE" in capsys.readouterr().err
