"""Stay: one stay of a vLLM request on the device, from its first look to its end, its preemption or a failed load.

A request that was preempted comes back under its own id while copies of its last stay are still under way: hence a
stay has its own number. Owns what is open for it in the cache, in three parts: look-up, loads, stores.
"""

from __future__ import annotations

from quire.core.cache import Cache
from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope
from quire.integrations.vllm.outer.outer_pages import OuterPages, PagesAhead
from quire.integrations.vllm.reports.kv_events import BlockNames
from quire.integrations.vllm.requests.stay_loads import StayLoads
from quire.integrations.vllm.requests.stay_stores import StayStores
from quire.integrations.vllm.requests.stay_text import StayText


class StayAhead:
    """What is brought into host memory for a stay before it is placed; asked for once."""

    __slots__ = ("is_asked", "pages")

    def __init__(self) -> None:
        self.is_asked = False
        self.pages: PagesAhead | None = None

    def ask(self, outer: OuterPages, text: StayText, cache: Cache) -> None:
        """Begin to bring it."""
        self.is_asked = True
        self.pages = outer.ahead(text.prepared(cache))

    def close(self) -> None:
        """What was brought is held no longer."""
        if self.pages is not None:
            self.pages.close()
            self.pages = None


class Stay:
    """`born` is the step in which it began."""

    __slots__ = (
        "ahead",
        "back",
        "begun",
        "born",
        "comes_back",
        "loads",
        "names",
        "over",
        "placed",
        "request",
        "stores",
        "text",
    )

    def __init__(self, text: StayText, born: int) -> None:
        self.request, self.born, self.text = text.request, born, text
        self.ahead, self.loads, self.stores = StayAhead(), StayLoads(), StayStores(self.text)
        self.names = BlockNames(text.request)  # for events
        self.placed = False  # vLLM has given it blocks
        self.begun: int | None = None  # tokens in front that were there before its session; None: before itself
        self.back: Back | None = None  # when its text comes back
        self.over = False
        self.comes_back = False  # it is over, and the request is not: it will look for what this one has

    @property
    def scope(self) -> Scope:
        """Whose pages it shares."""
        return self.text.scope

    @property
    def is_quiet(self) -> bool:
        """No job reads or writes pages for it, or will."""
        return self.loads.job is None and not self.stores.jobs and not self.stores.is_behind

    def close(self) -> None:
        """Give back everything."""
        self.loads.let_go()
        self.ahead.close()
        self.stores.close()
