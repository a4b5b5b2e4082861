"""Grammars: what StructuredOutputs allow, token by token, through llguidance. Needs the extra `grammar`.

Compiled once and kept for others who ask for the same. Limits bound what one token may cost: a grammar that needs more
ends its own run. Nothing is ever fetched: a schema with references elsewhere is refused.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.core.records.request import Int32
from quire.engine.choose.structured import ASK, StructuredOutputs

KEPT = 16  # compiled grammars
SPACES = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}  # in JSON: a model must not go on with spaces for ever
LIMITS = {  # some milliseconds for one token at worst, some 20 MB for one grammar
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 50_000, "step_max_items": 50_000, "max_lexer_states": 10_000,
    "verbose_errors": False,
}  # fmt: skip


class Grammars:
    """Those of one model. Anybody may compile, in any thread."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self._tokenizer, self._eos_ids = tokenizer, eos_ids
        self._lock, self._opening = Lock(), Lock()
        self._library: Any = None
        self._words: Any = None  # the tokenizer as llguidance reads it
        self._kept: OrderedDict[StructuredOutputs, Any] = OrderedDict()

    def mask(self, structured: StructuredOutputs) -> GrammarMask:
        """At the beginning of an answer. What cannot be compiled is an InputError."""
        with self._lock:
            matcher = self._kept.get(structured)
        if matcher is None:
            matcher = self._compiled(structured)  # which may take long: nobody else waits for it
        with self._lock:
            self._kept[structured] = matcher
            self._kept.move_to_end(structured)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return GrammarMask(matcher.deep_copy())

    def _compiled(self, structured: StructuredOutputs) -> Any:
        with self._opening:
            self._open()
        kinds = self._library.LLMatcher
        if structured.json is not None:
            what = "JSON schema"
            source = kinds.grammar_from_json_schema(structured.json, defaults=SPACES, overrides={"lenient": False})
        elif structured.regex is not None:
            what, source = "regex", kinds.grammar_from_regex(structured.regex)
        else:
            what = "choice"
            source = kinds.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in structured.choice))
        matcher = kinds(self._words, source, log_level=0, limits=self._library.LLParserLimits(**LIMITS))
        if matcher.is_error():
            fact = " ".join(matcher.get_error().split())[:300]
            raise InputError(say(f"{ASK} by a {what}", fact, "change it"))
        return matcher

    def _open(self) -> None:
        """The library and the tokenizer, the first time that somebody needs them."""
        if self._words is not None:
            return
        if self._tokenizer is None:
            raise InputError(say(ASK, "the model has no tokenizer", "use one that has"))
        try:
            import llguidance
            from llguidance.hf import from_tokenizer
        except ImportError as missing:
            raise MissingExtra(say(ASK, f"they need llguidance ({missing})", install_line("grammar"))) from missing
        ends = sorted(self._eos_ids) or None  # None: the tokenizer's own
        try:
            self._words = from_tokenizer(self._tokenizer, eos_token=ends)
        except Exception as wrong:  # whatever it does not understand of a tokenizer
            fact = f"the model's tokenizer is not understood: {type(wrong).__name__}: {wrong}"
            raise InputError(say(ASK, fact, "use a model with a fast tokenizer")) from None
        self._library = llguidance


class GrammarMask:
    """A TokenMask: where one answer is in its grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def words(self) -> Int32:
        """Bits of the tokens that may come next."""
        raw = self._matcher.compute_bitmask()
        return np.zeros(1, np.int32) if self._matcher.is_error() else np.frombuffer(raw, np.int32)

    def accept(self, token: int) -> None:
        """One token more."""
        self._matcher.consume_token(token)

    def copy(self) -> GrammarMask:
        """At the same place."""
        return GrammarMask(self._matcher.deep_copy())

    @property
    def complete(self) -> bool:
        """Nothing can be added."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def error(self) -> str:
        """Why there is no next token."""
        if not self._matcher.is_error():
            return ""
        first, *_ = self._matcher.get_error().splitlines() or ["it has failed"]
        return f"its grammar cannot go on: {first[:200]}"
