"""Transcript: token ids come in, final text goes out. Owns unfinished characters and stop strings; knows no model.

It decodes a window of the last tokens only, so that a token costs the same at any length of the answer. The window
begins with tokens already shown, its context: a tokenizer that leaves out the first space of a text does so there.

Text is settled when no later token can change it. Two things can: a last U+FFFD may be a character whose other bytes
are still to come, and in a run of byte tokens (`<0xE4>`) one bad byte spoils the whole run, from its beginning.
The clean-up of spaces that some old tokenizers do is off: it takes back text that was already shown.

Each settled character is one step of the stops' automaton (`stops.py`), and what may be the beginning of a stop string
is held back. A run is read ahead, byte by byte: a stop in it ends the answer at once, if the tokenizer reads it so too.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quire.engine.loop.stops import ROOT, Stops, stops_of

CONTEXT = 8  # tokens of context: a character has at most four bytes, hence lies in four tokens
LONGEST = 24  # tokens in the window before it is cut back to the context
LOST = "\N{REPLACEMENT CHARACTER}"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer(Protocol):
    """What is used of a transformers fast tokenizer."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def convert_ids_to_tokens(self, ids: int) -> Any: ...

    def decode(
        self, token_ids: list[int], skip_special_tokens: bool = ..., *, clean_up_tokenization_spaces: bool
    ) -> Any: ...


def silent_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens: they have no text."""
    return frozenset(token for token, word in tokenizer.added_tokens_decoder.items() if word.special)


class Transcript:
    """The text of one answer in pieces; together they are its decoded tokens, up to the first stop string."""

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, min_tokens: int = 0, shows_stop: bool = False,
        silent: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        """Stops in the text of the first `min_tokens` tokens do not count; `shows_stop`: the text ends behind one."""
        self.stopped = False
        self._min_tokens, self._shows_stop = min_tokens, shows_stop
        self.count = 0  # tokens read; those behind a stop string are not
        self._tokenizer = tokenizer
        self._stops = stops_of(stop) if stop else None
        self._silent = silent_tokens(tokenizer) if silent is None else silent
        self._window: list[int] = []
        self._settled = 0  # characters of the window's text that are settled
        self._open = ""  # the rest of that text, as it was before a run
        self._run: _Run | None = None
        self._node = ROOT  # where the settled text has led the automaton
        self._held = ""  # settled, but perhaps the beginning of a stop string
        self._pieces: list[str] = []

    def __repr__(self) -> str:
        return f"Transcript({self.count} tokens, {'stopped' if self.stopped else 'open'})"

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
        final = self._settle(self._decoded()[self._settled :])
        final += self._hand_out(self._held)
        self._window, self._settled, self._held = [], 0, ""
        return final

    def _read(self, token: int) -> str:
        """The final text after one more token. One at a time, so that it does not matter how tokens come in."""
        self.count += 1
        word = self._tokenizer.convert_ids_to_tokens(token)
        if word is None or token in self._silent:  # special, or no token of this tokenizer: it has no text
            return ""
        self._window.append(token)
        if byte := BYTE.fullmatch(word):
            return self._look_ahead(int(byte[1], 16))
        text = self._decoded()
        settled = len(text) - text.endswith(LOST)
        final = self._settle(text[self._settled : settled])
        self._run, self._settled, self._open = None, settled, text[settled:]
        self._cut()
        return final

    def _look_ahead(self, byte: int) -> str:
        """One byte of a run more: nothing of it is settled, unless a stop is complete: then no token comes after it."""
        if self._stops is None:
            return ""
        if self._run is None:
            self._run = _Run(self._stops, self._node, self._open)
        if not self._run.reaches_stop(byte, self._heeds):
            return ""
        text = self._decoded()[self._settled :]
        return self._settle(text) if self._stops.read(self._node, text).found else ""

    def _settle(self, text: str) -> str:
        """Settled text more: what of it is final."""
        if self._stops is None:
            return self._hand_out(text)
        self._node, found = self._stops.read(self._node, text, self._heeds)
        fresh, self._held = self._held + text, ""
        if found is not None:
            self.stopped = True
            behind = len(text) - found.end + (0 if self._shows_stop else found.length)
            return self._hand_out(fresh[: len(fresh) - behind])
        final = len(fresh) - self._stops.depth(self._node)
        self._held = fresh[final:]
        return self._hand_out(fresh[:final])

    @property
    def _heeds(self) -> bool:
        """Whether a stop that is complete now ends the answer."""
        return self.count > self._min_tokens

    def _cut(self) -> None:
        """Cuts the window back to its context, if it has become long."""
        if len(self._window) > LONGEST:
            del self._window[:-CONTEXT]
            self._settled = len(self._decoded()) - len(self._open)

    def _decoded(self) -> str:
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _hand_out(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece


class _Run:
    """Byte tokens as UTF-8, each read once. A bad byte spoils the run, and so does a stop: it is reported once."""

    def __init__(self, stops: Stops, node: int, before: str) -> None:
        self._stops, self._node = stops, node
        self._before = before  # text that only a character behind it settles
        self._characters = codecs.getincrementaldecoder("utf-8")()
        self._spoilt = False

    def reaches_stop(self, byte: int, heed: bool) -> bool:
        """Whether a stop is complete with it, if that shall count."""
        if self._spoilt:
            return False
        try:
            text = self._characters.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._spoilt = True
            return False
        if not text:
            return False
        self._node, found = self._stops.read(self._node, self._before + text, heed)
        self._before, self._spoilt = "", found is not None
        return self._spoilt
