"""ServeSettings: what an operator decides about a server, checked once. Knows no model."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

from quire.core.records.caller_arguments import keep_tuples
from quire.core.records.errors import InputError, check_text, say, shown
from quire.serve.http.auth import ApiKeys
from quire.viewer.page_routes import PageKey, checked_key

VERSION: str = importlib.import_module("quire").__version__


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Bounds of requests, and which clients may send them."""

    model_name: str  # as clients name it
    keys: ApiKeys | None = field(default=None, repr=False)  # None: every client that can connect
    hosts: tuple[str, ...] | None = None  # names that a Host header may have; None: any
    origins: tuple[str, ...] = ()  # of pages whose scripts may ask (CORS); none by default
    queue_seconds: float = 0.0  # how long a request may wait for a place in a full engine, before it gets 429
    body_seconds: float = 30.0  # how long a body may take to come
    max_connections: int = 1024  # open at the same time; what the process may have of files bounds them too
    max_body: int = 4 << 20  # bytes of one
    max_bodies: int = 256 << 20  # bytes of all that are being read
    max_characters: int = 64  # of a prompt, per token of the longest one: more is refused before it is tokenized
    max_retain_seconds: float = 86_400.0  # longest time that a client may ask to keep pages for
    max_retain_priority: int = 90  # and the highest priority
    allow_priority: bool = False  # whether clients may choose who is scheduled first
    viewer: bool | None = None  # the live page; None: with a key of its own, or where only this machine may ask
    viewer_key: str | None = field(default=None, repr=False)  # of the operator: its holder may look
    show_tokens: bool = False  # whether the page shows prompts

    def __post_init__(self) -> None:
        keep_tuples(self, "hosts", "origins")
        if not isinstance(self.model_name, str) or not self.model_name:
            raise InputError(say("a server", f"model_name is {shown(self.model_name)}", "give the model a name"))
        check_text(self.model_name, "the model_name of a server")
        for name in ("queue_seconds", "body_seconds", "max_body", "max_bodies", "max_characters", "max_retain_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise InputError(say("a server", f"{name} is {shown(value)}", "give a number from 0 on"))
        if type(self.max_connections) is not int or self.max_connections < 1:
            fact = f"max_connections is {shown(self.max_connections)}"
            raise InputError(say("a server", fact, "give a whole number from 1 on"))
        if type(self.max_retain_priority) is not int or not 0 <= self.max_retain_priority <= 100:
            fact = f"max_retain_priority is {shown(self.max_retain_priority)}"
            raise InputError(say("a server", fact, "give a whole number from 0 to 100"))
        if self.viewer_key is not None:
            checked_key(self.viewer_key)
        elif self.viewer and self.keys is not None:
            fact = "every holder of an API key could read what others ask"
            raise InputError(say("the live page of a server with API keys", fact, "give it a viewer_key"))

    def is_operator(self, authorization: bytes) -> bool:
        """Whether a client has the operator's key, if there is one: that of the live page."""
        if self.viewer_key is None:
            return False
        return PageKey(self.viewer_key).refusal(authorization.decode("latin-1")) is None

    @property
    def has_viewer(self) -> bool:
        """Whether the live page is there."""
        if self.viewer is not None:
            return self.viewer
        return self.viewer_key is not None or (self.keys is None and self.hosts is not None)
