"""The OpenAPI document: written from the types that requests are decoded by. Nothing but data."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.serve.http.api_errors import TYPES
from quire.serve.http.serve_settings import VERSION, ServeSettings
from quire.serve.protocol.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

_ERROR = {
    "type": "object", "required": ["error"],
    "properties": {
        "error": {
            "type": "object", "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"}, "type": {"enum": sorted(set(TYPES.values()))},
                "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]},
            },
        }
    },
}  # fmt: skip
_USAGE = {
    "type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
}  # fmt: skip
_ANSWER = {
    "type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"}, "object": {"type": "string"}, "created": {"type": "integer"},
        "model": {"type": "string"}, "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "usage": _USAGE,
    },
}  # fmt: skip
_TOKENS = {"type": "object", "required": ["count", "max_model_len", "tokens"]}
_TEXT = {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}}
_ANY = {"type": "object"}
_BODIES = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)
_REFERENCE = "#/components/schemas/{name}"


def document(settings: ServeSettings) -> dict[str, Any]:
    """What may be asked, and what comes of it."""
    paths: dict[str, Any] = {
        "/v1/chat/completions": _post("A conversation goes on.", ChatBody, _ANSWER, events=True),
        "/v1/completions": _post("A text goes on.", CompletionBody, _ANSWER, events=True),
        "/tokenize": _post("Token ids of a text, or of a conversation.", TokenizeBody, _TOKENS),
        "/detokenize": _post("The text of token ids.", DetokenizeBody, _TEXT),
        "/v1/models": _get("The model there is."),
        f"/v1/models/{settings.model_name}": _get("The model there is."),
        "/health": _get("Whether it computes.", 503),
        "/ready": _get("Whether it takes requests.", 503),
        "/version": _get("The version of Quire."),
        "/bills": _get("What each tenant used.", 404),
        "/metrics": {
            "get": {"summary": "For Prometheus.", "responses": {"200": _text("text/plain"), **_errors(401, 403)}}
        },
    }
    _, schemas = msgspec.json.schema_components(_BODIES, ref_template=_REFERENCE)
    made: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": "Quire", "version": VERSION}, "paths": paths}
    made["components"] = {"schemas": schemas}
    if settings.keys is not None:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def _post(summary: str, kind: type[msgspec.Struct], answer: dict[str, Any], events: bool = False) -> dict[str, Any]:
    body = {"$ref": _REFERENCE.format(name=kind.__name__)}
    content: dict[str, Any] = {"application/json": {"schema": answer}}
    if events:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    asked = {"required": True, "content": {"application/json": {"schema": body}}}
    replies = {"200": {"description": "The answer.", "content": content}}
    errors = _errors(400, 401, 403, 404, 408, 413, 415, 429, 500, 503)
    return {"post": {"summary": summary, "requestBody": asked, "responses": {**replies, **errors}}}


def _get(summary: str, *statuses: int) -> dict[str, Any]:
    reply = {"description": "It is so.", "content": {"application/json": {"schema": _ANY}}}
    return {"get": {"summary": summary, "responses": {"200": reply, **_errors(401, 403, *statuses)}}}


def _text(kind: str) -> dict[str, Any]:
    return {"description": "Text.", "content": {kind: {"schema": {"type": "string"}}}}


def _errors(*statuses: int) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": _ERROR}}}
    return {str(status): {"description": TYPES[status], **error} for status in statuses}
