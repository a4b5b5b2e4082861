"""Serve: an OpenAI-compatible server over an LLM. Re-exports what its users need. Needs the extra `serve`.

    client ──HTTP──► Endpoint ──read──► Generation ──submit──► the engine's loop
           ◄─JSON, events── form ◄──────────────── pieces ◄───'

What may be asked stands in `protocol/`; time and scheduling stay the engine's.
"""

try:
    import httptools as _httptools  # noqa: F401
    import msgspec as _msgspec  # noqa: F401
    import prometheus_client as _prometheus_client  # noqa: F401
    import starlette as _starlette  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import MissingExtra, install_line, say

    fact = f"it needs starlette, uvicorn, httptools, msgspec and prometheus_client ({missing})"
    raise MissingExtra(say("quire.serve", fact, install_line("serve"))) from missing

from quire.serve.app import make_app
from quire.serve.http.auth import ApiKeys
from quire.serve.http.serve_settings import ServeSettings
from quire.serve.server import Server, bind
from quire.serve.service import Service

__all__ = ["ApiKeys", "ServeSettings", "Server", "Service", "bind", "make_app"]
