"""Transcript: token ids come in, final text goes out. Owns unfinished characters and stop strings; knows no model.

It decodes a window of the last tokens only, so that a token costs the same at any length of the answer. The window
begins with tokens already shown, its context: a tokenizer that leaves out the first space of a text does so there.

Text is settled when no later token can change it. Two things can: a last U+FFFD may be a character whose other bytes
are still to come, and in a run of byte tokens (`<0xE4>`) one bad byte spoils the whole run, from its beginning.
The clean-up of spaces that some old tokenizers do is off: it takes back text that was already shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

CONTEXT = 8  # tokens of context: a character has at most four bytes, hence lies in four tokens
LONGEST = 24  # tokens in the window before it is cut back to the context
LOST = "\N{REPLACEMENT CHARACTER}"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Tokenizer(Protocol):
    """What is used of a transformers fast tokenizer."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def convert_ids_to_tokens(self, ids: int) -> Any: ...

    def decode(
        self, token_ids: list[int], skip_special_tokens: bool = ..., *, clean_up_tokenization_spaces: bool
    ) -> Any: ...


class Transcript:
    """The text of one answer in pieces; together they are its decoded tokens, up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self.stopped = False
        self.count = 0  # tokens read; those behind a stop string are not
        self._tokenizer = tokenizer
        self._stop = stop
        self._silent = {token for token, word in tokenizer.added_tokens_decoder.items() if word.special}
        self._window: list[int] = []
        self._settled = 0  # characters of the window's text that are settled
        self._held = ""  # settled, but perhaps the beginning of a stop string
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """Everything handed out."""
        return "".join(self._pieces)

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is final now: whole characters, and nothing that may be the beginning of a stop string."""
        return "".join([self._read(int(token)) for token in tokens if not self.stopped])

    def end(self) -> str:
        """The rest: no more tokens come."""
        if self.stopped:
            return ""
        rest = self._held + self._decoded()[self._settled :]
        self._window, self._settled, self._held = [], 0, ""
        place = self._stop_in(rest)
        self.stopped = place is not None
        return self._hand_out(rest[:place])

    def _read(self, token: int) -> str:
        """The final text after one more token. One at a time, so that it does not matter how tokens come in."""
        self.count += 1
        word = self._tokenizer.convert_ids_to_tokens(token)
        if word is None or token in self._silent:  # special, or no token of this tokenizer: it has no text
            return ""
        self._window.append(token)
        in_run = BYTE.fullmatch(word) is not None
        if in_run and not self._stop:
            return ""
        text = self._decoded()
        settled = len(text.rstrip(LOST)) if in_run else len(text) - text.endswith(LOST)
        fresh = self._held + text[self._settled : settled]
        place = self._stop_in(fresh)
        if place is not None:  # no token comes after this one, so that even a run is as it is
            self.stopped = True
            return self._hand_out(fresh[:place])
        if in_run:
            return ""
        self._settled = settled
        self._cut(len(text) - settled)
        final = len(fresh) - self._may_begin_stop(fresh)
        self._held = fresh[final:]
        return self._hand_out(fresh[:final])

    def _cut(self, num_open: int) -> None:
        """Cuts the window back to its context, in which only the last `num_open` characters are not settled."""
        if len(self._window) > LONGEST:
            del self._window[:-CONTEXT]
            self._settled = len(self._decoded()) - num_open

    def _decoded(self) -> str:
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _stop_in(self, text: str) -> int | None:
        """Where the stop string begins that is complete first; of several, the longest."""
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _may_begin_stop(self, text: str) -> int:
        """Characters at the end of the text that a stop string begins with."""
        sizes = [size for stop in self._stop for size in range(1, len(stop)) if text.endswith(stop[:size])]
        return max(sizes, default=0)

    def _hand_out(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece
