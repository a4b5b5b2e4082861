"""From the fields of a request to a Sampling, with OpenAI's defaults. Knows fields and the record, no endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import Raw, UnsetType

from quire.core.records.config import HIGHEST
from quire.core.records.errors import say, shown
from quire.core.records.retain import RetainRange, Retention
from quire.engine.sampling.params import Sampling
from quire.engine.structured_outputs.structured_outputs import StructuredOutputs
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.bodies import ChatBody, GenerationBody
from quire.serve.protocol.parts import JsonObjectFormat, JsonSchemaFormat, Keep, KeptRange, Structured
from quire.serve.protocol.raw_parts import kind_of, read_object, read_text

SAME = (
    "top_p", "min_p", "include_stop_str_in_output", "ignore_eos", "min_tokens", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "length_penalty", "n", "priority",
)  # fmt: skip
NUMBERS = (*SAME, "temperature", "top_k", "use_beam_search")
WORDS = ("stop", "stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "seed")  # a client's own
TEMPERATURE = 1.0  # OpenAI's; other defaults are those of a Sampling
SEEDS = 1 << 64
TOKEN_ID = re.compile(r"[0-9]{1,10}")
A_DAY = 86_400.0
KEPT = 80  # priority of pages that a client asks to keep; others have 35


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """How long and how much a client may ask to keep pages."""

    seconds: float
    priority: int = HIGHEST


def sampling_of(
    asked: GenerationBody, max_tokens: int, logprobs: int | None, form: StructuredOutputs | None
) -> Sampling:
    """How tokens are chosen. What a Sampling itself refuses is an InputError that names its own field."""
    numbers = tuple([getattr(asked, name) for name in NUMBERS])
    words = {name: value for name in WORDS if (value := getattr(asked, name)) is not None}
    if form is None and not words:
        return _remembered(numbers, max_tokens, logprobs)
    return _make(dict(zip(NUMBERS, numbers, strict=True)) | words, max_tokens, logprobs, form)


@lru_cache(maxsize=256)
def _remembered(numbers: tuple[Any, ...], max_tokens: int, logprobs: int | None) -> Sampling:
    """Most requests ask for the same numbers as others: what was checked is not checked again."""
    return _make(dict(zip(NUMBERS, numbers, strict=True)), max_tokens, logprobs, None)


def _make(asked: Mapping[str, Any], max_tokens: int, logprobs: int | None, form: StructuredOutputs | None) -> Sampling:
    """A Sampling of what was given; null is as good as nothing."""
    fields = {name: asked[name] for name in (*SAME, "stop", "bad_words", "allowed_token_ids") if name in asked}
    fields["temperature"] = TEMPERATURE if asked["temperature"] is None else asked["temperature"]
    fields["top_k"] = max(asked["top_k"] or 0, 0)  # -1 is all of them, as 0 is
    fields["seed"] = None if "seed" not in asked else asked["seed"] % SEEDS
    fields["stop_ids"] = asked.get("stop_token_ids")
    fields["logit_bias"] = _bias(asked.get("logit_bias", {}))
    if asked["use_beam_search"]:
        fields |= _beams(asked)
    given = {name: value for name, value in fields.items() if value is not None}
    return Sampling(max_tokens=max_tokens, logprobs=logprobs, structured_outputs=form, **given)


def _beams(asked: Mapping[str, Any]) -> dict[str, Any]:
    """As many beams as answers. They are weighed by the model's own numbers, which is what temperature 1 means."""
    if asked["temperature"] not in (None, 0, 1):
        fact = f"it is {shown(asked['temperature'])}, and beams are weighed by the model's own numbers"
        raise ApiError(400, say("temperature", fact, "leave it out with use_beam_search"), param="temperature")
    return {"beams": asked["n"] or 1, "temperature": 0.0}


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    for name in given:
        if TOKEN_ID.fullmatch(name) is None:
            where = f"logit_bias.{shown(name)[1:-1]}"
            raise ApiError(400, say(where, "it is not a token id", "use token ids as names"), param=where)
    return {int(name): amount for name, amount in given.items()}


def form_of(asked: GenerationBody) -> StructuredOutputs | None:
    """The form that the answer must have, if one was asked for."""
    wanted, form = asked.response_format, asked.structured_outputs
    given = {} if form is None else _given(form)
    if given and isinstance(wanted, JsonSchemaFormat | JsonObjectFormat):
        fact = "response_format asks for a form as well"
        raise ApiError(400, say("structured_outputs", fact, "give one of them"), param="structured_outputs")
    if isinstance(wanted, JsonSchemaFormat):
        where = "response_format.json_schema.schema"
        schema = read_object(wanted.json_schema.schema, where)
        if schema is None:
            raise ApiError(400, say(where, "it is null", "give an object"), param=where)
        return StructuredOutputs(json=schema)
    if isinstance(wanted, JsonObjectFormat) or given.keys() == {"json_object"}:
        return StructuredOutputs(json={"type": "object"})
    if form is None:
        return None
    if "json_object" in given:
        raise ApiError(
            400, say("structured_outputs", f"{' and '.join(given)} are given", "give one"), param="structured_outputs"
        )
    return StructuredOutputs(**given)


def _given(form: Structured) -> dict[str, Any]:
    """What it asks for, by name."""
    for name in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(form, name):
            where = f"structured_outputs.{name}"
            raise ApiError(400, say(where, "this server cannot do that", "leave it out"), param=where)
    given = {"json": _schema(form.json), "regex": form.regex, "choice": form.choice, "json_object": form.json_object}
    return {name: value for name, value in given.items() if value not in (None, False)}


def _schema(raw: Raw | UnsetType) -> dict[str, Any] | None:
    """A JSON schema that is given as an object, or as the text of one."""
    where = "structured_outputs.json"
    if isinstance(raw, Raw) and kind_of(raw) == "str":
        raw = Raw(read_text(raw, where).encode())
    return read_object(raw, where)


def retention_of(asked: GenerationBody, bounds: RetentionBounds) -> Retention | None:
    """What of the prompt shall outlive its request, and how long."""
    given = asked.retention
    if isinstance(asked, ChatBody) and asked.prompt_cache_retention == "24h":
        if given is not None:
            fact = "prompt_cache_retention is given as well"
            raise ApiError(400, say("retention", fact, "give one of them"), param="retention")
        given = Keep(seconds=min(A_DAY, bounds.seconds))
    if given is None:
        return None
    priority = min(KEPT, bounds.priority) if given.priority is None else given.priority
    seconds = bounds.seconds if given.seconds is None else given.seconds
    for name, value, most in (("seconds", seconds, bounds.seconds), ("priority", priority, bounds.priority)):
        _check_most(f"retention.{name}", value, most)
    if given.ranges is None:
        return Retention([RetainRange(0, None, priority, seconds)])
    return Retention([_range(one, seconds, bounds, nth) for nth, one in enumerate(given.ranges)])


def _range(given: KeptRange, seconds: float, bounds: RetentionBounds, nth: int) -> RetainRange:
    seconds = seconds if given.seconds is None else given.seconds
    _check_most(f"retention.ranges[{nth}].seconds", seconds, bounds.seconds)
    _check_most(f"retention.ranges[{nth}].priority", given.priority, bounds.priority)
    return RetainRange(given.start or 0, given.end, given.priority, seconds)


def _check_most(where: str, value: float, most: float) -> None:
    if value > most:
        raise ApiError(400, say(where, f"it is {value:g}", f"give at most {most:g}"), param=where)
