"""Remote prefill: engines that share the work over a link: one orders its prompts from a peer, the other computes them.

RemotePrefill(engine, PrefillPeer("10.0.0.1:5710", secret)).submit(...)    decode here, prefill there
serve(engine, "10.0.0.1:5710", secret)                                     prefill here, for all that know the secret
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from quire.core.records.errors import InputError, say
from quire.core.records.request import Int32
from quire.engine.disagg.peer import LinkMaker, Peer
from quire.engine.loop.admission_gate import AdmissionGate
from quire.engine.model.weights import weights_digest
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.setup.engine_config import PrefillPeer
from quire.engine.step.runs.branch import Run
from quire.net.address import split
from quire.transfer import Key, Limits, NixlLink, TcpLink, Tls

LINKS = {"tcp": TcpLink, "nixl": NixlLink}


class RemotePrefill:
    """Prompts are computed by a peer and decoded here; what does not come is computed here after all."""

    def __init__(self, engine: Engine, peer: PrefillPeer) -> None:
        make = _maker(peer.link, "decode", peer.secret, None, peer.tls)
        split(peer.address)  # one that is none is refused now
        self.address = peer.address
        self.peer = Peer(engine, make, model=weights_digest(engine.model).hex(), limits=Limits(transfer=peer.patience))
        self._name = secrets.token_hex(8)  # two processes must not order under one key
        self._numbers = count()

    def __repr__(self) -> str:
        return f"RemotePrefill({self.address!r}, {self.peer!r})"

    def submit(self, tokens: Int32 | Sequence[int], sampling: Sampling, **options: Any) -> Run:
        """As Engine.submit."""
        key = Key(f"{self._name}-{next(self._numbers)}")
        return self.peer.decode(key, tokens, sampling, source=self.address, order=True, **options)


def serve(
    engine: Engine, listen: str, secret: bytes, *, link: str = "tcp", limits: Limits | None = None,
    tell: Callable[[str], None] = lambda _: None, gate: AdmissionGate | None = None, tls: Tls | None = None,
) -> Peer:  # fmt: skip
    """Let an engine compute what peers order; `peer.link.address` is where they find it.

    With a `gate` orders take places among the runs that come in through it.
    """
    make = _maker(link, "prefill", secret, listen, tls)
    return Peer(engine, make, model=weights_digest(engine.model).hex(), limits=limits, serve=True, tell=tell, gate=gate)


def _maker(link: str, name: str, secret: bytes, listen: str | None, tls: Tls | None) -> LinkMaker:
    if link not in LINKS:
        raise InputError(say(f"link {link!r}", f"there are {', '.join(LINKS)}", "name one of them"))
    return lambda pages: LINKS[link](name, pages, secret, listen=listen, tls=tls)


def check_peer(peer: PrefillPeer) -> None:
    """What would keep a link to that peer from being made, found out before a model is loaded."""
    split(peer.address)
    Limits(transfer=peer.patience)
    _maker(peer.link, "decode", peer.secret, None, peer.tls)([]).close()


def check_listen(listen: str, secret: bytes, *, link: str = "tcp", tls: Tls | None = None) -> None:
    """The same for a link that others dial: a secret, certificates, and an address that is free."""
    _maker(link, "prefill", secret, listen, tls)([]).close()
