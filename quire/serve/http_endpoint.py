"""Endpoint: an ASGI application around one handler. Owns who may ask, what an error becomes, and what is counted of it.

Every request ends in exactly one of: a reply, an error, an error event behind what was streamed, a client that left.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quire.core.records.errors import say
from quire.serve.any_service import AnyService
from quire.serve.http.api_errors import ApiError, as_api_error
from quire.serve.http.auth import NO_TENANT
from quire.serve.http.exchange import ClientGone, Exchange, Receive, Send, event

CLIENT_LEFT = 499  # as nginx says it
METRICS, BILLS = "/metrics", "/bills"  # the operator sees all of it; answered until the end
_log = logging.getLogger("quire.serve")
Handler = Callable[[AnyService, Exchange, str], Awaitable[None]]


class HttpEndpoint:
    """`handle` gets the service, the exchange and the tenant; with `is_open` no key is needed.

    With `is_quiet` requests are logged for debugging only: an open page asks twice a second.
    """

    def __init__(
        self, service: AnyService, path: str, handle: Handler, *, is_open: bool = False, is_quiet: bool = False
    ) -> None:
        self._service, self._path, self._handle, self._is_open = service, path, handle, is_open
        self._level = logging.DEBUG if is_quiet else logging.INFO

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """One request, from its first byte to its last."""
        exchange = Exchange(scope, receive, send)
        began = time.perf_counter()
        status, metrics = 500, self._service.metrics
        metrics.begun()
        try:
            tenant = exchange.tenant = self._tenant(exchange)
            if tenant != NO_TENANT:
                metrics.of_tenant(tenant).begun()
            if not self._is_open and self._path not in (METRICS, BILLS):
                self._service.check_open()
            await self._handle(self._service, exchange, tenant)
            status = exchange.status
        except ClientGone:
            status = CLIENT_LEFT
        except asyncio.CancelledError:
            status = 503  # the server ends, and waits no longer
            raise
        except Exception as error:
            status = await self._tell(exchange, error)
        finally:
            metrics.ended(self._path, status)
            if exchange.tenant != NO_TENANT:
                metrics.of_tenant(exchange.tenant).ended(self._path, status)
            _log.log(self._level, "%s %s %d %.3f s", exchange.id, self._path, status, time.perf_counter() - began)

    def _tenant(self, exchange: Exchange) -> str:
        """Who asks; refuses those who may not."""
        settings = self._service.settings
        if settings.hosts is not None and host_name(exchange.header(b"host")) not in settings.hosts:
            fact = "the Host header names none of this server's names"  # a page whose name leads here, perhaps
            raise ApiError(403, say("the request", fact, "start it with --allow-host NAME, or with API keys"))
        if settings.keys is None or self._is_open:
            return NO_TENANT
        if self._path in (METRICS, BILLS) and settings.is_operator(exchange.header(b"authorization")):
            return NO_TENANT  # the operator: the numbers of all
        tenant = settings.keys.tenant(exchange.header(b"authorization"))
        if tenant is None:
            cure = "send authorization: Bearer KEY"
            headers = {"www-authenticate": "Bearer"}
            raise ApiError(
                401, say("the API key", "it is not one of ours", cure), code="invalid_api_key", headers=headers
            )
        return tenant

    async def _tell(self, exchange: Exchange, error: Exception) -> int:
        """The error to the client, in the form that is still possible."""
        found = as_api_error(error)
        if found.status == 500:
            _log_failure(exchange.id, error)
        if exchange.complete:
            return found.status
        try:
            if exchange.status == 0:
                await exchange.reply(found.status, found.body, found.headers)
            else:
                await exchange.end_events(event(found.body))
        except Exception as also:  # the connection broke meanwhile
            _log_failure(exchange.id, also)
        return found.status


def host_name(header: bytes) -> str:
    """The name in a Host header, without its port."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _log_failure(request: str, error: Exception) -> None:
    """Where it happened, without its message: that may have words of a prompt."""
    frames = "".join(traceback.format_tb(error.__traceback__)[-4:])
    _log.error("%s failed with %s\n%s", request, type(error).__name__, frames)
