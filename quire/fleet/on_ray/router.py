"""IndexRouter: Ray Serve's request router over our WorkerBook. Runs in the server's process; decides nothing itself."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from quire.events import Keys
from quire.fleet.fleet_work import AskQuote, FleetWork, LookAt, WorkerLost
from quire.fleet.on_ray.open_books import add_book
from quire.fleet.worker_book import LEAST, SHARE, RankWeights, WorkerAddress, WorkerBook


class IndexRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types here
    """Requests go where most of their prompt is, weighed against what is under way there."""

    def initialize_state(
        self, share: float = SHARE, least: float = LEAST, key_file: str | None = None,
        server_key: str | None = None,
    ) -> None:  # fmt: skip
        """As Ray calls it, with `request_router_kwargs`: weights, our own secret key, the replicas' public one."""
        keys = None if key_file is None else Keys.read(key_file)
        self.book, self._server_key = WorkerBook(RankWeights(share, least), keys), server_key
        add_book(self.book)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """These are all there are."""
        described = {one.replica_id.unique_id: one.replica_metadata or {} for one in replicas}
        self.book.update(
            {
                name: WorkerAddress(facts["quire_events"], facts["quire_replay"], self._server_key, facts["pid"])
                for name, facts in described.items()
                if "quire_events" in facts
            }
        )
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget it at once: Ray says later that there is one less."""
        self.book.forget(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One after the other, the best first; the best counts as having it, until Ray says who does."""
        by_name = {one.replica_id.unique_id: one for one in candidate_replicas}
        asked = None if pending_request is None or not pending_request.args else pending_request.args[0]
        if isinstance(asked, LookAt | AskQuote):
            return [[by_name[asked.worker]] if asked.worker in by_name else _gone(candidate_replicas, pending_request)]
        work = _work(pending_request)
        if work is None or work.ticket is None:
            return [[one] for one in candidate_replicas]
        work.ticket.withdraw()  # it is not load of its own
        ranked = self.book.rank(list(by_name), work.tokens, work.scope, work.ticket)
        if ranked:
            work.ticket.enter(self.book.in_flight, ranked[0])
        return [[by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """This one has it."""
        work = _work(pending_request)
        if work is not None and work.ticket is not None and work.ticket.worker != replica_id.unique_id:
            work.ticket.enter(self.book.in_flight, replica_id.unique_id)


def _gone(candidates: list[RunningReplica], pending: PendingRequest | None) -> list[RunningReplica]:
    """Whom it is for is no more: it fails. Given no candidate, Ray would ask again at once, without end and without
    letting anything else run."""
    if pending is not None and not pending.future.done():
        pending.future.set_exception(WorkerLost("it is gone"))
    return candidates


def _work(pending: PendingRequest | None) -> FleetWork | None:
    """What shall be done, if it is work."""
    first = None if pending is None or not pending.args else pending.args[0]
    return first if isinstance(first, FleetWork) else None
