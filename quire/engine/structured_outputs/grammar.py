"""Grammars: what StructuredOutputs allow, token by token, through llguidance. Needs the extra `grammar`.

Compiled once and kept for others who ask for the same. Limits bound what one token may cost, and what a grammar may
take in memory. Answers that share one use its memory up together: who finds it used up goes on with one of its own, so
an answer fails by its own needs only. Nothing is ever fetched: a schema with references elsewhere is refused.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.core.records.request import Int32
from quire.engine.structured_outputs.grammar_faults import STUCK, check_schema, refusal
from quire.engine.structured_outputs.structured_outputs import ASK, StructuredOutputs

KEPT = 16  # compiled grammars
SPACES = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}  # in JSON: a model must not go on with spaces for ever
LIMITS = {  # some ten milliseconds for one token at worst, some 30 MB for one grammar
    "initial_lexer_fuel": 200_000, "step_lexer_fuel": 50_000, "step_max_items": 50_000, "max_lexer_states": 50_000,
    "verbose_errors": False,
}  # fmt: skip
USED_UP = "too many states"  # as llguidance says it


class Grammars:
    """Those of one model. Any thread may compile."""

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
            matcher = self._compiled(structured)  # which may take long: no other call waits for it
        with self._lock:
            self._kept[structured] = matcher
            self._kept.move_to_end(structured)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return GrammarMask(matcher.deep_copy(), lambda: self._anew(structured, matcher))

    def _anew(self, structured: StructuredOutputs, used_up: Any) -> Any:
        """Another matcher for one answer; no other answer begins with a used one."""
        with self._lock:
            if self._kept.get(structured) is used_up:
                del self._kept[structured]
        return self._compiled(structured)

    def _compiled(self, structured: StructuredOutputs) -> Any:
        with self._opening:
            self._open()
        kinds = self._library.LLMatcher
        if structured.json is not None:
            what, make = "JSON schema", _from_schema
            check_schema(str(structured.json))
        elif structured.regex is not None:
            what, make = "regex", lambda kinds, form: kinds.grammar_from_regex(form.regex)
        else:
            what, make = "choice", _from_choice
        try:
            source = make(kinds, structured)
            matcher = kinds(self._words, source, log_level=0, limits=self._library.LLParserLimits(**LIMITS))
        except (ValueError, TypeError) as wrong:  # nested too deeply, halves of characters
            raise refusal(structured, what, str(wrong)) from None
        if not matcher.is_error():
            matcher.compute_bitmask()  # which builds most of it, here, beside the engine's steps
        if matcher.is_error():
            raise refusal(structured, what, matcher.get_error())
        return matcher

    def _open(self) -> None:
        """The library and the tokenizer, when first needed."""
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


def _from_schema(kinds: Any, form: StructuredOutputs) -> Any:
    return kinds.grammar_from_json_schema(form.json, defaults=SPACES, overrides={"lenient": False})


def _from_choice(kinds: Any, form: StructuredOutputs) -> Any:
    return kinds.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in form.choice))


class GrammarMask:
    """A TokenMask: where one answer is in its grammar. `anew` makes a matcher that no other answer shares."""

    __slots__ = ("_anew", "_is_shared", "_matcher", "_tokens")

    def __init__(self, matcher: Any, anew: Callable[[], Any], tokens: Iterable[int] = ()) -> None:
        self._matcher, self._anew, self._tokens = matcher, anew, list(tokens)
        self._is_shared = True  # what a grammar builds belongs to all copies of it

    def words(self) -> Int32:
        """Bits of the tokens that may come next."""
        raw = self._matcher.compute_bitmask()
        if self._is_used_up():
            self._begin_anew()
            raw = self._matcher.compute_bitmask()
        return np.zeros(1, np.int32) if self._matcher.is_error() else np.frombuffer(raw, np.int32)

    def accept(self, token: int) -> None:
        """One token more."""
        self._matcher.consume_token(token)
        self._tokens.append(token)
        if self._is_used_up():
            self._begin_anew()

    def _is_used_up(self) -> bool:
        """By others, perhaps: states are kept for all who share it. Other limits count for one token."""
        return self._is_shared and self._matcher.is_error() and USED_UP in self._matcher.get_error()

    def _begin_anew(self) -> None:
        """At the same place in a grammar of its own: an error is this answer's."""
        self._matcher, self._is_shared = self._anew(), False
        for token in self._tokens:
            self._matcher.consume_token(token)

    def copy(self) -> GrammarMask:
        """At the same place."""
        self._is_shared = True
        return GrammarMask(self._matcher.deep_copy(), self._anew, self._tokens)

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
        return f"{STUCK}: {first[:200]}"
