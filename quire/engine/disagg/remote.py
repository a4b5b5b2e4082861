"""Remote prefill: engines that share the work over a link: one orders its prompts from a peer, the other computes them.

RemotePrefill(engine, PrefillPeer("10.0.0.1:5710", secret)).submit(...)    decode here, prefill there
serve(engine, "10.0.0.1:5710", secret)                                     prefill here, for whoever knows the secret
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any

from quire.core.records.errors import InputError, say
from quire.core.records.request import Int32
from quire.engine.choose.sampling import Sampling
from quire.engine.disagg.peer import LinkMaker, Peer
from quire.engine.engine import Engine
from quire.engine.front.admission_gate import AdmissionGate
from quire.engine.model.layers import Model
from quire.engine.settings import PrefillPeer
from quire.engine.step.branch import Run
from quire.transfer import Key, Limits, NixlLink, TcpLink, Tls
from quire.transfer.links.address import split

LINKS = {"tcp": TcpLink, "nixl": NixlLink}
SAMPLE = 256  # numbers of every tensor that tell two models apart


class RemotePrefill:
    """Prompts are computed by a peer and decoded here; what does not come is computed here after all."""

    def __init__(self, engine: Engine, peer: PrefillPeer) -> None:
        make = _maker(peer.link, "decode", peer.secret, None, peer.tls)
        split(peer.address)  # one that is none is refused now
        self.address = peer.address
        self.peer = Peer(engine, make, model=fingerprint(engine.model), limits=Limits(transfer=peer.patience))
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
    return Peer(engine, make, model=fingerprint(engine.model), limits=limits, serve=True, tell=tell, gate=gate)


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


def fingerprint(model: Model) -> str:
    """Names a model by its config and some numbers of every tensor: peers with another one do not fit."""
    facts = model.module.config.to_dict()
    for passing in ("dtype", "torch_dtype", "transformers_version", "architectures"):
        facts.pop(passing, None)
    told = {name: value for name, value in facts.items() if not name.startswith("_")}
    name = blake2b(json.dumps(told, sort_keys=True, default=str).encode(), digest_size=16, person=b"quire-model")
    for part, tensor in model.module.state_dict().items():
        name.update(f"{part} {list(tensor.shape)}".encode())
        name.update(tensor.detach().reshape(-1)[:SAMPLE].float().cpu().numpy().tobytes())
    return name.hexdigest()
