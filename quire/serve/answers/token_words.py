"""TokenWords: the text and the bytes of single tokens, for log-probabilities. Knows a tokenizer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from quire.engine.loop.text import BYTE, LOST

KEPT = 1 << 16  # tokens whose text is remembered


class TokenWords:
    """Of one tokenizer; without one a token is shown as its id."""

    def __init__(self, tokenizer: Any, as_ids: bool = False) -> None:
        self._tokenizer, self._as_ids = tokenizer, as_ids or tokenizer is None
        self._raw = _byte_alphabet()
        self._found = lru_cache(KEPT)(self._find)

    def text_and_bytes(self, token: int) -> tuple[str, list[int] | None]:
        """Its text and its bytes; a token that is a part of a character has a replacement mark as text."""
        if self._as_ids:
            return f"token_id:{token}", None
        text, raw = self._found(token)
        return text, list(raw)

    def text(self, token: int) -> str:
        """Its text alone."""
        return self.text_and_bytes(token)[0]

    def _find(self, token: int) -> tuple[str, bytes]:
        text = str(self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        word = self._tokenizer.convert_ids_to_tokens(token)
        if LOST not in text or not isinstance(word, str):
            return text, text.encode()
        if byte := BYTE.fullmatch(word):
            return text, bytes([int(byte[1], 16)])
        if all(char in self._raw for char in word):
            return text, bytes(self._raw[char] for char in word)
        return text, text.encode()


@lru_cache(1)
def _byte_alphabet() -> dict[str, int]:
    """Characters by which byte-level tokenizers write bytes: printable ones are themselves, others follow from 256."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + nth): byte for nth, byte in enumerate(rest)}
