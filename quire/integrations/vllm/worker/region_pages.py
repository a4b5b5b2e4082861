"""RegionPages: pages in vLLM's own host region, copied by vLLM's own offloading worker: on a GPU its DMA streams.

vLLM's region has chunks, each with room for a block of any group: a slot is a chunk. Copies run behind us, so a block
that vLLM hands out again must wait for the store that still reads it: `flush`. Needs vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from quire.core.records.errors import InputError, StateError, say
from quire.integrations.vllm.common.cache_groups import slot_bytes
from quire.integrations.vllm.common.worker_orders import Copy
from quire.integrations.vllm.worker.host_pages import Ended


class RegionPages:
    """One rank's; `worker` is vLLM's OffloadingWorker, and only a writer stores: of equal ranks one is enough."""

    def __init__(self, worker: Any, *, groups: int, is_writer: bool = True) -> None:
        self._worker, self._groups, self._is_writer = worker, groups, is_writer
        self._open: dict[int, Ended] = {}
        self._ended: list[Ended] = []

    def region_file(self) -> tuple[str, int]:
        """Where other processes of this user can open the region, and bytes of a row: one chunk, of all ranks."""
        region = getattr(self._worker, "_mmap_region", None)
        if region is None:
            fact = "vLLM has no host region that its processes share on this platform"
            raise InputError(say("options disk and shared of QuireConnector", fact, "leave them out"))
        return f"/proc/{os.getpid()}/fd/{region.fd}", int(region.total_size_bytes) // int(region.num_chunks)

    def load(self, copy: Copy) -> None:
        """Begin to copy our slots into vLLM's blocks."""
        device, host = self._places(copy)
        self._begin(copy, self._worker.submit_load(copy.job, host, device), is_load=True)

    def store(self, copy: Copy) -> None:
        """Begin to copy vLLM's blocks into our slots, behind the step that fills them."""
        if not self._is_writer:
            self._ended.append(Ended(copy, is_load=False))
            return
        device, host = self._places(copy)
        self._begin(copy, self._worker.submit_store(copy.job, device, host), is_load=False)

    def _begin(self, copy: Copy, accepted: bool, *, is_load: bool) -> None:
        if not accepted:
            raise StateError(say(f"job {copy.job}", "vLLM's worker did not take it", "its pages are given up"))
        self._open[copy.job] = Ended(copy, is_load)

    def _places(self, copy: Copy) -> tuple[Any, Any]:
        sizes, blocks, chunks = [0] * self._groups, list[int](), list[int]()
        for group, ids, slots in sorted(copy.parts):
            sizes[group] = len(ids)
            blocks += ids
            chunks += slots
        return GPULoadStoreSpec(blocks, sizes, [0] * self._groups), CPULoadStoreSpec(chunks)

    def flush(self, jobs: Iterable[int]) -> None:
        """Wait until these have ended; what has ended already is passed over."""
        waiting = {job for job in jobs if job in self._open}
        if waiting:
            self._worker.wait(waiting)

    def take_ended(self) -> list[Ended]:
        """Copies that have ended since the last call; one that failed has only bad pages."""
        finished = self._worker.get_finished()  # first: if it raises, nothing of what ended before is lost
        ended, self._ended = self._ended, []
        for result in finished:
            one = self._open.pop(result.job_id)
            one.num_bytes, one.seconds = result.transfer_size or 0, result.transfer_time or 0.0
            one.bad = [] if result.success else one.copy.pages()
            ended.append(one)
        return ended


def region_pages(
    vllm_config: Any,
    kv_cache_config: Any,
    kv_caches: Any,
    slots: int,
    spec_type: Callable[..., Any] = CPUOffloadingSpec,
) -> RegionPages:
    """vLLM's region and worker for these KV tensors, with room for so many slots."""
    config, groups = build_offloading_config(vllm_config, kv_cache_config), len(kv_cache_config.kv_cache_groups)
    if len(config.groups) != groups:
        fact = f"vLLM offloads {len(config.groups)} of its {groups} KV cache groups"
        raise InputError(say("this model", fact, "run it without QuireConnector"))
    # more than enough for the chunks that we use: vLLM divides by its own, aligned size
    plenty = 1 << 62
    size = spec_type(replace(config, extra_config={"cpu_bytes_to_use": plenty})).kv_bytes_per_chunk
    ours = slot_bytes(kv_cache_config, vllm_config.parallel_config.world_size)
    if size > ours:
        fact = f"vLLM's region takes {size} bytes for a block, and 'host' was divided by {ours}"
        raise InputError(say("host memory for this model", fact, "run it without QuireConnector"))
    spec = spec_type(replace(config, extra_config={"cpu_bytes_to_use": size * slots}))
    registered = OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)
    registered.register_kv_caches(kv_caches)
    is_writer = not spec.replicated_layout or config.parallel.rank == 0
    return RegionPages(registered.worker, groups=groups, is_writer=is_writer)
