"""Every route but those that generate: tokens, models, health, metrics, the live page; and how all read a body."""

from __future__ import annotations

from typing import Any, TypeVar

from quire.core.records.errors import say, shown
from quire.serve.any_service import AnyService
from quire.serve.http.api_errors import RETRY_AFTER, ApiError
from quire.serve.http.auth import NO_TENANT
from quire.serve.http.exchange import JSON, Exchange, encoded, encoded_list
from quire.serve.http.serve_settings import VERSION
from quire.serve.inputs.tools import template_tools
from quire.serve.protocol.bodies import Body, DetokenizeBody, TokenizeBody
from quire.serve.protocol.decode import LARGE, read_body
from quire.serve.protocol.openapi import document
from quire.serve.protocol.raw_parts import check_raw_parts, read_tokens

B = TypeVar("B", bound=Body)


async def read_asked(service: AnyService, exchange: Exchange, kind: type[B]) -> B:
    """The fields of a body, which asks for the model that there is."""
    settings = service.settings
    async with exchange.body(settings.max_body, settings.body_seconds, service.bodies) as data:
        asked = await service.large.do(len(data), lambda: read_body(data, kind), LARGE)
    check_raw_parts(asked)
    if asked.model not in (None, settings.model_name):
        fact = f"this server has {settings.model_name} only"
        raise ApiError(
            404, say(f"model {shown(asked.model)}", fact, "name that one"), param="model", code="model_not_found"
        )
    if getattr(asked, "priority", None) and not settings.allow_priority:
        fact = "this server does not let clients choose it"
        raise ApiError(400, say("priority", fact, "leave it out"), param="priority", code="unsupported")
    return asked


async def tokenize(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """POST /tokenize: a text, or a conversation."""
    asked = await read_asked(service, exchange, TokenizeBody)
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError(400, say("prompt", "there must be either it or messages", "give one of them"), param="prompt")
    await exchange.reply_bytes(
        200, await service.large.do(exchange.body_size, lambda: _tokenized(service, asked)), JSON
    )


def _tokenized(service: AnyService, asked: TokenizeBody) -> bytes:
    """The reply: large ones are made beside the event loop as well."""
    if asked.prompt is not None:
        tokens = service.prompts.of_text(asked.prompt, asked.add_special_tokens is not False)
    else:
        tokens = service.prompts.of_chat(asked, template_tools(asked.tools))
    strings = service.prompts.tokenizer.convert_ids_to_tokens(tokens) if asked.return_token_strs else None
    head = encoded({"count": len(tokens), "max_model_len": service.longest})
    return head[:-1] + b',"tokens":' + encoded_list(tokens) + b',"token_strs":' + encoded_list(strings) + b"}"


async def detokenize(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """POST /detokenize."""
    asked = await read_asked(service, exchange, DetokenizeBody)
    await exchange.reply_bytes(200, await service.large.do(exchange.body_size, lambda: _text_of(service, asked)), JSON)


def _text_of(service: AnyService, asked: DetokenizeBody) -> bytes:
    """The reply."""
    tokens = service.prompts.of_tokens(read_tokens(asked.tokens, "tokens"), "tokens")
    return encoded({"prompt": service.prompts.to_text(tokens, "tokens", special=True)})


async def models(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /v1/models: the one there is."""
    await exchange.reply(200, {"object": "list", "data": [_model(service)]})


async def model(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /v1/models/NAME, whose name the route has compared."""
    await exchange.reply(200, _model(service))


async def health(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /health: whether it computes. 503 is permanent: start it anew."""
    wrong = service.wrong
    if wrong is not None:
        raise ApiError(503, say("the engine", wrong, "start the server anew"), code="engine_failed")
    await exchange.reply(200, {"status": "ok"})


async def ready(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /ready: whether it takes requests, and every thread that these depend on is at work (`thread_watch`)."""
    if service.ending:
        raise ApiError(503, say("the server", "it is shutting down", "ask another one"), code="shutting_down")
    for part, why in service.troubles.items():
        if part != "engine":  # which /health reports, with what to do
            cure = "ask another one until it is back"
            raise ApiError(503, say(f"the {part}", why, cure), code="not_ready", headers=RETRY_AFTER)
    await health(service, exchange, tenant)


async def version(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /version."""
    await exchange.reply(200, {"version": VERSION})


async def metrics(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /metrics, for Prometheus: a tenant's own numbers, or to the operator, and where there are no keys, all."""
    data = service.metrics.text(tenant)
    await exchange.reply_bytes(200, data, "text/plain; version=0.0.4; charset=utf-8")


async def bills(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /bills: what a tenant used, or to the operator, and where there are no keys, what each did."""
    bill = await service.bill()
    if bill is None:
        raise ApiError(404, say("the bills", "this server keeps none", "start it with --bills FOLDER"))
    await exchange.reply(200, (bill if tenant == NO_TENANT else bill.of_tenant(tenant)).to_json())


async def openapi(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET /openapi.json: what may be asked, for programs."""
    await exchange.reply(200, document(service.settings))


async def live_page(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """GET / and what the page asks for; who may look is decided there."""
    key = exchange.header(b"authorization").decode("latin-1")
    reply = await service.look(exchange.path, exchange.query.decode("latin-1"), key)
    if reply is None:
        fact = "it is off: this server has API keys, or others than this machine can reach it"
        raise ApiError(404, say("the live page", fact, "start the server with --viewer-key-file FILE"))
    await exchange.reply_bytes(reply.status, reply.body, reply.kind, reply.headers)


def _model(service: AnyService) -> dict[str, Any]:
    name = service.settings.model_name
    made = {"id": name, "object": "model", "created": service.created, "owned_by": "quire", "root": name}
    return {**made, "max_model_len": service.longest}
