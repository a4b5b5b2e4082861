"""QuireHiCacheStorage: Quire's disk, a shared store or both below SGLang's HiCache. Needs SGLang.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "quire",
        "module_path": "quire.integrations.sglang.hicache_storage", "class_name": "QuireHiCacheStorage",
        "interface_v1": 1, "quire": {"folder": "/mnt/nvme/quire", "bytes": "500GB"}}'

A pool's pages are opened when all pools are known; docs/sglang.md says what it gives and what was run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any

from quire.core.records.errors import MissingExtra, say
from quire.integrations.places.open_places import disk_of, store_of
from quire.integrations.sglang.hicache_options import (
    check_ranks,
    check_sglang_version,
    model_facts,
    pool_print,
    read_hicache_options,
)
from quire.integrations.sglang.host_pool_pages import HostPoolPages, flat_bytes
from quire.integrations.sglang.pool_place import PoolPlace
from quire.tiers.shared.keyed import KeyStore

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult
except ImportError as missing:
    cure = "run it inside SGLang's environment: pip install 'quire-kv[disk]' there"
    raise MissingExtra(
        say("quire.integrations.sglang.hicache_storage", f"it needs SGLang ({missing})", cure)
    ) from missing

log = logging.getLogger("sglang.quire")
KV = "kv"


class QuireHiCacheStorage(HiCacheStorage):  # type: ignore[misc]  # SGLang is not there when types are checked
    """Pages that are bounded, checksummed, and still there after a `kill -9`. Called by several threads."""

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        try:
            check_sglang_version(version("sglang"))
        except PackageNotFoundError:
            check_sglang_version("unknown")
        self.options = read_hicache_options(storage_config.extra_config)
        check_ranks(storage_config, self.options)
        self._config = storage_config
        self._model = model_facts(storage_config, _server_args(), self.options.namespace)
        self._in_place = bool((storage_config.extra_config or {}).get("interface_v1", 0))
        self._pools: dict[str, Any] = {}
        self._open: dict[str, tuple[HostPoolPages, PoolPlace]] = {}
        self._store: KeyStore | None = None
        self._opening = Lock()

    # pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of the KV itself."""
        self.mem_pool_host = mem_pool_host
        self._pools.setdefault(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A pool beside it, or the same by its name."""
        self._pools[str(host_pool_name)] = host_pool

    def on_host_pools_registered(self) -> None:
        """All are known: the disk is divided among them."""
        with self._opening:
            self._open_pools()

    def _open_pools(self) -> None:
        forms = {
            name: HostPoolPages(pool, self._in_place) for name, pool in self._pools.items()
            if name not in self._open and getattr(pool, "kv_buffer", None) is not None
        }  # fmt: skip
        memory = {name: form.page_bytes * getattr(form.pool, "page_num", 1) for name, form in forms.items()}
        is_late = bool(self._open)
        for name, form in forms.items():
            share = 0.0 if is_late else memory[name] / sum(memory.values())
            if is_late and self.options.folder:
                log.warning(
                    "pool %s came after the disk was divided: it has none of it until SGLang starts again", name
                )
            self._open[name] = form, self._place(name, form, share)

    def _place(self, name: str, form: HostPoolPages, share: float) -> PoolPlace:
        which = pool_print(self._config, name, form.pool, form.part_bytes, self._model)
        store = self._shared(which, form.part_bytes) if self.options.shared else None
        disk = None
        if self.options.folder and share:
            own = pool_print(self._config, name, form.pool, form.part_bytes, self._model, self._config.dp_rank)
            disk = disk_of(self.options, own, form.part_bytes, share)
            log.info("QuireHiCacheStorage: %d pages of pool %s are there", len(disk), name)
        return PoolPlace(disk, store)

    def _shared(self, which: bytes, size: int) -> KeyStore:
        if self._store is None:
            self._store = store_of(self.options, which, size)
            return self._store
        return self._store.beside(which, size)

    def _of(self, name: Any) -> tuple[HostPoolPages, PoolPlace] | None:
        """A pool's pages; None: it has no bytes of its own, or is not known."""
        if str(name) not in self._open and str(name) in self._pools:
            with self._opening:
                self._open_pools()
        return self._open.get(str(name))

    # which are there

    def exists(self, key: str) -> bool:
        """Whether the KV of one page is there."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many from the start on; the store is asked once, for those that the disk has not."""
        return _run(self._there(keys, [KV])[KV])

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """The prefix that every pool can serve, each by its rule; one question to the store for all."""
        transfers = list(pool_transfers or [])
        there = self._there(keys, [KV, *(str(transfer.name) for transfer in transfers)])
        kv_pages = _run(there[KV])
        hits = {KV: kv_pages} if kv_pages else {}
        restorable = set(range(1, kv_pages + 1))
        for transfer in transfers:
            pages = there[str(transfer.name)]
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                ends = set(range(1, min(kv_pages, _run(pages)) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                tail = max(1, len(transfer.keys or ()))
                ends = {end for end in range(1, kv_pages + 1) if all(pages[max(0, end - tail) : end])}
            else:
                continue  # of a rule that it does not know it says nothing: then nothing is loaded by it
            if ends:
                hits[transfer.name] = max(ends)
            restorable &= ends
        ends_in_order = sorted(restorable)
        return PoolTransferResult(ends_in_order[-1] if ends_in_order else 0, hits, ends_in_order)

    def _there(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, list[bool]]:
        """Of every page of each pool whether all its parts are there."""
        parts: dict[str, list[bool]] = {}
        asked: list[tuple[str, int, bytes]] = []
        for name in names:
            if (opened := self._of(name)) is None:  # KV without bytes of its own is there if the others are
                parts[name] = [name == KV and KV in self._pools] * len(keys)
                continue
            form, place = opened
            own = form.keys(keys)
            parts[name] = [place.on_disk(key) for key in own]
            if place.store is not None:
                asked += [(name, nth, place.store.name_of(own[nth])) for nth, on in enumerate(parts[name]) if not on]
        if self._store is not None and asked:
            answers = self._store.names_there([page for _, _, page in asked])
            for (name, nth, _), answer in zip(asked, answers, strict=True):
                parts[name][nth] = answer
        return {name: _whole(found, len(keys)) for name, found in parts.items()}

    # moving them

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """KV pages into their places."""
        return self._get(KV, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """KV pages from their places."""
        return self._set(KV, keys, host_indices)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Pages of several pools into their places."""
        return {one.name: self._get(one.name, one.keys or [], one.host_indices) for one in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Pages of several pools from their places."""
        return {one.name: self._set(one.name, one.keys or [], one.host_indices) for one in transfers}

    def _get(self, name: Any, keys: Sequence[str], indices: Any) -> list[bool]:
        opened = self._of(name)
        if opened is None or not opened[0].fits(keys, indices):
            return self._refuse(name, keys)
        form, place = opened
        into = form.to_fill(indices)
        good = _whole(place.read(form.keys(keys), into), len(keys))
        form.filled(indices, into, good)
        return good

    def _set(self, name: Any, keys: Sequence[str], indices: Any) -> list[bool]:
        opened = self._of(name)
        if opened is None or not opened[0].fits(keys, indices):
            return self._refuse(name, keys)
        form, place = opened
        return _whole(place.write(form.keys(keys), form.to_write(indices)), len(keys))

    def _refuse(self, name: Any, keys: Sequence[str]) -> list[bool]:
        log.error(
            "%d pages of pool %s were not moved: it is not registered, or places and keys do not fit", len(keys), name
        )
        return [False] * len(keys)

    # by tensors: SGLang's calls without interface_v1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fill a flat tensor with one KV page; None: it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fill flat tensors with KV pages; None for each that is not there."""
        opened = self._of(KV)
        targets = list(target_locations or [None] * len(keys))
        if opened is None or not all(_fits(one, opened[0]) and one.is_contiguous() for one in targets):
            self._refuse(KV, keys)
            return [None] * len(keys)
        form, place = opened
        into = [part for one in targets for part in flat_bytes(one).reshape(form.parts, form.part_bytes)]
        good = _whole(place.read(form.keys(keys), into), len(keys))
        return [one if came else None for one, came in zip(targets, good, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Keep one KV page."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Keep KV pages from flat tensors; whether all are kept."""
        opened, given = self._of(KV), list(values or [])
        if opened is None or len(given) != len(keys) or not all(_fits(one, opened[0]) for one in given):
            self._refuse(KV, keys)
            return False
        form, place = opened
        pages = [part for one in given for part in flat_bytes(one).reshape(form.parts, form.part_bytes)]
        return all(place.write(form.keys(keys), pages))

    def clear(self) -> None:
        """Every page of this model and rank goes, from disk and store."""
        for _, place in self._open.values():
            place.clear()

    def close(self) -> None:
        """Make it durable, and let go of disk and store."""
        with self._opening:
            for _, place in reversed(self._open.values()):
                place.close()
            self._open.clear()
            self._pools.clear()


def _server_args() -> Any:
    """What SGLang was started with; None: nothing in this process knows."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except (ImportError, ValueError):
        return None


def _fits(tensor: Any, form: HostPoolPages) -> bool:
    return tensor is not None and tensor.numel() * tensor.element_size() == form.page_bytes


def _run(there: Sequence[bool]) -> int:
    """How many are there before the first that is not."""
    return next((nth for nth, one in enumerate(there) if not one), len(there))


def _whole(parts: Sequence[bool], pages: int) -> list[bool]:
    """Of pages whose parts follow one another: whether all are good."""
    each = len(parts) // pages if pages else 1
    return [all(parts[nth * each : (nth + 1) * each]) for nth in range(pages)]
