"""API keys: who asks, and hence whose pages are shared. Keys are kept as digests, and compared in constant time.

A file, or the environment, has a key per line, alone or behind the name of its tenant:

    # comments and empty lines are passed over
    sk-4f1c0d9a8b7e6f5a4b3c
    alice sk-0a1b2c3d4e5f6a7b8c9d
    alice sk-second-key-of-the-same-tenant
    carol ttft_ms=2000 sk-1b2c3d4e5f60718293a4

`ttft_ms`: within how many milliseconds a tenant's first tokens are wanted where its requests say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from quire.core.records.errors import InputError, say
from quire.core.records.identity import Scope
from quire.engine.deadlines.first_token import LONGEST as LONGEST_TTFT
from quire.net.secrets import LONGEST, SHORTEST, KeyRing

MOST = 1024  # keys
ENVIRONMENT = "QUIRE_API_KEYS"
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY = re.compile(r"[\x21-\x7e]+")
TTFT = "ttft_ms="
NO_TENANT = ""  # the tenant where there are no keys


class ApiKeys:
    """Keys with their tenants. Tenants share nothing in the cache; keys of one tenant share everything."""

    def __init__(self, lines: Iterable[str], source: str = "keys") -> None:
        self._keys = KeyRing(b"quire-api-key")
        self._ttfts: dict[str, float] = {}  # seconds, by tenant
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            self._add(words, f"line {number} of {source}")
        if not len(self._keys):
            raise InputError(say(source, "there is no key in it", "write one per line, or leave the option out"))
        if len(self._keys) > MOST:
            raise InputError(say(source, f"it has {len(self._keys)} keys", f"give at most {MOST}"))

    @classmethod
    def of_file(cls, path: str | Path) -> ApiKeys:
        """Those of a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(say(f"keys in {str(path)!r}", str(error), "name a file of keys, one per line")) from None
        return cls(text.splitlines(), repr(str(path)))

    @classmethod
    def of_environment(cls, value: str) -> ApiKeys:
        """Those of the environment: lines, or parts between commas."""
        return cls(re.split(r"[\n,]", value), f"${ENVIRONMENT}")

    def __repr__(self) -> str:
        return f"ApiKeys({len(self._keys)} keys of {len(self._keys.names)} tenants)"

    def _add(self, words: list[str], where: str) -> None:
        *names, key = words
        limits = [word for word in names[1:] if word.startswith(TTFT)]
        names = [word for word in names if word not in limits]
        if len(names) > 1 or (names and TENANT.fullmatch(names[0]) is None):
            fact = "what stands before the key is not a tenant's name"
            raise InputError(say(where, fact, "use letters, digits, dots, dashes: at most 64"))
        if not SHORTEST <= len(key) <= LONGEST or KEY.fullmatch(key) is None:
            fact = f"its key has {len(key)} characters"  # and is never shown
            raise InputError(say(where, fact, f"use {SHORTEST} to {LONGEST} visible ASCII characters"))
        if not self._keys.add(key.encode(), *names):
            raise InputError(say(where, "its key stands before it, too", "give every key once"))
        for limit in limits:
            self._limit(names[0], limit.removeprefix(TTFT), where)

    def _limit(self, tenant: str, given: str, where: str) -> None:
        seconds = int(given) / 1000 if re.fullmatch(r"[0-9]{1,7}", given) else 0.0
        if not 0 < seconds <= LONGEST_TTFT or self._ttfts.get(tenant, seconds) != seconds:
            cure = "give whole milliseconds up to an hour, the same in every line of a tenant"
            raise InputError(say(where, f"its {TTFT}{given[:16]} cannot be, or differs from a line before", cure))
        self._ttfts[tenant] = seconds

    @property
    def has_deadlines(self) -> bool:
        """Whether first tokens of some tenant are wanted in time."""
        return bool(self._ttfts)

    def ttft_of(self, tenant: str) -> float | None:
        """Seconds within which a tenant's first tokens are wanted; None: it says nothing."""
        return self._ttfts.get(tenant)

    def tenant(self, authorization: bytes | None) -> str | None:
        """Whose key it is; None: unknown. Takes equally long for every key, known or not."""
        return self._keys.whose(authorization or b"")


def scope_of(tenant: str, salt: str | None) -> Scope:
    """Whose pages a request shares. No tenant can write another one's: a name has no colon."""
    if tenant == NO_TENANT:
        return Scope(salt=salt)
    return Scope(salt=f"{tenant}:{salt or ''}")
