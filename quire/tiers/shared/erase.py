"""Erase: take everything of some scopes out of a store, in line with what is being sent. Knows no cache."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from quire.tiers.shared.calls.client import StoreClient
from quire.tiers.shared.stores.store import StoreError, StoreMiss


class Erase:
    """One removal; `result` says how many pages it took out."""

    def __init__(self, client: StoreClient, tags: list[bytes], deadline: float) -> None:
        self._client, self._tags, self._deadline = client, tags, deadline
        self._removed: Future[int] = Future()

    def run(self) -> None:
        """Take them out."""
        try:
            self._removed.set_result(sum(self._client.remove_scope(tag, self._deadline) for tag in self._tags))
        except Exception as error:  # raised by `result`
            self._removed.set_exception(error)

    def dropped(self) -> None:
        """It will not be run."""
        self._removed.set_exception(StoreError(self._client.store.name, StoreMiss.CLOSED, "it was closed"))

    def result(self, timeout: float) -> int:
        """Pages that were taken out; StoreError when that did not happen."""
        try:
            return self._removed.result(timeout)
        except FutureTimeout:
            fact = f"a removal was not done after {timeout} s"
            raise StoreError(self._client.store.name, StoreMiss.LATE, fact) from None
