"""The parts that findings stand on, beside plain versions of the same: chunks, memory, lost text, lines of logs."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from quire.cli.main import main
from quire.core.content.content_chunks import cut_prompts, merge_chunks
from quire.core.records.identity import Scope
from quire.insight.findings.alignment import align
from quire.insight.findings.find import MEMORY_TOKENS, FindOptions, find_findings
from quire.insight.findings.finding import Finding
from quire.insight.findings.fine_part import fine_log, fine_part
from quire.insight.findings.pairs import Pairs
from quire.insight.findings.prompt_rows.lost_text import find_lost
from quire.insight.findings.prompt_rows.memory import hits, rows_of
from quire.insight.findings.prompt_rows.prompt_log import LogReader, PromptLog, dense
from quire.insight.findings.repairs import Repairs
from quire.insight.findings.short_pieces import reordered
from quire.insight.findings.text_faults import TextFaults
from quire.trace.prompts.log_lines import take_ids
from quire.trace.prompts.logged_prompts import LogFile, LoggedPrompt, LogOptions, tokens_of
from quire.trace.units import Int32

RANDOM = np.random.default_rng(7)


def words(number: int, dice: np.random.Generator = RANDOM) -> Int32:
    return dice.integers(0, 100_000, number).astype(np.int32)


def log_of(prompts: list[Int32], scopes: list[Scope] | None = None, most: int = 1 << 20) -> PromptLog:
    reader = LogReader(most)
    for place, tokens in enumerate(prompts):
        scope = Scope() if scopes is None else scopes[place]
        reader.add(LoggedPrompt(tokens, float(place), scope, line=place + 1))
    return reader.finish()


def test_equal_text_is_cut_alike_wherever_it_stands() -> None:
    text = words(3000)
    alone = cut_prompts(text, np.array([3000]))
    shifted = cut_prompts(np.concatenate([words(17), text, words(5)]), np.array([3022]))
    same = np.isin(alone.names, shifted.names)
    assert alone.sizes.sum() == 3000 and same[1:-1].all() and len(alone) > 200


def test_prompts_are_cut_apart_from_what_is_beside_them() -> None:
    prompts = [words(number) for number in (1, 2, 3, 700, 1, 40)]
    together = cut_prompts(np.concatenate(prompts), np.array([len(one) for one in prompts]))
    apart = [cut_prompts(one, np.array([len(one)])) for one in prompts]
    assert together.counts.tolist() == [len(one) for one in apart]
    assert together.names.tolist() == [name for one in apart for name in one.names.tolist()]


@pytest.mark.parametrize("lengths", [[0, 300, 0, 1, 2, 0], [3, 0, 0], [0, 0, 500], [2, 2, 2, 2]])
def test_empty_and_short_prompts_have_no_chunks_of_others(lengths: list[int]) -> None:
    text = words(sum(lengths))
    found = cut_prompts(text, np.array(lengths))
    alone = [cut_prompts(one, np.array([len(one)])) for one in np.split(text, np.cumsum(lengths)[:-1]) if len(one)]
    assert found.names.tolist() == [name for one in alone for name in one.names.tolist()]
    assert found.counts.tolist() == [next(each) if size else 0 for each in [map(len, alone)] for size in lengths]


@pytest.mark.parametrize("level", [1, 3, 6])
def test_fewer_cuts_give_the_sums_of_the_chunks_between_them(level: int) -> None:
    text = words(5000)
    lengths = np.array([2000, 3000])
    fine = cut_prompts(text, lengths)
    coarse = merge_chunks(fine, level)
    twice = merge_chunks(merge_chunks(fine, level - 1), level)
    assert coarse.names.tolist() == twice.names.tolist() and coarse.sizes.sum() == 5000
    assert merge_chunks(cut_prompts(text[2000:], lengths[1:]), level).names.tolist() == (
        coarse.names[coarse.counts[0] :].tolist()
    )
    assert len(coarse) < len(fine) / 2**level * 2


def test_a_log_that_grows_too_large_is_cut_more_coarsely() -> None:
    prompts = [words(2000) for _ in range(30)]
    log = log_of(prompts, most=1000)
    assert len(log.ids) <= 1000 and log.level > 0
    assert log.sizes.sum() == 60_000 and (log.lengths == 2000).all()


def test_numbers_are_equal_exactly_where_values_are() -> None:
    values = RANDOM.integers(0, 50, 4000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ids = dense(values)
    assert all((values == values[place]).tolist() == (ids == ids[place]).tolist() for place in range(0, 4000, 97))


def plain_lru(rows: list[list[int]], capacity: int) -> list[int]:
    """Chunks of one token; a request hits leading ones, and what it used last goes first as a whole."""
    uses: OrderedDict[tuple[int, ...], int] = OrderedDict()
    found = []
    for number, row in enumerate(rows):
        nodes = [tuple(row[: end + 1]) for end in range(len(row))]
        count = next((place for place, node in enumerate(nodes) if node not in uses), len(nodes))
        found.append(count)
        for node in nodes:
            uses[node] = number
        while len(uses) > capacity and min(uses.values()) < number:
            oldest = min(uses.values())
            for node in [node for node, used in uses.items() if used == oldest]:
                del uses[node]
    return found


@pytest.mark.parametrize("capacity", [5, 20, 60, 1000])
def test_memory_hits_what_a_plain_lru_hits(capacity: int) -> None:
    dice = np.random.default_rng(capacity)
    rows = [dice.integers(0, 3, dice.integers(1, 9)).tolist() for _ in range(300)]
    built = rows_of([(np.array(row, np.int32), np.ones(len(row), np.int32)) for row in rows], np.zeros(300, np.int32))
    assert hits(built, capacity).tolist() == plain_lru(rows, capacity)


def test_what_is_not_stored_pushes_nothing_out() -> None:
    rows = [[1, 2, 3], [7, 8, 9], [1, 2, 3]]
    built = rows_of([(np.array(row, np.int32), np.ones(3, np.int32)) for row in rows], np.zeros(3, np.int32))
    assert hits(built, 3).tolist() == [0, 0, 0]
    assert hits(built, 3, np.array([True, False, True])).tolist() == [0, 0, 3]


def test_lost_text_is_what_an_earlier_prompt_of_the_scope_had_behind_another_beginning() -> None:
    text, other = words(600), Scope(salt="b")
    log = log_of(
        [text, np.concatenate([words(9), text]), text[:300], text], [Scope(), Scope(), Scope(), other]
    )  # fmt: skip
    lost = find_lost(log)
    assert lost.lost_tokens[0] == 0 and 500 < lost.lost_tokens[1] <= 600
    assert lost.lost_tokens[2] == 0 and 260 < lost.hit_tokens[2] <= 300
    assert lost.hit_tokens[3] == lost.lost_tokens[3] == 0  # another scope shares nothing
    assert set(lost.earlier[log.starts[1] : log.starts[2]].tolist()) <= {-1, 0}


def test_an_alignment_has_the_equal_runs_of_both() -> None:
    a, b, c = words(200), words(200), words(200)
    one, other = log_of([np.concatenate([a, b, c]), np.concatenate([a, c, b])]), 1
    pair = align(one.chunks_of(other), one.sizes_of(other), one.chunks_of(0), one.sizes_of(0))
    assert 170 < pair.place <= 200 and pair.moved > 100 and len(pair.kept) < len(pair.runs)


@pytest.mark.parametrize("inside", ["5 6", "5,, 6", "5, 6,", "5, -6", "5, 99999999999", "5, 1e3", "5, true", '5, "6"'])
def test_ids_that_are_none_are_left_to_json(inside: str) -> None:
    line = json.dumps({"prompt": list(range(400))}).replace("5, 6", inside).encode()
    assert take_ids(line) == (line, None)


def test_ids_are_read_as_json_reads_them() -> None:
    ids = words(1000).tolist()
    for fields in ({"prompt": ids, "user": "x"}, {"body": {"prompt": ids}}, {"a": '"prompt": [1]', "prompt": ids}):
        rest, found = take_ids(json.dumps(fields).encode())
        assert found is not None and found.tolist() == ids
        assert json.loads(rest) == json.loads(json.dumps(fields).replace(json.dumps(ids), "[0]"))
    two = json.dumps({"prompt": ids, "body": {"prompt": ids}}).encode()
    assert take_ids(two) == (two, None)


def write_log(path: Path, stamped: bool) -> list[list[int]]:
    rules = words(500).tolist()
    prompts = [([*rules[:80], n, *rules[80:]] if stamped else rules) + words(60).tolist() for n in range(60)]
    lines = [{"time": 1763290000 + n, "app": "desk", "prompt": one} for n, one in enumerate(prompts)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return prompts


def test_a_time_before_documents_that_all_are_others_is_named() -> None:
    """What follows the change is equal in each pair, and in no other."""
    rules, documents = words(120), [words(400) for _ in range(30)]
    prompts = [np.concatenate([rules, words(2), one]) for _ in range(2) for one in documents]
    found = find_findings(
        log_of(prompts), FindOptions(), lambda numbers: {number: prompts[number] for number in numbers}, lambda *_: None
    ).findings
    assert [one.kind for one in found] == ["changed"] and found[0].token == 120
    assert found[0].before < 0.3 and found[0].after > found[0].before + 0.3


def test_applications_are_named_by_the_line_or_its_request(tmp_path: Path) -> None:
    ask = {"time": 1763290000, "prompt": [1, 2, 3]}
    body = {"body": {"prompt": [1, 2], "metadata": {"tenant": 7}}, "time": 1763290000}
    path = tmp_path / "log.jsonl"
    lines = [ask | {"app": "desk"}, ask | {"metadata": {"application": "mail"}}, body, ask | {"metadata": 3}, ask]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [one.name for one in LogFile(str(path)).prompts()] == ["desk", "mail", "7", None, None]


def test_lines_of_a_log_are_read_again(tmp_path: Path) -> None:
    prompts = write_log(tmp_path / "log.jsonl", True)
    file = LogFile(str(tmp_path / "log.jsonl"), LogOptions())
    found = tokens_of(file, {(3, 0): 0, (60, 0): 7})
    assert {number: one.tolist() for number, one in found.items()} == {0: prompts[2], 7: prompts[59]}
    assert [one.name for one in file.prompts({1})] == ["desk"]


def test_the_command_says_where_and_what_it_brings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "log.jsonl", True)
    assert main(["findings", str(tmp_path / "log.jsonl"), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert (one["kind"], one["token"], one["tokens"], one["application"]) == ("changed", 80, 1, "desk")
    assert one["before"] < 0.16 and one["after"] > 0.8 and one["requests"] == 1
    assert main(["findings", str(tmp_path / "log.jsonl")]) == 0
    assert "Gain: their hit rate 1" in (text := capsys.readouterr().out) and "application desk" in text


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, page = tmp_path / "<b>log.jsonl", tmp_path / "page.html"
    for stamped, said in ((True, "1 finding: mending it brings the hit rate from 1"), (False, "No finding: nothing")):
        write_log(log, stamped)
        assert main(["findings", str(log), "--html", str(page)]) == 0
        text = re.sub("<.*?>", "", page.read_text(encoding="utf-8"))
        assert said in text and "Findings for &lt;b&gt;log.jsonl" in text and "Requests60in the log" in text
        assert ("application desk, 100.0 % of the requests" in text) is ("mended8" in text) is stamped
        assert f"page: {page}" in capsys.readouterr().out
    assert main(["findings", str(log), "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_clean_log_and_a_bad_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "log.jsonl", False)
    assert main(["findings", str(tmp_path / "log.jsonl")]) == 0
    assert "No finding" in capsys.readouterr().out
    for words_, error in (
        ([str(tmp_path / "none")], "No such file"), (["-"], "read once"), (["sample"], "No such file"),
        ([str(tmp_path / "log.jsonl"), "--memory", "0"], "give at least 1"),
    ):  # fmt: skip
        assert main(["findings", *words_]) == 2
        assert error in capsys.readouterr().err
    (tmp_path / "ids.jsonl").write_text('{"timestamp":0,"input_length":4,"output_length":1,"hash_ids":[1]}\n')
    assert main(["findings", str(tmp_path / "ids.jsonl")]) == 2
    assert "give the log it was made of" in capsys.readouterr().err


def test_a_part_of_a_large_log_is_looked_at_finely(tmp_path: Path) -> None:
    """Tools of 60 tokens, in any order: chunks of 64 tokens and more make many applications of one."""
    dice = np.random.default_rng(4)
    tools = [words(60, dice) for _ in range(10)]
    orders = [dice.permutation(10) for _ in range(400)]
    prompts = [np.concatenate([*(tools[one] for one in order), words(20, dice)]) for order in orders]
    log = log_of(prompts, most=1 << 12)
    assert log.level >= 3

    def fetch(numbers: Sequence[int]) -> dict[int, Int32]:
        return {number: prompts[number] for number in numbers}

    wrong = TextFaults(Pairs(log, find_lost(log)), MEMORY_TOKENS, fetch, lambda *_: None).find()
    assert len(wrong) > 1
    (one,) = find_findings(log, FindOptions(), fetch, lambda *_: None).findings
    assert one.kind == "order" and one.before < 0.2 and one.after > 0.85 and one.requests == 1
    part, tokens = fine_part(log, find_lost(log), fetch, 100_000)
    assert 145 <= part.stop - part.start <= 170 and len(tokens) == part.stop - part.start
    fine, whole = fine_log(log, part, tokens), log_of(prompts[part])
    assert fine.ids.tolist() == whole.ids.tolist() and fine.starts.tolist() == whole.starts.tolist()


def found_among(prompts: list[Int32]) -> list[Finding]:
    options, log = FindOptions(), log_of(prompts)
    return find_findings(
        log, options, lambda numbers: {number: prompts[number] for number in numbers}, lambda *_: None
    ).findings


def test_pieces_of_a_chunk_or_less_are_named_by_their_tokens() -> None:
    """No chunk shows them; every token of one prompt stands in the other, elsewhere."""
    dice = np.random.default_rng(4)
    rules, tools, more = words(40, dice), [words(10, dice) for _ in range(8)], words(60, dice)
    orders = [dice.permutation(8) for _ in range(200)]
    prompts = [np.concatenate([rules, *(tools[one] for one in order), more, words(30, dice)]) for order in orders]
    (one,) = found_among(prompts)
    assert (one.kind, one.token) == ("order", 40) and one.before < 0.5
    assert one.after == pytest.approx(199 / 200 * 180 / 210, abs=0.06)


def test_blanks_and_digits_that_change_places_are_no_pieces() -> None:
    text = words(400)
    blank, other = np.insert(text, 20, 7), np.insert(text, 300, 7)
    clock, later = np.array([1, 2, 3, 4], np.int32), np.array([1, 4, 3, 2], np.int32)
    assert not reordered(blank[20:], other[20:])
    assert not reordered(np.concatenate([clock, text])[1:], np.concatenate([later, text])[1:])
    swapped = np.concatenate([text[200:220], text[180:200], text[220:]])
    assert reordered(swapped, text[180:]) == 40 and not reordered(swapped, words(400))


def test_new_text_before_a_closing_line_is_not_mended_away() -> None:
    """A time, rules, a question of 60 tokens that is new, and 60 that close every prompt."""
    rules, closing = words(400), words(60)
    prompts = [np.concatenate([words(3), rules, words(60), closing]) for _ in range(60)]
    (one,) = found_among(prompts)
    assert one.kind == "changed" and one.token == 0 and one.before == 0
    assert 0.65 < one.after < 59 / 60 * 400 / 523


def test_a_memory_of_less_than_two_prompts_is_too_small() -> None:
    """Three talks in turn: each turn finds the one before it where all three are kept."""
    talks = [words(1000) for _ in range(3)]
    prompts = [np.concatenate([talks[turn % 3], words(40)]) for turn in range(30)]
    log = log_of(prompts)
    for memory, kinds in ((1500, ["memory"]), (2100, []), (4000, [])):
        found = find_findings(log, FindOptions(memory), lambda _: {}, lambda *_: None).findings
        assert [one.kind for one in found] == kinds
        for one in found:
            assert one.before == 0 and one.after == pytest.approx(27 * 1000 / (30 * 1040), abs=0.02)
            assert one.facts["memory_tokens"] == 6000


def test_the_gain_of_a_flush_is_that_of_all_others() -> None:
    """One talk that comes again, prompts that do not, and what pushes the talk out."""
    talk, crawler = words(1000), words(60)
    prompts = list[Int32]()
    for _ in range(40):
        prompts += [np.concatenate([talk, words(20)]), words(1000), np.concatenate([crawler, words(8000)])]
    log = log_of(prompts)
    (one,) = find_findings(
        log, FindOptions(9000), lambda numbers: {number: prompts[number] for number in numbers}, lambda *_: None
    ).findings
    assert one.kind == "flush" and one.before == pytest.approx(0, abs=0.01)
    assert one.after == pytest.approx(39 * 1000 / (40 * 2020), abs=0.02)
    assert one.facts["others"] == pytest.approx(2 / 3, abs=0.001)
    assert one.weight == pytest.approx(one.gain * 2 / 3, abs=0.001)


def test_a_history_that_is_not_cut_has_what_is_new() -> None:
    """The last text that both have is the phrase that every prompt ends with."""
    rules, messages, closing, new = words(300), [words(60) for _ in range(6)], words(40), words(100)
    earlier = np.concatenate([rules, *messages, closing])
    log = log_of([earlier, np.concatenate([rules, *messages[2:], new, closing])])
    whole, longer = Repairs(Pairs(log, find_lost(log)), "cut", 0, 300).rows(np.arange(2))
    assert whole[1].sum() == len(earlier) and longer[1].sum() == pytest.approx(len(earlier) + 100, abs=1)
