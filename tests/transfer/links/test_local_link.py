"""The local link keeps the contract of links."""

from __future__ import annotations

import pytest

from quire.core.records.errors import InputError, StateError
from quire.transfer.links.link import Lost
from quire.transfer.links.local import LocalHub

from .link_suite import LinkSuite, Pair, new_pages


class TestLocal(LinkSuite):
    def make(self) -> Pair:
        hub, pages = LocalHub(), (new_pages(1), new_pages(2))
        return Pair(hub.link("a", pages[0]), hub.link("b", pages[1]), "a", "b", pages)

    def nobody(self) -> str:
        return "nobody"

    def test_a_name_is_used_once_and_a_dead_link_says_so(self) -> None:
        hub = LocalHub()
        link = hub.link("a", [])
        with pytest.raises(InputError, match="in use"):
            hub.link("a", [])
        other = hub.link("b", [])
        hub.kill("a")
        assert [type(news) for news in other.poll()] == [Lost]
        with pytest.raises(StateError, match="closed"):
            link.poll()
        hub.link("a", [])
