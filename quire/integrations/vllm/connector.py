"""QuireConnector: vLLM's hooks, each handed to the scheduler's or the worker's side. Needs vLLM; decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from quire.core.cache import Cache
from quire.core.records.errors import MissingExtra, StateError, say

try:
    import vllm
    from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorTransferResults,
        KVConnectorWorkerMetadata,
        SupportsHMA,
    )
    from vllm.platforms import current_platform
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
    from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError as missing:
    cure = "run it inside vLLM's environment: pip install vllm, then pip install quire-kv there"
    raise MissingExtra(say("quire.integrations.vllm.QuireConnector", f"it needs vLLM ({missing})", cure)) from missing

from quire.integrations.vllm.common.cache_groups import (
    HOST,
    cache_config,
    check_engine,
    check_outer,
    num_slots,
    redo_blocks,
)
from quire.integrations.vllm.common.connector_options import check_nodes, check_sleep, check_version, read_options
from quire.integrations.vllm.common.worker_orders import StepOrders, WorkerReport
from quire.integrations.vllm.outer.model_print import model_print
from quire.integrations.vllm.outer.outer_pages import OuterPages
from quire.integrations.vllm.outer.page_memory import MemoryShape, PageMemory, announce_region
from quire.integrations.vllm.reports.kv_events import EventTranslator, RemovedBlocks, StoredBlocks
from quire.integrations.vllm.reports.request_recording import RequestRecording
from quire.integrations.vllm.reports.vllm_metrics import QuirePromMetrics, QuireStats
from quire.integrations.vllm.reports.what_fits import fits_line
from quire.integrations.vllm.requests.page_stores import fresh_blocks
from quire.integrations.vllm.scheduler_side import SchedulerSide
from quire.integrations.vllm.worker.host_pages import (
    HostPages,
    RankMemory,
    check_named,
    check_sizes,
    group_layers,
    layer_form,
    part_bytes,
)
from quire.integrations.vllm.worker.region_pages import RegionPages, region_pages
from quire.integrations.vllm.worker.sleep import RankNote, SleepingMover, check_slots
from quire.integrations.vllm.worker.worker_side import PageMover, WorkerSide
from quire.tiers.host_limit import check_host_memory, memory_limit

log = logging.getLogger(__name__)
BEYOND = 128  # tokens that a request may be longer than the model's length, while drafts are taken back
IDLE_STEP = 0.001  # seconds
KVConnectorHandshakeMetadata.register(RankNote)
KVConnectorMetadata.register(StepOrders)
KVConnectorWorkerMetadata.register(WorkerReport)


class QuireConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Named in --kv-transfer-config; vLLM makes one in its scheduler and one in each worker."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _log_beside_vllm()
        transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
        self._options = read_options(transfer.kv_connector_extra_config)
        check_version(vllm.__version__, self._options.any_version)
        check_engine(parallel, vllm_config.speculative_config, transfer.kv_role)
        told = vllm_config.kv_events_config
        self._with_events = told is not None and told.enable_kv_cache_events
        check_outer(self._options, parallel)
        check_sleep(self._options, hasattr(KVConnectorBase_V1, "restore_kv_caches"))
        nodes = max(1, getattr(parallel, "nnodes", 1))
        check_nodes(transfer.kv_connector_extra_config, nodes)
        check_host_memory(self._options.host // nodes, "host memory")
        self._groups = kv_cache_config.kv_cache_groups
        self._world_size = parallel.world_size
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        self.mover: SleepingMover | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_side = self._open(vllm_config)
            if transfer.kv_load_failure_policy != "recompute":
                log.warning("a load that fails is computed: kv_load_failure_policy is 'recompute' under QuireConnector")
                transfer.kv_load_failure_policy = "recompute"  # vLLM's scheduler reads it after this

    def _open(self, vllm_config: Any) -> SchedulerSide:
        options = self._options
        memory = PageMemory.take(memory_name(vllm_config)) if options.outer else None
        config = cache_config(
            self._kv_cache_config, options, world_size=self._world_size, events=self._with_events,
            max_length=vllm_config.model_config.max_model_len + BEYOND,
            page_bytes=0 if memory is None else memory.shape.whole_page,
        )  # fmt: skip
        cache, outer = Cache(config), None
        if memory is not None:
            name = model_print(vllm_config, config, memory.shape, vllm.__version__, options.namespace)
            outer = OuterPages(cache, memory, options, name)
            log.info("Quire's pages of this model are called %s", name.hex()[:16])
        restored, length = 0 if outer is None else outer.counts().disk_restored, vllm_config.model_config.max_model_len
        log.info("%s", fits_line(config, options, length=length, limit=memory_limit(), restored=restored))
        recording = None if options.record is None else RequestRecording(options.record, config.block_size)
        return SchedulerSide(
            cache, options, world_size=self._world_size, events=EventTranslator(cache) if self._with_events else None,
            outer=outer, recording=recording, redo_blocks=redo_blocks(vllm_config.speculative_config),
        )  # fmt: skip

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """A block's bytes of a layer in one piece: vLLM's offloading worker asks for it, the CPU has it anyway."""
        return None if current_platform.is_cpu() else "LBHNC"

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what was not stored is computed again."""
        return False

    @property
    def _scheduler(self) -> SchedulerSide:
        if self.scheduler_side is None:
            raise StateError(say("a scheduler's hook", "this connector is a worker's", "call the scheduler's"))
        return self.scheduler_side

    @property
    def _worker(self) -> WorkerSide:
        if self.worker_side is None:
            raise StateError(say("a worker's hook", "no KV caches were registered", "call register_kv_caches first"))
        return self.worker_side

    # -- scheduler ---------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """It waits now: pages may come from a disk or a store meanwhile."""
        self._scheduler.arrive(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """What can be loaded behind what vLLM has; always asynchronously. None: ask again, pages are coming."""
        gain = self._scheduler.look(request, num_computed_tokens)
        return gain, bool(gain)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """vLLM has given it blocks."""
        self._scheduler.place(request, blocks.get_block_ids() if num_external_tokens else (), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        """The orders of this step."""
        state = scheduler_output.kv_connector_block_state
        preempted = scheduler_output.preempted_req_ids or ()
        fresh = fresh_blocks(scheduler_output) if self._scheduler.is_storing else ()
        if self._scheduler.is_coming and not scheduler_output.total_num_scheduled_tokens:
            time.sleep(IDLE_STEP)  # nothing to compute: the threads that bring pages go first
        states = getattr(state, "boundary_state_offloads", {})  # some versions name none: then none is stored
        return self._scheduler.order(
            scheduler_output.num_scheduled_tokens, preempted, state.get_block_ids, fresh, states
        )

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers report."""
        self._scheduler.hear(connector_output.kv_connector_worker_meta)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks may go: every store that was ordered ran with its step."""
        return False, self._scheduler.finish(request)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, with several groups."""
        return False, self._scheduler.finish(request)

    def has_pending_push_work(self) -> bool:
        """Workers have something to report, and no request keeps the engine stepping."""
        return self._scheduler.is_pending

    def shutdown(self) -> None:
        """The engine ends."""
        if self.scheduler_side is not None:
            self.scheduler_side.close()

    def reset_cache(self) -> bool:
        """Forget all pages, for new weights."""
        return self._scheduler.reset()

    def take_events(self) -> Iterable[Any]:
        """Ours beside vLLM's own, under vLLM's hashes."""
        events = self._scheduler.events
        return [] if events is None else [self._as_event(one) for one in events.take()]

    def _as_event(self, one: StoredBlocks | RemovedBlocks) -> Any:
        names = [maybe_convert_block_hash(name) for name in one.hashes]
        if isinstance(one, RemovedBlocks):
            return BlockRemoved(block_hashes=names, medium=MEDIUM_CPU, group_idx=one.group)
        spec, lora = self._groups[one.group].kv_cache_spec, one.request.lora_request
        return BlockStored(
            block_hashes=names, parent_block_hash=None if one.parent is None else maybe_convert_block_hash(one.parent),
            token_ids=list(one.tokens), block_size=spec.block_size, medium=MEDIUM_CPU, group_idx=one.group,
            lora_id=None if lora is None else lora.lora_int_id, lora_name=None if lora is None else lora.lora_name,
            kv_cache_spec_kind=get_kv_cache_spec_kind(spec).value,
            kv_cache_spec_sliding_window=get_kv_cache_spec_sliding_window(spec),
        )  # fmt: skip

    # -- worker ------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """vLLM's KV tensors: from now on pages can be copied."""
        self.mover = SleepingMover(self.open_mover(kv_caches))
        self.worker_side = WorkerSide(self.mover)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Whether vLLM may sleep beside it: its KV memory comes back at the same addresses, and ours stays."""
        return True

    def unregister_kv_caches(self) -> None:
        """vLLM goes to sleep."""
        if self.mover is not None:
            self.mover.rest()

    def restore_kv_caches(self) -> None:
        """It has woken."""
        if self.mover is not None:
            self.mover.wake()

    def get_handshake_metadata(self) -> RankNote | None:
        """What the scheduler's side should know of this rank: at start, and when it has woken."""
        if self.mover is None:
            return None
        return RankNote(num_slots(self._kv_cache_config, self._options.host, self._world_size), self.mover.num_sleeps)

    def set_xfer_handshake_metadata(self, metadata: dict[int, RankNote]) -> None:
        """The scheduler's: what all ranks have to say."""
        check_slots(metadata, self._scheduler.cache.usage(HOST).capacity)
        self._scheduler.weights.wake(min((note.sleeps for note in metadata.values()), default=0))

    def open_mover(self, kv_caches: dict[str, Any]) -> PageMover:
        """Who copies this rank's bytes."""
        slots = num_slots(self._kv_cache_config, self._options.host, self._world_size)
        check_named(self._groups, kv_caches)
        if not current_platform.is_cpu():
            pages = region_pages(self._vllm_config, self._kv_cache_config, kv_caches, slots)
            self.announce(pages, kv_caches, slots)
            return pages
        check_sizes(self._groups, kv_caches, self._kv_cache_config.num_blocks)
        layers, memory = group_layers(self._groups, kv_caches, self._kv_cache_config.num_blocks), None
        if self._options.outer:
            form = layer_form(self._groups, kv_caches)
            shape = MemoryShape(slots, self._world_size, max(part_bytes(layers)), len(self._groups), form)
            shared = PageMemory.make(memory_name(self._vllm_config), shape)
            memory = RankMemory.of_rank(shared, self._vllm_config.parallel_config.rank)
        return HostPages(layers, slots, checksums=self._options.checksums, memory=memory)

    def announce(self, pages: RegionPages, kv_caches: dict[str, Any], slots: int) -> None:
        """The scheduler will open vLLM's region; one rank says where, its file has the parts of all."""
        if self._options.outer and self._vllm_config.parallel_config.rank == 0:
            region, row = pages.region_file()
            form = f"region of {self._world_size}; {layer_form(self._groups, kv_caches)}"
            shape = MemoryShape(slots, 1, row, len(self._groups), form)
            announce_region(memory_name(self._vllm_config), shape, region)

    def handle_preemptions(self, kv_connector_metadata: StepOrders) -> None:
        """Before every step: stores that read blocks which it will write must have ended."""
        self._worker.flush(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the loads of this step."""
        self._worker.start_loads(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No load is for the step that is being computed."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are stored at once, when the step is done."""

    def wait_for_save(self) -> None:
        """Store what this step has computed."""
        self._worker.run_stores(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads that have ended; one that failed is computed."""
        got = self._worker.received()
        return KVConnectorTransferResults(finished_recving=got.ended, failed_recving=got.failed)

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """What the scheduler's side must know."""
        return self._worker.report()

    # -- metrics -----------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> QuireStats | None:
        """Counted since the last call, by this side."""
        side = self.scheduler_side
        data = side.counts.take() if side is not None else self._worker.take_counts()
        return QuireStats(data) if data else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> QuireStats:
        """For vLLM's logger."""
        return QuireStats(data if data is not None else {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> QuirePromMetrics:
        """For vLLM's /metrics."""
        return QuirePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def memory_name(vllm_config: Any) -> str:
    """Of the memory that an engine's processes share: no other engine's is called so."""
    return f"quire-pages-{vllm_config.kv_transfer_config.engine_id}-{vllm_config.instance_id}".replace("/", "-")


def _log_beside_vllm() -> None:
    """What Quire logs is seen where vLLM's own lines are, at vLLM's level."""
    ours, theirs = logging.getLogger("quire"), logging.getLogger("vllm")
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
    ours.setLevel(theirs.level)
