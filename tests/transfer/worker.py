"""A worker of another process for the tests that kill one: `python -m tests.transfer.worker ROLE LINK [ADDRESS]`.

It prints its address, computes the prompt (sender) or asks for it (receiver), prints "ready", and goes on until killed
or until its parent closes its input.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from quire import LayerGroup, Request
from quire.transfer.endpoint import Endpoint
from quire.transfer.geometry.ranks import Source
from quire.transfer.links.tcp import TcpLink
from quire.transfer.wire.aux import Aux
from quire.transfer.wire.layout import layout_of
from quire.transfer.wire.verdict import Key, Limits

from .rig import received
from .sides import QuireSide, tokens

os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("UCX_TLS", "cma,tcp,self")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "fatal")  # it tells at length of every peer that was killed
SECRET = b"known to both of them"
BLOCKS, SIZE, PAGE = 48, 4, 1 << 20
GROUPS = (LayerGroup("full", page_bytes=PAGE), LayerGroup("near", page_bytes=4096, window=9))
LIMITS = Limits(lease=20, transfer=10, grace=5)
PROMPT = tokens(range(BLOCKS * SIZE))


def request() -> Request:
    return Request("r", PROMPT)


def make_side() -> QuireSide:
    return QuireSide(GROUPS, (BLOCKS, BLOCKS), SIZE)


def make_link(kind: str, name: str, side: QuireSide) -> Any:
    if kind == "tcp":
        return TcpLink(name, side.pages, SECRET)
    from quire.transfer.links.nixl import NixlLink

    return NixlLink(name, side.pages, SECRET)


def make_end(kind: str, name: str) -> tuple[Endpoint, Any, QuireSide]:
    side = make_side()
    link = make_link(kind, name, side)
    return Endpoint(link, side.view, layout_of(side.view.shape(), name), limits=LIMITS), link, side


def serve(end: Endpoint, side: QuireSide, key: Key) -> None:
    if "r" not in {str(id) for id in side.cache._registry.sequences}:
        side.compute(request())
    end.send(key, "r")
    assert end.put(key, len(PROMPT), last=True, aux=Aux(first_tokens=(5,)))


def main(role: str, kind: str, epoch: str, address: str = "") -> None:
    end, link, side = make_end(kind, role)
    key = Key("r", int(epoch))
    if role == "sender":
        serve(end, side, key)
        print(link.address, flush=True)
    else:
        print(link.address, flush=True)
        received(end, key, request(), Source((address,)), lambda: end.step(0.005))
    while True:
        if select.select([sys.stdin], [], [], 0)[0] and not sys.stdin.read(1):
            return
        for session in end.step(0.005):
            print(session.verdict, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
