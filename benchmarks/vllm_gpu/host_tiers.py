"""HostTieringSpec: vLLM's tiers on its CPU build, for trying scripts. vLLM's own worker copies on GPUs only."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from tests.integrations.vllm_faults import LateWorker


class HostTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's manager, host cache and tiers, with a worker for tensors that are in host memory anyway."""

    _host: LateWorker | None = None

    def get_worker(self, kv_caches: Any) -> LateWorker:
        if self._host is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id, num_chunks=self.num_chunks, rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker,
            )  # fmt: skip
            self._host = LateWorker(kv_caches, region)
        return self._host
