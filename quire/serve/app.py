"""The application: every endpoint of a Service, as Starlette serves them. Knows paths, no handlers' work."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from quire.core.records.errors import say
from quire.serve import chat_completions, other_routes
from quire.serve.any_service import AnyService
from quire.serve.http.api_errors import ApiError
from quire.serve.http_endpoint import Handler, HttpEndpoint
from quire.viewer.many import FLEET_PATHS
from quire.viewer.page_routes import PATHS

PAGE = tuple(dict.fromkeys((*PATHS, *FLEET_PATHS)))
POSTS: dict[str, Handler] = {
    "/v1/chat/completions": chat_completions.chat,
    "/v1/completions": chat_completions.completions,
    "/tokenize": other_routes.tokenize,
    "/detokenize": other_routes.detokenize,
}
GETS: dict[str, Handler] = {
    "/v1/models": other_routes.models,
    "/health": other_routes.health,
    "/ready": other_routes.ready,
    "/version": other_routes.version,
    "/metrics": other_routes.metrics,
    "/openapi.json": other_routes.openapi,
    **dict.fromkeys(PAGE, other_routes.live_page),
}
# Without a key, with API keys too: they reveal nothing, or ask for a key.
OPEN = ("/health", "/ready", "/version", "/openapi.json", *PAGE)


def make_app(service: AnyService) -> Starlette:
    """An ASGI application; the LLM stays its maker's."""
    routes = [_route(method, path, endpoint) for (method, path), endpoint in endpoints(service).items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such})
    app.router.redirect_slashes = False
    if service.settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(service.settings.origins), allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"], expose_headers=["x-request-id"],
        )  # fmt: skip
    return app


def endpoints(service: AnyService) -> dict[tuple[str, str], HttpEndpoint]:
    """By method and path."""
    found = {("POST", path): HttpEndpoint(service, path, handle) for path, handle in POSTS.items()}
    for path, handle in GETS.items():
        found["GET", path] = HttpEndpoint(service, path, handle, is_open=path in OPEN, is_quiet=path in PAGE)
    one = HttpEndpoint(service, "/v1/models/{model}", other_routes.model)
    return {**found, ("GET", f"/v1/models/{service.settings.model_name}"): one}


def _route(method: str, path: str, endpoint: HttpEndpoint) -> Route:
    made: Any = endpoint
    return Route(path, made, methods=[method])


async def _no_such(_: Request, wrong: Exception) -> JSONResponse:
    """A path or a method that there is not."""
    assert isinstance(wrong, HTTPException)  # for which it is called
    fact = "there is no such path" if wrong.status_code == 404 else "the path has another method"
    error = ApiError(wrong.status_code, say("the request", fact, "see /openapi.json"))
    return JSONResponse(error.body, wrong.status_code, headers=dict(wrong.headers or {}))
