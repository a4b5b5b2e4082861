"""`quire trace make`: logs, lengths and traces become a trace; what is in it, what is said of it, what is refused."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from quire import InputError
from quire.cli.main import main
from quire.trace.logs import make as maker
from quire.trace.logs.make import MakeOptions, make
from quire.trace.read.lines import TraceError
from quire.trace.read.streams import BrokenStream, open_lines
from quire.trace.read.trace import read_trace, shared
from quire.trace.record.block_ids import TraceKey
from quire.trace.stats.trace_stats import read_stats

from ..full_disk import full_disk
from .logs import EPOCH, KEY, lines_of, made_of, of_tokens, trace_of, write_log

SECRET = "the password of Ms Alder is heron"
TALK = [{"role": "system", "content": "You sell books. " * 8}, {"role": "user", "content": SECRET}]
MOONCAKE = {"timestamp": 5, "input_length": 700, "output_length": 5, "hash_ids": [0, 1], "more": "kept"}
TABLE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of bytes, with a template: a token is a character."""
    pytest.importorskip("transformers")
    from ..engine.words import byte_tokenizer

    place = tmp_path_factory.mktemp("words")
    byte_tokenizer().save_pretrained(place)
    return str(place)


def test_what_a_log_says_becomes_lines_of_lengths_and_ids(tmp_path: Path, words: str) -> None:
    log = [
        {"created_at": EPOCH + 0.5, "messages": TALK, "usage": {"completion_tokens": 7}},
        {"created_at": EPOCH + 2, "prompt": "héron", "choices": [{"text": "abc"}, {"text": "de"}]},
        {"created_at": EPOCH + 2.25, "body": {"prompt": ["one", "three"]}, "response": {"usage": {"output_tokens": 9}}},
        {"created_at": EPOCH + 3, "request": {"input": SECRET, "instructions": "Be kind."}, "response": "yes"},
        {"created_at": EPOCH + 4, "prompt": [[1, 2, 3]]},
    ]
    path, made = made_of(tmp_path, log, tokenizer=words)
    rows = [(one["timestamp"], one["input_length"], one["output_length"]) for one in lines_of(path)]
    talk = sum(len(one["content"]) + 3 for one in TALK) + 2
    own = len(SECRET) + len("Be kind.") + 8
    assert rows == [(0, talk, 7), (1500, 6, 5), (1750, 3, 4), (1750, 5, 4), (2500, own, 3), (3500, 3, 0)]
    assert made.times == "field 'created_at' (s since the epoch)" and made.summary["without_output"] == 1
    first, last = lines_of(path)[0]["quire"], lines_of(path)[-1]["quire"]
    assert first == {"trace": 2, "block_size": 16, "from": "requests", "began": "2025-11-16T10:46:40.500Z",
                     "key": KEY.fingerprint}  # fmt: skip
    assert last["end"]["requests"] == 6 and set(lines_of(path)[1]) == {
        "timestamp", "input_length", "output_length", "hash_ids"
    }  # fmt: skip


def test_nothing_of_a_prompt_is_in_the_trace_nor_in_what_is_said(tmp_path: Path, words: str) -> None:
    spoilt = {"created": EPOCH, "messages": [SECRET]}, {"created": EPOCH, "messages": {"role": SECRET}}
    asked = {"created": EPOCH, "messages": TALK, "model": "heron-7b", "cache_salt": "Alder", "user": "Ms Alder"}
    path, made = made_of(tmp_path, [asked, *spoilt], tokenizer=words, skip_bad=True, scope_fields=("user",))
    assert made.skipped == 2 and len(made.errors) == 2
    for text in (path.read_text(), *map(str, made.errors)):
        assert not [word for word in (*SECRET.split()[1:], "books", "heron", "Alder") if word in text and len(word) > 2]
    (line,) = lines_of(path)
    assert type(line["scope"]) is int and set(line) == {
        "timestamp", "input_length", "output_length", "hash_ids", "scope", "quire"
    }  # fmt: skip


def test_tools_and_their_calls_reach_the_template(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from ..engine.words import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}{{ mood }}"
    )
    tokenizer.save_pretrained(tmp_path / "words")
    call = {"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]},
                {"role": "assistant", "content": None, "tool_calls": [call]}]  # fmt: skip
    line = {"ts": EPOCH, "messages": messages, "tools": [{"function": {"name": "weather"}}],
            "chat_template_kwargs": {"mood": "!", "tokenize": True, "chat_template": "evil"}}  # fmt: skip
    picture = {"ts": EPOCH, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}
    path, made = made_of(tmp_path, [line, picture], tokenizer=str(tmp_path / "words"), skip_bad=True)
    assert [one["input_length"] for one in lines_of(path)] == [len("weather;ab\ncOslo!")]
    assert "a part of type 'image_url', and the log does not say how many tokens it has" in str(made.errors[0])


TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "what"),
    [({"messages": TALK, "tools": [TOOL]}, "tools"), ({"messages": [*TALK, CALL]}, "tool calls")],
)
def test_tools_that_the_template_does_not_print_are_not_lost_in_silence(
    tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str], line: dict[str, Any], what: str
) -> None:
    plain = [{**TALK[0], "tool_calls": None}, {**TALK[1], "tool_calls": []}]
    lines = [
        {"ts": EPOCH, "messages": plain, "tools": []},
        {"ts": EPOCH + 1, **line},
        {"ts": EPOCH + 2, "messages": TALK},
    ]
    log, out = write_log(tmp_path / "log.jsonl", lines), tmp_path / "t.jsonl"
    given = ["trace", "make", str(log), "-o", str(out), "--tokenizer", words]
    assert main(given) == 2 and not out.exists()
    told = capsys.readouterr().err
    assert f"log.jsonl line 2: it has {what}, and the chat template does not print them" in told
    assert "name the tokenizer of the model that was asked" in told and "--drop-tools" in told and SECRET not in told
    assert main([*given, "--skip-bad"]) == 0
    assert "1 lines skipped" in capsys.readouterr().err and len(read_trace(out)) == 2
    assert main([*given, "--drop-tools"]) == 0
    assert "note: 1 requests have tools that the chat template does not print" in capsys.readouterr().err
    assert len(read_trace(out)) == 3 and lines_of(out)[-1]["quire"]["end"]["tools_dropped"] == 1


def test_prompts_that_share_all_but_their_tools_share_little(tmp_path: Path) -> None:
    """Each user has tools of his own: what all have in common stands behind them."""
    pytest.importorskip("transformers")
    from ..engine.words import byte_tokenizer

    users = [[{"function": {"name": f"{chr(97 + n)} tool of user {n}"}}] for n in range(20)]
    log = [{"ts": EPOCH + n, "messages": TALK, "tools": tools} for n, tools in enumerate(users)]
    ceilings = []
    for prints in (True, False):
        tokenizer = byte_tokenizer()
        tools = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}" if prints else ""
        tokenizer.chat_template = tools + "{% for m in messages %}{{ m.content }}{% endfor %}"
        tokenizer.save_pretrained(tmp_path / "words")
        path, _ = made_of(tmp_path, log, tokenizer=str(tmp_path / "words"), drop_tools=not prints)
        ceilings.append(read_stats(path).to_json()["reuse"]["ceiling"])
    assert ceilings[0] < 0.01 and ceilings[1] > 0.9


def test_the_embedded_models_tokenizer_and_template(tmp_path: Path) -> None:
    """Beside its bare tokenizer and its template, written down."""
    pytest.importorskip("torch")
    tokenizers = pytest.importorskip("tokenizers")
    from quire.engine.model import smollm2

    if smollm2.missing():
        pytest.skip(f"the embedded model is not installed: {', '.join(smollm2.missing())}")
    folder = smollm2.folder()
    talks = [TALK, [*TALK, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}], TALK[:1]]
    log: list[dict[str, Any]] = [{"ts": EPOCH + n, "messages": talk} for n, talk in enumerate(talks)]
    trace = trace_of(tmp_path, log, tokenizer=str(folder), block_size=4)
    bare = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = ["".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in talk) for talk in talks]
    ids = [bare.encode(f"{text}<|im_start|>assistant\n", add_special_tokens=False).ids for text in said]
    assert [ask.length for ask in trace] == [len(one) for one in ids]
    for n, m in ((0, 1), (0, 2), (1, 2)):
        places = (place for place, (a, b) in enumerate(zip(ids[n], ids[m], strict=False)) if a != b)
        assert shared(trace[n], trace[m]) == next(places, len(ids[n])) // 4 * 4 > 16


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("timestamp", EPOCH, "s since the epoch"),
        ("ts", f"{EPOCH}.25", "s since the epoch"),
        ("created", EPOCH * 1000 + 250, "ms since the epoch"),
        ("time", EPOCH * 10**6, "us since the epoch"),
        ("start_time", EPOCH * 10**9, "ns since the epoch"),
        ("created_at", "2025-11-16T10:46:40.250Z", "ISO 8601"),
        ("@timestamp", "2025-11-16 11:46:40,250+01:00", "ISO 8601"),
        ("TIMESTAMP", "2025-11-16 10:46:40.2500000", "ISO 8601"),
    ],
)
def test_times_as_logs_write_them(tmp_path: Path, field: str, value: Any, told: str) -> None:
    line = {"prompt": [1, 2], "output_tokens": 1, field: value}
    path, made = made_of(tmp_path, [line])
    assert made.times == f"field {field!r} ({told})"
    assert lines_of(path)[0]["quire"]["began"][:22] in ("2025-11-16T10:46:40.00", "2025-11-16T10:46:40.25")


def test_times_that_are_told_and_times_that_are_not_there(tmp_path: Path) -> None:
    line = {"prompt": [1, 2], "output_tokens": 1}
    for wrong, fact in (
        (line, "it has no time that is known by name; name its field"),
        ({**line, "ts": 12.5}, "its time, 'ts', is 12.5, which is not a time since the epoch; say what it counts"),
        ({**line, "ts": True}, "it has no time that is known by name"),
        ({**line, "ts": "later"}, "it has no time that is known by name"),
    ):
        with pytest.raises(TraceError, match=fact) as told:
            made_of(tmp_path, [wrong])
        assert told.value.line == 1
    path, _ = made_of(tmp_path, [{**line, "a": {"b": at}} for at in (5, 6.5)], time_field="a.b", time_unit="s")
    assert [one["timestamp"] for one in lines_of(path)] == [0, 1500] and "began" not in lines_of(path)[0]["quire"]
    path, made = made_of(tmp_path, [line] * 3, rate=4)
    assert [one["timestamp"] for one in lines_of(path)] == [0, 250, 500] and made.times.startswith("4 requests per")
    with pytest.raises(TraceError, match="line 2: it has no time: the field 'ts' is not there"):
        made_of(tmp_path, [{**line, "ts": EPOCH}, line])


def test_requests_come_out_in_order_of_arrival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = of_tokens([[n] * 4 for n in range(60)])
    random.Random(3).shuffle(log)
    path, made = made_of(tmp_path, log)
    assert [one["timestamp"] for one in lines_of(path)] == [1000 * n for n in range(60)] and made.late == 0
    monkeypatch.setattr("quire.trace.logs.arrival_order.MOST_RECORDS", 4)
    path, made = made_of(tmp_path, log)
    times = [one["timestamp"] for one in lines_of(path)]
    assert len(times) == 60 and min(times) == 0 and times != sorted(times)
    assert made.late == lines_of(path)[-1]["quire"]["end"]["late"] > 0


def test_a_scope_is_a_model_a_salt_and_what_was_named(tmp_path: Path) -> None:
    line = of_tokens([[1] * 32])[0]
    log = [line, {**line, "model": "a"}, {**line, "cache_salt": "s"}, {**line, "who": {"tenant": 3}}]
    trace = trace_of(tmp_path, log)
    assert [shared(trace[0], other) for other in trace] == [32, 0, 0, 32]
    trace = trace_of(tmp_path, log, scope_fields=("who.tenant",))
    assert [shared(trace[0], other) for other in trace] == [32, 0, 0, 0]


# -- lengths and traces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [
    TABLE,
    "Timestamp,Model,Request tokens,Response tokens,Total tokens\n5,x,4808,10,4818\n5.052,x,3180,8,3188\n",
    json.dumps({"ts": EPOCH, "usage": {"prompt_tokens": 4808, "completion_tokens": 10}}) + "\n"
    + json.dumps({"ts": EPOCH + 0.052, "usage": {"prompt_tokens": 3180, "completion_tokens": 8}}) + "\n",
])  # fmt: skip
def test_lengths_alone_are_taken_and_nothing_is_shared(
    tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(table)
    out = str(tmp_path / "t.jsonl")
    assert main(["trace", "make", str(tmp_path / "t.csv"), "-o", out, "--time-unit", "s"]) == 0
    assert "lengths only: which prompts share a beginning is not known" in capsys.readouterr().err
    trace = read_trace(out)
    assert trace.lengths_only and trace.unit == 512 and [ask.length for ask in trace] == [4808, 3180]
    assert [ask.output for ask in trace] == [10, 8] and trace[1].time == 0.052 and shared(trace[0], trace[1]) == 0
    assert main(["replay", out]) == 0
    told = capsys.readouterr().out
    assert "The trace has lengths only: what its prompts have in common is not known" in told
    assert main(["replay", "sample", "--limit", "5"]) == 0 and "lengths only" not in capsys.readouterr().out


def test_a_row_that_is_wrong_is_told_by_its_line(tmp_path: Path) -> None:
    for row, fact in (
        ("2023-11-16 18:17:05,12", "line 4: it has 2 columns, the header has 3"),
        ("2023-11-16 18:17:05,x,1", "line 4: its prompt has None tokens"),
        ("2023-11-16 18:17:05,0,1", "line 4: its prompt has 0 tokens"),
        ("2023-11-16 18:17:05,1,99999999999", "line 4: its answer has 99999999999 tokens"),
        ('2023-11-16 18:17:05,"1,1', "line 4: it is not a row of a table"),
        ("yesterday,1,1", "line 4: its time, 'TIMESTAMP', is 'yesterday'"),
    ):
        with pytest.raises(TraceError, match=fact):
            made_of(tmp_path, [TABLE + row])
    with pytest.raises(TraceError, match="line 1: it is neither a JSON object nor the header of a table"):
        made_of(tmp_path, ["a,b,c"])


def test_a_mooncake_trace_passes_unchanged(tmp_path: Path) -> None:
    path, made = made_of(tmp_path, [MOONCAKE, json.dumps(MOONCAKE, indent=None, separators=(" ,", " : "))])
    assert path.read_bytes() == (tmp_path / "log.jsonl").read_bytes() and made.requests == 2
    own = {"time_ms": 0, "prompt": [["system", 100], [None, 20]], "output_tokens": 5}
    assert lines_of(made_of(tmp_path, [own])[0]) == [own]
    short = {**MOONCAKE, "input_length": 30}
    with pytest.raises(TraceError, match="line 2: input_length 700 takes 44 blocks of 16 tokens"):
        made_of(tmp_path, [short, MOONCAKE], block_size=16)
    path, _ = made_of(tmp_path, [short, short], block_size=16)
    assert read_trace(path).unit == 16 and read_trace(path).num_tokens == 60


def test_days_are_joined_in_time_and_by_their_key(tmp_path: Path) -> None:
    days = []
    for day in range(2):
        line: dict[str, Any] = {"time": EPOCH + 86400 * day, "prompt": [7] * 40, "output_tokens": 1}
        path, _ = made_of(tmp_path, [line, {**line, "time": line["time"] + 1}])
        days.append(path.rename(tmp_path / f"day{day}.jsonl"))
    with (tmp_path / "both.jsonl").open("wb") as file:
        made = make(days, MakeOptions(), KEY, file.write)
    trace = read_trace(tmp_path / "both.jsonl")
    assert [ask.time for ask in trace] == [0, 1, 86400, 86401] and shared(trace[0], trace[3]) == 40 and not made.notes
    assert lines_of(tmp_path / "both.jsonl")[-1]["quire"] == {"end": {"requests": 4}} and trace.unit == 16
    other, _ = made_of(tmp_path, of_tokens([[1] * 40]), TraceKey())
    made = make([days[0], other], MakeOptions(), KEY, lambda _: None)
    assert "made with different keys" in made.notes[0]
    coarse, _ = made_of(tmp_path, of_tokens([[1] * 40]), block_size=32)
    with pytest.raises(TraceError, match="the trace's block size is 32 here, and 16 was given or is that of lines bef"):
        make([days[0], coarse], MakeOptions(), KEY, lambda _: None)
    with pytest.raises(InputError, match="it has lengths, and what came before has traces"):
        (tmp_path / "t.csv").write_text(TABLE)
        make([days[0], tmp_path / "t.csv"], MakeOptions(), KEY, lambda _: None)


def test_traces_whose_ids_only_count_are_not_joined(tmp_path: Path) -> None:
    recorded = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0], "session": 0}
    kinds: list[dict[str, Any]] = [
        {"from": "weka"}, {"from": "aiperf"}, {"from": "lengths", "sharing": "unknown"}, {"from": "traces"}
    ]  # fmt: skip
    paths = []
    for number, said in enumerate(kinds):
        paths.append(write_log(tmp_path / f"{number}.jsonl", [{**recorded, "quire": {"trace": 2, **said}}]))
    weka, aiperf, lengths, shares = paths
    for first, second in ((weka, aiperf), (weka, weka), (shares, weka), (lengths, shares), (shares, lengths)):
        with pytest.raises(InputError, match="only count blocks: equal ones would be taken for equal text; make one"):
            make([first, second], MakeOptions(skip_bad=True), KEY, lambda _: None)
    assert make([lengths, lengths], MakeOptions(), KEY, lambda _: None).requests == 2, "nobody looks at their ids"
    with (tmp_path / "one").open("wb") as file:
        assert make([weka], MakeOptions(block_size=512), KEY, file.write).requests == 1
    with pytest.raises(InputError, match="only count blocks"):
        make([tmp_path / "one", shares], MakeOptions(), KEY, lambda _: None)


def test_an_output_takes_the_place_of_nothing_that_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "log.jsonl", of_tokens([[1] * 40]))
    key, said = tmp_path / "key", log.read_bytes()
    key.write_bytes(b"k" * 32)
    (tmp_path / "link").symlink_to(log)
    for words in ([str(log), "-o", str(log)], [str(log), "-o", str(tmp_path / "link")],
                  [str(log), "--key-file", str(key), "-o", str(key)]):  # fmt: skip
        assert main(["trace", "make", *words]) == 2
        assert "which is read for it; name another file" in capsys.readouterr().err
    session = {"block_size": 64, "requests": [{"t": 0, "type": "s", "in": 1, "out": 1, "hash_ids": []}]}
    file = write_log(tmp_path / "sessions.json", [session])
    words = ["trace", "make", "--from", "weka", "--rate", "1", str(tmp_path), "-o"]
    assert main([*words, str(file)]) == 2 and main([*words, str(tmp_path / "new.jsonl")]) == 0
    assert log.read_bytes() == said and key.read_bytes() == b"k" * 32 and json.loads(file.read_text()) == session


def test_a_rate_gives_no_times_that_no_reader_takes(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 2: at 1e-300 requests per second it comes after 1e\+15 ms; give a hi"):
        made_of(tmp_path, of_tokens([[1] * 40] * 3), rate=1e-300)


def test_a_traces_own_block_size_is_heard_and_may_not_be_contradicted(tmp_path: Path) -> None:
    path, _ = made_of(tmp_path, of_tokens([[1] * 40, [2] * 9]), block_size=8)
    assert read_trace(path).unit == 8 == read_trace(path, unit=8).unit
    with pytest.raises(TraceError, match="line 1: the trace's block size is 8 here, and 512 was given"):
        read_trace(path, unit=512)
    lines = lines_of(path)
    write_log(path, [{**lines[0], "quire": 3}])
    with pytest.raises(TraceError, match="line 1: quire is 3"):
        read_trace(path)
    late = {**lines[1], "quire": {"block_size": 16}}
    with pytest.raises(TraceError, match="line 2: the trace's block size is 16 here, and 512"):
        read_trace(write_log(path, [MOONCAKE, late]))


# -- files -----------------------------------------------------------------------------------------------------------


def piped(data: bytes) -> io.TextIOWrapper:
    """Standard input with that in it."""
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))


def test_packed_files_pipes_and_standard_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log = write_log(tmp_path / "log.jsonl", of_tokens([[1] * 40, [1] * 33])).read_bytes()
    key = ["--key-file", str(tmp_path / "key")]
    monkeypatch.setattr(sys, "stdin", piped(gzip.compress(log)))
    assert main(["trace", "make", "-", *key]) == 0
    out = capsysbinary.readouterr()
    assert b"2 requests, from logged prompts" in out.err and out.out.count(b"\n") == 2
    assert main(["trace", "make", str(tmp_path / "log.jsonl"), "-o", str(tmp_path / "t.jsonl.gz"), *key]) == 0
    assert gzip.decompress((tmp_path / "t.jsonl.gz").read_bytes()) == out.out
    assert read_trace(tmp_path / "t.jsonl.gz").unit == 16
    monkeypatch.setattr(sys, "stdin", piped(out.out))
    capsysbinary.readouterr()
    assert main(["replay", "-"]) == 0 and b"2 requests were replayed" in capsysbinary.readouterr().out
    assert main(["sweep", "-", "--device", "1GB,2GB"]) == 2
    assert b"every process reads the trace for itself" in capsysbinary.readouterr().err
    assert main(["trace", "make", "-", "-"]) == 2 and b"name it once" in capsysbinary.readouterr().err


def test_zstd_or_what_installs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = write_log(tmp_path / "log.jsonl", of_tokens([[1] * 40])), tmp_path / "t.jsonl.zst"
    try:
        from quire.trace.read.streams import zstd

        packer = zstd()
    except ImportError as missing:
        assert "quire-kv[trace]" in str(missing)
        assert main(["trace", "make", str(log), "-o", str(out)]) == 2 and not out.exists()
        assert "quire-kv[trace]" in capsys.readouterr().err
        return
    assert main(["trace", "make", str(log), "-o", str(out)]) == 0
    whole = packer.decompress(out.read_bytes())
    assert read_trace(out).num_tokens == 40 and whole.count(b"\n") == 1
    log.write_bytes(packer.compress(log.read_bytes() * 50)[:-4])
    with pytest.raises(TraceError, match="the zstd data ends or breaks here"):
        make([log], MakeOptions(), KEY, lambda _: None)
    log.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 50)
    with open_lines(log, 100) as lines, pytest.raises(BrokenStream, match="the zstd data ends or breaks here"):
        list(lines)


def test_an_error_leaves_no_file_and_an_old_one_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = write_log(tmp_path / "log.jsonl", [*of_tokens([[1] * 40] * 3), "bad"]), tmp_path / "t.jsonl"
    out.write_text("old")
    assert main(["trace", "make", str(log), "-o", str(out)]) == 2
    assert (
        "log.jsonl line 4: it is not JSON (JSONDecodeError); write one JSON object per line" in capsys.readouterr().err
    )
    assert out.read_text() == "old" and sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "t.jsonl"]
    assert main(["trace", "make", str(log), "-o", str(out), "--skip-bad"]) == 0
    assert "3 requests, from logged prompts; 1 lines skipped" in capsys.readouterr().err
    assert lines_of(out)[-1]["quire"]["end"]["skipped"] == 1
    (tmp_path / "link.jsonl").symlink_to(out)
    assert main(["trace", "make", str(log), "-o", str(tmp_path / "link.jsonl"), "--skip-bad", "--limit", "2"]) == 0
    assert (tmp_path / "link.jsonl").is_symlink() and len(lines_of(out)) == 2
    capsys.readouterr()
    for words in (["-o", str(tmp_path / "none" / "t")], ["-o", str(tmp_path)], ["--block-size", "0"], ["--rate", "0"],
                  ["--limit", "0"], ["--tokenizer", str(tmp_path)]):  # fmt: skip
        asked = write_log(tmp_path / "text.jsonl", [{"ts": EPOCH, "prompt": "x"}])
        assert main(["trace", "make", str(asked), "-o", str(tmp_path / "u.jsonl"), *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "u.jsonl").exists()
    assert main(["trace", "make", str(tmp_path / "nothing"), "-o", str(out)]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_full_disk_leaves_nothing_that_looks_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    log = write_log(tmp_path / "log.jsonl", of_tokens([[n] * 400 for n in range(100)]))
    with full_disk(4096):
        assert main(["trace", "make", str(log), "-o", str(tmp_path / name)]) == 2
    told = f"quire trace: output {str(tmp_path / name)!r}: File too large; make room, or name another file\n"
    assert capsys.readouterr().err == told
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_lines_beyond_a_limit_are_told_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = of_tokens([[1] * 40, [1] * 33])
    deep = '{"prompt": ' + "[" * 50_000 + "]" * 50_000 + "}"
    tools = {**good[0], "messages": [{"role": "user", "content": "x"}], "tools": json.loads("[" * 900 + "]" * 900)}
    long = {**good[0], "prompt": [1] * (1 << 20)}
    monkeypatch.setattr(maker, "LONGEST_LOG_LINE", 4 << 20)
    huge = json.dumps({**good[0], "more": "x" * (5 << 20)})
    path, made = made_of(tmp_path, [good[0], deep, huge, long, good[1]], skip_bad=True, block_size=1)
    facts = [(one.line, one.fact) for one in made.errors]
    assert [one["input_length"] for one in lines_of(path)] == [40, 33] and facts == [
        (2, "it is not JSON (RecursionError)"),
        (3, "it is longer than 4,194,304 bytes"),
        (4, "its prompt has 1,048,576 tokens"),
    ]
    with pytest.raises(InputError, match="the log has text, and no tokenizer was named; pass --tokenizer FOLDER"):
        made_of(tmp_path, [tools], skip_bad=True)
    with pytest.raises(InputError, match="there are no requests in what was read"):
        made_of(tmp_path, ["", "bad"], skip_bad=True)
    with pytest.raises(
        TraceError, match=r"log\.jsonl line 1: it has no messages, no prompt, no lengths and no hash ids"
    ):
        made_of(tmp_path, [{"time": EPOCH, "other": 1}])


def test_a_log_of_any_size_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many requests take no more; what waits to be put in order is bounded, too."""
    monkeypatch.setattr("quire.trace.logs.arrival_order.MOST_RECORDS", 50)
    peaks = []
    for many in (100, 400):
        line = json.dumps({"time": EPOCH, "prompt": list(range(30)), "output_tokens": 1}).encode() + b"\n"
        (tmp_path / "log.gz").write_bytes(gzip.compress(line * many, 1))
        tracemalloc.start()
        try:
            assert make([tmp_path / "log.gz"], MakeOptions(), KEY, lambda _: None).requests == many
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + (64 << 10), peaks


def test_another_simulator_reads_it_and_finds_the_same_reuse(tmp_path: Path) -> None:
    """Dynamo's own offline replayer, with memory for everything; one request at a time, so that each finds the last."""
    core = pytest.importorskip("dynamo._core", reason="the router's package is not installed")
    draw = random.Random(8)
    system, prompts = [draw.randrange(1 << 30) for _ in range(160)], list[list[int]]()
    for _ in range(40):
        base = draw.choice([system, *prompts])
        prompts.append([*base[: draw.choice([len(base), 64])], *(draw.randrange(1 << 30) for _ in range(50))])
    log = of_tokens(prompts, model="a")
    for line in log:
        line["time"] = EPOCH + 60 * (line["time"] - EPOCH)
    path, _ = made_of(tmp_path, log)
    engine = {"engine": {"num_gpu_blocks": 4096, "block_size": 16, "max_num_seqs": 8}}
    report = core.run_mocker_trace_replay(
        [str(path)], extra_engine_args=engine, num_workers=1, router_mode="round_robin", trace_block_size=16
    )
    told = report.summary() if callable(getattr(report, "summary", None)) else report.summary
    ceiling = read_stats(path).to_json()["reuse"]["ceiling"]
    assert told["completed_requests"] == 40 and ceiling > 0.3
    assert abs(told["prefix_cache_reused_ratio"] - ceiling) < 0.02  # of a block's last tokens it may think otherwise
