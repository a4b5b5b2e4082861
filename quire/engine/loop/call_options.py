"""Options: what may be said beside a prompt, as keywords: every field of Sampling, and a few more. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, TypedDict

from quire.core.records.errors import InputError, say, shown
from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope
from quire.core.records.retain import Retention
from quire.engine.sampling.params import Sampling, checked_sampling
from quire.engine.structured_outputs.structured_outputs import StructuredOutputs


class Options(TypedDict, total=False):
    """Fields of Sampling, who may share the pages, what becomes of them, whose it is, how long to wait for a place."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    ignore_eos: bool
    n: int
    beams: int
    length_penalty: float
    drafts: int
    ngram: int
    min_tokens: int
    min_p: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    allowed_token_ids: Sequence[int] | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bad_words: Sequence[str]
    logprobs: int | None
    include_stop_str_in_output: bool
    structured_outputs: StructuredOutputs | None
    priority: int
    scope: Scope
    retention: Retention | None
    session: str | None  # requests that follow one another
    back: Back | None  # when its text is asked for again
    resume_points: Sequence[int]  # positions in the prompt where others may go on from
    tenant: str | None  # whose turns it takes
    ttft: float | None  # seconds within which its first token is wanted; else it is refused
    timeout: float | None  # seconds, for a full engine


OPTIONS = frozenset(Options.__optional_keys__)


class MergedOptions(NamedTuple):
    """A Sampling with the options that are fields of it, and the other options."""

    sampling: Sampling
    others: dict[str, Any]


def check_names(given: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse a name that is not an option; the error suggests the nearest."""
    for name, value in given.items():
        if name not in names:
            near = get_close_matches(name, names, n=1)
            cure = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(names))}"
            raise InputError(say(f"{name}={shown(value)}", "there is no such option", cure))


def merge_options(sampling: Sampling, given: Mapping[str, Any]) -> MergedOptions:
    """Options that are fields of Sampling become part of it. Those it sets itself, and unknown names, are refused."""
    defaults = {one.name: one.default for one in fields(Sampling)}
    check_names(given, OPTIONS)
    ours = {name: value for name, value in given.items() if name in defaults}
    rest = {name: value for name, value in given.items() if name not in defaults}
    sampling = checked_sampling(sampling)
    for name in ours:
        if (said := getattr(sampling, name)) != defaults[name]:
            fact = f"{name} is {shown(said)} in the Sampling as well"
            raise InputError(say(f"{name}={shown(ours[name])}", fact, "give it in one of them"))
    return MergedOptions(replace(sampling, **ours) if ours else sampling, rest)
