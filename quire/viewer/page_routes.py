"""Routes: what each path of the page answers, for whichever server asks. Owns who may ask, and the headers.

Paths and answers are few and fixed: the page's own files, a snapshot, a receipt. Nothing a client sends is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from urllib.parse import parse_qs

from quire.core.records.errors import InputError, say
from quire.net.secrets import LONGEST, SHORTEST, KeyRing
from quire.viewer.brief import brief_of
from quire.viewer.cells import COLOURS
from quire.viewer.receipts import receipt_of
from quire.viewer.sampler import Sampler
from quire.viewer.snapshot import Snapshots
from quire.viewer.source import CacheSource

TOO_MANY = "the query has more than 8 fields"
FILES = {  # path -> file and kind
    "/": ("page.html", "text/html; charset=utf-8"),
    "/viewer/page.css": ("page.css", "text/css; charset=utf-8"),
    "/viewer/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/viewer/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("page", "live", "draw", "maps", "panels", "receipt", "regret", "theme", "tree", "words")
    },
}
SNAPSHOT, RECEIPT, BRIEF = "/viewer/snapshot", "/viewer/receipt", "/viewer/brief"
PATHS = (*FILES, SNAPSHOT, RECEIPT, BRIEF)
POLICY = (  # of the page: its own files only, no script or style in the page itself
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))


class PageKey:
    """Who may look: the key's holders, or everyone where there is none."""

    def __init__(self, key: str | None) -> None:
        self._keys = KeyRing(b"quire-page-key")
        if key is not None:
            self._keys.add(checked_key(key).encode())

    def __repr__(self) -> str:
        return f"PageKey({'one' if self.is_there else 'none'})"

    @property
    def is_there(self) -> bool:
        """Whether there is one. Its holder is the operator, and sees more."""
        return len(self._keys) > 0

    def refusal(self, authorization: str) -> Reply | None:
        """What a request without it is answered; None: it may look."""
        if not self.is_there or self._keys.whose(authorization.encode(errors="replace")) is not None:
            return None
        return wrong(401, "send authorization: Bearer KEY, with the key of this page", {"www-authenticate": "Bearer"})


class PageRoutes:
    """The answers about one source. With a key only its holders get more than the page's own files."""

    def __init__(self, source: CacheSource, key: str | None = None, show_tokens: bool = False) -> None:
        self._key = PageKey(key)
        self.snapshots = Snapshots(source, show_tokens)
        self.sampler = Sampler(self.snapshots)

    def answer(self, path: str, query: str, authorization: str) -> Reply:
        """To GET `path`; blocks for as long as a snapshot takes."""
        if path in FILES:
            name, kind = FILES[path]
            return Reply(200, static(name), kind)
        if path not in PATHS:
            return wrong(404, "there is no such path")
        return self._key.refusal(authorization) or self.show(path, query, self._key.is_there)

    def show(self, path: str, query: str, is_operator: bool) -> Reply:
        """The answer to a request that may look."""
        asked = query_fields(query)
        if asked is None:
            return wrong(400, TOO_MANY)
        if path == BRIEF:
            return Reply(200, _json(brief_of(self.snapshots.source)))
        return self._snapshot(asked) if path == SNAPSHOT else self._receipt(asked, is_operator)

    def _snapshot(self, asked: dict[str, list[str]]) -> Reply:
        wanted = asked.get("colour", ["state"])[0]
        colour = next((one for one in COLOURS if one == wanted), None)
        if colour is None:
            return wrong(400, f"colour is one of {', '.join(COLOURS)}")
        return Reply(200, self.sampler.body(colour, history="history" in asked))

    def _receipt(self, asked: dict[str, list[str]], is_operator: bool) -> Reply:
        number = asked.get("request", [""])[0]
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return wrong(400, "request is the number of one that the page shows")
        answer = receipt_of(self.snapshots, int(number), is_operator)
        return wrong(404, "that request is over") if answer is None else Reply(200, _json(answer))


def query_fields(query: str) -> dict[str, list[str]] | None:
    """Of a URL; None: it has more than there are."""
    try:
        return parse_qs(query[:400], max_num_fields=8)
    except ValueError:
        return None


def checked_key(key: str) -> str:
    """A key that can be sent in a header and not be guessed; raises otherwise."""
    if not isinstance(key, str) or not SHORTEST <= len(key) <= LONGEST or not key.isascii() or not key.isprintable():
        cure = f"use {SHORTEST} to {LONGEST} visible ASCII characters"
        raise InputError(say("the page's key", "it is not one that can be sent", cure))
    if " " in key:
        raise InputError(say("the page's key", "it has a space", "use visible ASCII characters only"))
    return key


@cache
def static(name: str) -> bytes:
    """One of the page's own files."""
    return files("quire.viewer").joinpath("static", name).read_bytes()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def wrong(status: int, why: str, headers: dict[str, str] | None = None) -> Reply:
    """The answer instead."""
    return Reply(status, _json({"error": {"message": why}}), headers={**HEADERS, **(headers or {})})
