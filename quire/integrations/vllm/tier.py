"""QuireTier: Quire's disk, a shared store or both below vLLM's own host cache. Needs vLLM; decides nothing.

    "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": ..., "secondary_tiers": [{"type": "QuireTier",
            "module_path": "quire.integrations.vllm.tier", "folder": "/mnt/nvme/quire", "bytes": "500GB",
            "shared": "redis://cache.example:6379/0"}]}

docs/plugs.md says what it gives and what was run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from quire.core.records.errors import MissingExtra, say
from quire.integrations.vllm.plugs.key_tier import KeyTier
from quire.integrations.vllm.plugs.tier_options import read_tier_options, tier_print
from quire.integrations.vllm.plugs.versions import check_plug_version

try:
    import vllm
    from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext, ScheduleEndContext
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
except ImportError as missing:
    cure = "run it inside the environment of vLLM 0.32 or 0.33: pip install 'quire-kv[disk]' there"
    raise MissingExtra(
        say("quire.integrations.vllm.tier", f"it needs vLLM with secondary tiers ({missing})", cure)
    ) from missing

log = logging.getLogger("vllm.quire")


class QuireTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Pages that are bounded, checksummed, and still there after a `kill -9`."""

    medium: ClassVar[Any] = Medium.STORAGE

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        check_plug_version("QuireTier", vllm.__version__)
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        read, config = read_tier_options(options), offloading_spec.config
        self.tier = KeyTier(
            primary_kv_view, read, lambda size: tier_print(config, size, vllm.__version__, read.namespace)
        )
        if not read.namespace:
            log.info(
                "QuireTier: pages belong to the weights and config files in %s. vLLM says nothing here of "
                "--hf-overrides, of weights quantised as they are loaded, or of a drafter's: give those a namespace",
                config.model.name,
            )
        if self.tier.disk is not None:
            log.info("QuireTier: %d pages are there in %s", len(self.tier.disk), read.folder)
        if self.tier.store is not None:
            log.info("QuireTier: pages are shared through %s", self.tier.store.client.store.name)

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """Whether the disk has it, known at once; or the store, which is asked after the step."""
        there = self.tier.has(key, req_context.req_id)
        return LookupResult.RETRY if there is None else LookupResult.HIT if there else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """The store is asked for all that the step looked up."""
        self.tier.flush()

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Rows of the host cache go to the disk."""
        job = job_metadata
        self.tier.submit(job.job_id, job.keys, job.chunk_ids, False, job.req_context)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """And come back."""
        job = job_metadata
        self.tier.submit(job.job_id, job.keys, job.chunk_ids, True, job.req_context)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that are over since the last call."""
        return [
            JobResult(done.number, not done.bad, done.good or None, done.seconds, done.num_bytes)
            for done in self.tier.finished()
        ]  # fmt: skip

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """Blocks go down as they are computed."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """The order learns from what it asked for."""
        self.tier.end_request(req_context)

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """What a request used is counted when it ends."""

    def drain_jobs(self) -> None:
        """Wait until no job is under way."""
        self.tier.jobs.drain()

    def shutdown(self) -> None:
        """End the threads; the pages stay."""
        if not self.tier.close():
            log.warning("QuireTier: disk or store does not answer; what came since the last fence may be lost")
