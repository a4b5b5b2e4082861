"""From the fields of a request to a Sampling, with OpenAI's defaults. Knows fields and the record, no endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quire.core.records.config import HIGHEST
from quire.core.records.errors import say, shown
from quire.core.records.retain import RetainRange, Retention
from quire.engine.choose.sampling import Sampling
from quire.engine.choose.structured import StructuredOutputs
from quire.serve.errors import ApiError

SAME = (
    "min_p", "include_stop_str_in_output", "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "allowed_token_ids", "bad_words", "length_penalty",
)  # fmt: skip
WHOLE = ("top_k", "min_tokens", "n", "priority")
# nothing that a client wrote is kept
NO_WORDS: dict[str, Any] = {
    "stop": (),
    "stop_token_ids": (),
    "bad_words": (),
    "logit_bias": {},
    "allowed_token_ids": None,
}
NUMBERS = (*(name for name in SAME if name not in NO_WORDS), *WHOLE, "temperature", "top_p", "use_beam_search")
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
    asked: Mapping[str, Any], max_tokens: int, logprobs: int | None, form: StructuredOutputs | None
) -> Sampling:
    """How tokens are chosen. What a Sampling itself refuses is an InputError that names its own field."""
    if form is not None or asked["seed"] is not None or any(asked[name] for name in NO_WORDS):
        return _made(asked, max_tokens, logprobs, form)
    numbers = tuple([asked[name] for name in NUMBERS])
    return _remembered(numbers, tuple(map(type, numbers)), max_tokens, logprobs)


@lru_cache(maxsize=256)
def _remembered(numbers: tuple[Any, ...], _: tuple[type, ...], max_tokens: int, logprobs: int | None) -> Sampling:
    """Most requests ask for the same numbers as others: what was checked is not checked again. 1 and 1.0 are two."""
    asked = {**NO_WORDS, "seed": None, **dict(zip(NUMBERS, numbers, strict=True))}
    return _made(asked, max_tokens, logprobs, None)


def _made(asked: Mapping[str, Any], max_tokens: int, logprobs: int | None, form: StructuredOutputs | None) -> Sampling:
    fields: dict[str, Any] = {name: asked[name] for name in SAME}
    fields |= {name: int(asked[name]) for name in WHOLE}
    fields["top_k"] = max(fields["top_k"], 0)  # -1 is all of them, as 0 is
    fields["temperature"], fields["top_p"] = asked["temperature"], asked["top_p"]
    fields["seed"] = None if asked["seed"] is None else int(asked["seed"]) % SEEDS
    fields["stop"], fields["stop_ids"] = asked["stop"], [int(token) for token in asked["stop_token_ids"]]
    if asked["allowed_token_ids"] is not None:
        fields["allowed_token_ids"] = [int(token) for token in asked["allowed_token_ids"]]
    fields["logit_bias"] = _bias(asked["logit_bias"])
    if asked["use_beam_search"]:
        fields |= _beams(asked)
    return Sampling(max_tokens=max_tokens, logprobs=logprobs, structured_outputs=form, **fields)


def _beams(asked: Mapping[str, Any]) -> dict[str, Any]:
    """As many beams as answers. They are weighed by the model's own numbers, which is what temperature 1 means."""
    if asked["temperature"] not in (0, 1):
        fact = f"it is {shown(asked['temperature'])}, and beams are weighed by the model's own numbers"
        raise ApiError(400, say("temperature", fact, "leave it out with use_beam_search"), param="temperature")
    return {"beams": int(asked["n"]), "temperature": 0.0}


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    for name in given:
        if TOKEN_ID.fullmatch(name) is None:
            where = f"logit_bias.{shown(name)[1:-1]}"
            raise ApiError(400, say(where, "it is no token id", "use token ids as names"), param=where)
    return {int(name): amount for name, amount in given.items()}


def form_of(asked: Mapping[str, Any]) -> StructuredOutputs | None:
    """The form that the answer must have, if one was asked for."""
    wanted, form = asked["response_format"], asked["structured_outputs"]
    kind = None if wanted is None else wanted["type"]
    given = {name: value for name, value in (form or {}).items() if value not in (None, False)}
    if kind not in (None, "text") and given:
        fact = "response_format asks for a form as well"
        raise ApiError(400, say("structured_outputs", fact, "give one of them"), param="structured_outputs")
    if kind == "json_schema":
        return StructuredOutputs(json=wanted["json_schema"]["schema"])
    if kind == "json_object" or given == {"json_object": True}:
        return StructuredOutputs(json={"type": "object"})
    if form is None:
        return None
    if "json_object" in given:
        raise ApiError(
            400, say("structured_outputs", f"{' and '.join(given)} are given", "give one"), param="structured_outputs"
        )
    return StructuredOutputs(**given)


def retention_of(asked: Mapping[str, Any], bounds: RetentionBounds) -> Retention | None:
    """What of the prompt shall outlive its request, and how long."""
    given = asked["retention"]
    if asked.get("prompt_cache_retention") == "24h":
        if given is not None:
            fact = "prompt_cache_retention is given as well"
            raise ApiError(400, say("retention", fact, "give one of them"), param="retention")
        given = {"seconds": min(A_DAY, bounds.seconds)}
    if given is None:
        return None
    ranges = given.get("ranges") or [{"start": 0}]
    plain = {"priority": min(KEPT, bounds.priority), "seconds": bounds.seconds}
    plain |= {name: given[name] for name in plain if given.get(name) is not None}
    return Retention([_range(one, plain, bounds, nth) for nth, one in enumerate(ranges)])


def _range(given: Mapping[str, Any], plain: Mapping[str, Any], bounds: RetentionBounds, nth: int) -> RetainRange:
    said = {**plain, **{name: value for name, value in given.items() if value is not None}}
    for name, most in (("seconds", bounds.seconds), ("priority", bounds.priority)):
        if said[name] > most:
            where = f"retention.ranges[{nth}].{name}" if name in given else f"retention.{name}"
            raise ApiError(400, say(where, f"it is {said[name]}", f"give at most {most:g}"), param=where)
    end = said.get("end")
    return RetainRange(
        int(said.get("start", 0)), None if end is None else int(end), int(said["priority"]), float(said["seconds"])
    )
