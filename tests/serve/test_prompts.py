"""Token ids of a text are those that the tokenizer itself would give, by the short way and by the long one."""

from __future__ import annotations

from typing import Any

import pytest

from quire.serve.inputs.prompt_tokens import encoder

from ..engine.words import byte_tokenizer

TEXTS = ["", "Hello", "x" * 500, "über 猫 🐈 and a tab\t", "a <|end|> in the middle"]


def by_itself(words: Any, text: str, special: bool) -> list[int]:
    return list(words(text, add_special_tokens=special)["input_ids"])


class TalkingTokenizer(type(byte_tokenizer())):  # type: ignore[misc]
    """One whose own class changes texts before they are encoded, as some models' do."""

    def _encode_plus(self, text: str, *args: Any, **more: Any) -> Any:
        return super()._encode_plus(f"<{text}>", *args, **more)


@pytest.mark.parametrize("special", [True, False])
def test_the_short_way_gives_what_the_tokenizer_gives(special: bool) -> None:
    words = byte_tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    encode = encoder(words)
    for text in TEXTS:
        assert encode(text, special) == by_itself(words, text, special)
    assert len(encode(TEXTS[-1], special)) < len(TEXTS[-1]), "a special token is one"


def test_a_tokenizer_that_does_more_is_asked_itself() -> None:
    plain = byte_tokenizer()
    talking = TalkingTokenizer(tokenizer_object=plain.backend_tokenizer)
    assert encoder(talking)("ab", False) == by_itself(talking, "ab", False) == by_itself(plain, "<ab>", False)


def test_a_tokenizer_that_cuts_is_asked_itself() -> None:
    words = byte_tokenizer()
    words.backend_tokenizer.enable_truncation(3)
    assert len(encoder(words)("abcdef", False)) == 6, "transformers takes the bound away for a call without one"
    split = byte_tokenizer()
    split.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    split.split_special_tokens = True
    assert encoder(split)("<|end|>", False) == by_itself(split, "<|end|>", False)
