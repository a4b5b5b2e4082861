"""The NIXL link keeps the contract of links."""

from __future__ import annotations

import importlib.util
import os

import pytest

from .link_suite import LinkSuite, Pair, new_pages
from .raw_peer import SECRET

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="nixl is not installed")
os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("UCX_TLS", "cma,tcp,self")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "fatal")  # it tells at length of every peer that was killed


class TestNixl(LinkSuite):
    def make(self) -> Pair:
        from quire.transfer.links.nixl import NixlLink

        pages = (new_pages(1), new_pages(2))
        a, b = (NixlLink(name, page, SECRET) for name, page in zip("ab", pages, strict=True))
        return Pair(a, b, a.address, b.address, pages)
