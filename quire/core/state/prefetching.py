"""Prefetching: what one prefetch holds, as the cache keeps it, and its end when the request was served."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.records.request import Int32
from quire.core.state.handle import Handles
from quire.core.state.prepared import ReadyRequest
from quire.core.state.setup import Setup
from quire.core.store.dumped import PageInfo


@dataclass(slots=True, eq=False)
class Prefetching:
    """Pages of a request's hit, group by group: their copies below the device, and those that come there, stay."""

    prepared: ReadyRequest
    end: int  # tokens that can be reused when all of it has come
    pages: list[Int32]
    stamps: list[Int32]
    deadline: int | None  # in the store's ticks

    def still_there(self, group: int) -> list[int]:
        """Its pages of a group, less those that are gone."""
        store, place = self.prepared.setup.pools[group]
        named = zip(self.pages[group].tolist(), self.stamps[group].tolist(), strict=True)
        infos = [(page, stamp, store.page_info(place, page)) for page, stamp in named]
        return [page for page, stamp, info in infos if info.stamp == stamp and _is_there(info)]


def _is_there(info: PageInfo) -> bool:
    return info.node >= 0 or info.holders > 0 or info.claims > 0


def let_go(kept: Prefetching) -> None:
    """Its pages are held no longer; what is still under way arrives all the same."""
    setup: Setup = kept.prepared.setup
    for (store, place), pages, stamps in zip(setup.pools, kept.pages, kept.stamps, strict=True):
        store.unkeep(place, pages, stamps)


def end_prefetches(handles: Handles[Prefetching], served: list[ReadyRequest]) -> None:
    """These requests have what was prefetched for them: they were admitted, or what was found of them was used."""
    names = {prepared.request.id for prepared in served}
    for ref in [ref for ref, kept in handles.items() if kept.prepared.request.id in names]:
        let_go(handles.pop(ref))
