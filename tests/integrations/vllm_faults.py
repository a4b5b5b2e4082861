"""FaultyConnector: QuireConnector whose copies come late, fail or bring wrong bytes, as QUIRE_FAULT says.

late         loads are made, and end, one step later
fail_load    every second load raises
fail_store   every third store raises
flip         every fourth store leaves a page in host memory that is not what was stored
corrupt      every load brings wrong bytes, and says nothing: the control, which the comparison must see
bad_disk     every second store changes a byte of some page on disk
die          the worker's process ends at its fifth load
region       no fault: pages in vLLM's region, as on a GPU, with copies that are made one step later unless flushed
spread       no fault: a step stores no more than one block of a request, the rest comes with the steps after it
spread_region   both
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec, _all_workers_barrier

from quire.integrations.vllm.common.cache_groups import num_slots
from quire.integrations.vllm.common.worker_orders import Copy
from quire.integrations.vllm.connector import QuireConnector
from quire.integrations.vllm.worker.host_pages import Ended, HostPages
from quire.integrations.vllm.worker.region_pages import RegionPages, region_pages

SLOT = 4096  # bytes; places in files are multiples of it
FAULT = os.environ.get("QUIRE_FAULT", "")


class FaultyMover:
    """Real pages with one fault."""

    def __init__(self, pages: HostPages, disk: str | None) -> None:
        self.pages, self.disk = pages, disk
        self.loads = self.stores = 0
        self.waiting: list[Copy] = []
        self.due: list[Copy] = []

    def load(self, copy: Copy) -> None:
        self.loads += 1
        if FAULT == "die" and self.loads == 5:
            os._exit(1)
        if FAULT == "fail_load" and self.loads % 2:
            raise OSError("this load was made to fail")
        if FAULT == "late":
            self.waiting.append(copy)
            return
        self.pages.load(copy)
        if FAULT == "corrupt":
            for part in copy.parts:
                for layer in self.pages._layers[part.group]:
                    layer[part.blocks] = 63

    def store(self, copy: Copy) -> None:
        self.stores += 1
        if FAULT == "fail_store" and self.stores % 3 == 0:
            raise OSError("this store was made to fail")
        self.pages.store(copy)
        if FAULT == "flip" and self.stores % 4 == 0:
            part = copy.parts[-1]
            self.pages.memory[part.slots[-1], 0] ^= 1

        if FAULT == "bad_disk" and self.stores % 2 == 0 and self.disk is not None:
            self._spoil(Path(self.disk))

    def _spoil(self, disk: Path) -> None:
        """In a slot that is written, as far as one can see from outside."""
        for pages in disk.glob("*/pages-0"):
            with pages.open("r+b") as file:
                data = file.read(64 << 20)
                slots = [at for at in range(0, len(data), SLOT) if any(data[at : at + 64])]
                if slots:
                    at = slots[self.stores * 7919 % len(slots)] + 9
                    file.seek(at)
                    file.write(bytes([data[at] ^ 1]))

    def flush(self, jobs: Iterable[int]) -> None:
        self.pages.flush(jobs)

    def take_ended(self) -> list[Ended]:
        for copy in self.due:
            self.pages.load(copy)
        self.due, self.waiting = self.waiting, []
        return self.pages.take_ended()


class LateWorker(OffloadingWorker):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Stands for vLLM's CPUOffloadingWorker, which needs a GPU: the same calls, one step late unless waited for."""

    def __init__(self, kv_caches: Any, region: SharedOffloadRegion) -> None:
        self.refs = kv_caches.group_data_refs
        self.kv = [one.tensor for one in kv_caches.tensors]
        self._mmap_region = region
        self.host = [region.create_next_worker_view(one.page_size_bytes) for one in kv_caches.tensors]
        self.waiting: dict[int, tuple[Any, Any, bool]] = {}
        self.due: set[int] = set()
        self.done: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.waiting[job_id] = (src_spec, dst_spec, True)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.waiting[job_id] = (dst_spec, src_spec, False)
        return True

    def wait(self, job_ids: set[int]) -> None:
        for job in job_ids & self.waiting.keys():
            device, host, is_store = self.waiting.pop(job)
            at = 0
            for refs, count in zip(self.refs, device.group_sizes, strict=True):
                blocks, chunks = device.block_ids[at : at + count], host.block_ids[at : at + count]
                at += count
                for ref in refs:
                    kv, memory = self.kv[ref.tensor_idx], self.host[ref.tensor_idx]
                    if is_store:
                        memory[chunks] = kv[blocks]
                    else:
                        kv[blocks] = memory[chunks]
            self.done.append(TransferResult(job, True, 0, 0.0))

    def get_finished(self) -> list[Any]:
        self.wait(self.due)
        self.due = set(self.waiting)
        done, self.done = self.done, []
        return done


class LateSpec(CPUOffloadingSpec):  # type: ignore[misc]  # the same
    """vLLM's spec, with a worker for tensors that are in host memory anyway."""

    def get_worker(self, kv_caches: Any) -> LateWorker:
        region = SharedOffloadRegion(
            self.config.engine_id, self.num_chunks, self.config.parallel.rank, self.kv_bytes_per_chunk,
            self.cpu_page_size_per_worker, _all_workers_barrier,
        )  # fmt: skip
        return LateWorker(kv_caches, region)


class QuietConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # the same
    """Another connector beside ours in a MultiConnector: it has nothing, keeps nothing and says what vLLM needs."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None: ...

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


class FaultyConnector(QuireConnector):
    """Named by the runners in place of QuireConnector."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if FAULT.startswith("spread") and self.scheduler_side is not None:
            self.scheduler_side.stores.set_most_blocks(1)

    def open_mover(self, kv_caches: dict[str, Any]) -> FaultyMover | RegionPages:
        if FAULT.endswith("region"):
            slots = num_slots(self._kv_cache_config, self._options.host, self._world_size)
            region = region_pages(self._vllm_config, self._kv_cache_config, kv_caches, slots, LateSpec)
            self.announce(region, kv_caches, slots)
            return region
        pages = super().open_mover(kv_caches)
        assert isinstance(pages, HostPages)
        return FaultyMover(pages, self._options.disk)
