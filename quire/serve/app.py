"""The application: every endpoint of a Service, as FastAPI serves them. Knows paths, no handlers' work."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from quire.core.records.errors import say
from quire.serve import routes
from quire.serve.endpoint import Handler, HttpEndpoint
from quire.serve.errors import ApiError
from quire.serve.exchange import Receive, Send
from quire.serve.service import Service
from quire.serve.settings import VERSION
from quire.viewer.many import FLEET_PATHS
from quire.viewer.routes import PATHS

PAGE = tuple(dict.fromkeys((*PATHS, *FLEET_PATHS)))
POSTS: dict[str, Handler] = {
    "/v1/chat/completions": routes.chat,
    "/v1/completions": routes.completions,
    "/tokenize": routes.tokenize,
    "/detokenize": routes.detokenize,
}
GETS: dict[str, Handler] = {
    "/v1/models": routes.models,
    "/health": routes.health,
    "/ready": routes.ready,
    "/version": routes.version,
    "/metrics": routes.metrics,
    "/openapi.json": routes.openapi,
    **dict.fromkeys(PAGE, routes.live_page),
}
# To anybody, with API keys too: they tell nothing, or ask for a key.
OPEN = ("/health", "/ready", "/version", "/openapi.json", *PAGE)


def make_app(service: Service) -> FastAPI:
    """An ASGI application; the LLM stays its maker's."""
    app = FastAPI(
        title="Quire", version=VERSION, openapi_url=None, redirect_slashes=False
    )  # all that it serves is ours
    for (method, path), endpoint in endpoints(service).items():
        made: Any = endpoint
        app.router.routes.append(Route(path, made, methods=[method]))
    app.add_exception_handler(HTTPException, _no_such)  # type: ignore[arg-type]
    if service.settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(service.settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"], expose_headers=["x-request-id"],
        )  # fmt: skip
    return app


def endpoints(service: Service) -> dict[tuple[str, str], HttpEndpoint]:
    """By method and path."""
    found = {("POST", path): HttpEndpoint(service, path, handle) for path, handle in POSTS.items()}
    for path, handle in GETS.items():
        found["GET", path] = HttpEndpoint(service, path, handle, is_open=path in OPEN, is_quiet=path in PAGE)
    one = HttpEndpoint(service, "/v1/models/{model}", routes.model)
    return {**found, ("GET", f"/v1/models/{service.settings.model_name}"): one}


class ShortWay:
    """An application whose known paths go straight to their endpoints: FastAPI's layers around them do nothing there.

    They would cost as much as a small request does. All else goes through them.
    """

    def __init__(self, service: Service) -> None:
        self._app = make_app(service)
        self._endpoints = {} if service.settings.origins else endpoints(service)  # CORS is one of the layers

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One connection's request."""
        known = self._endpoints.get((scope.get("method"), scope.get("path")))
        await (self._app if known is None else known)(scope, receive, send)


async def _no_such(_: Request, wrong: HTTPException) -> JSONResponse:
    """A path or a method that there is not."""
    fact = "there is no such path" if wrong.status_code == 404 else "the path has another method"
    told = ApiError(wrong.status_code, say("the request", fact, "see /openapi.json"))
    return JSONResponse(told.body, wrong.status_code, headers=dict(wrong.headers or {}))
