"""QuireL2Adapter: Quire's disk, a shared store or both as LMCache's second level. Needs LMCache; decides nothing.

    --l2-adapter '{"type": "plugin", "module_path": "quire.integrations.lmcache.l2_adapter",
        "class_name": "QuireL2Adapter", "adapter_params": {"folder": "/mnt/nvme/quire", "bytes": "500GB",
            "namespace": "llama-3.1-8b rev 7"}}'

docs/lmcache.md says what it gives and what was run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from threading import Lock, RLock
from typing import Any

import numpy as np

from quire.core.records.errors import MissingExtra, say
from quire.integrations.lmcache.adapter_options import check_lmcache_version, objects_print, read_adapter_options
from quire.integrations.lmcache.object_pieces import Form, object_id
from quire.integrations.lmcache.object_tier import Kind, ObjectTier
from quire.tiers.base import Bytes

try:
    from lmcache.lmcache_native import Bitmap
    from lmcache.v1.distributed.internal_api import L2StoreResult
    from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
    from lmcache.v1.platform import create_event_notifier
except ImportError as missing:
    cure = "run it inside LMCache's environment: pip install 'quire-kv[disk]' there"
    raise MissingExtra(say("quire.integrations.lmcache.l2_adapter", f"it needs LMCache ({missing})", cure)) from missing

log = logging.getLogger("lmcache.quire")
NO_MEMORY = 1 << 30  # of L1, where LMCache does not say how large it is
NO_FORM: tuple[Form, int] = ((), 0)
MOST_CLASSES = 4096  # of objects whose form is remembered


class QuireL2Adapter(L2AdapterInterface):  # type: ignore[misc]  # LMCache is not there when types are checked
    """Objects that are bounded, checksummed, and still there after a `kill -9`. Called by several threads."""

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        found = _version()
        check_lmcache_version(found)
        options = read_adapter_options(params)
        super().__init__(max_capacity_bytes=int(options.bytes))
        kinds: tuple[Kind, ...] = ("store", "lookup", "load")
        self._notifiers = {kind: create_event_notifier() for kind in kinds}
        self._open = Lock()  # guards the next: a notifier that is closed may be another file by now
        self._is_closed = False
        self._lock = RLock()  # guards all below
        self._forms: dict[tuple[str, int, int], tuple[Form, int]] = {}  # of a class of objects: form, bytes
        self._counted: dict[bytes, tuple[Any, int]] = {}  # objects that LMCache knows to be on the disk: key, bytes
        self._stores: dict[int, list[tuple[Any, bytes, int]]] = {}
        self._loads: dict[int, list[Any]] = {}
        self._objects: dict[int, list[Any]] = {}  # of tasks that are under way: their memory stays
        memory = getattr(l1_memory_desc, "size", 0) or NO_MEMORY
        try:
            self.tier = ObjectTier(options, objects_print(options, found), memory, self._signal)
        except BaseException:
            self._close_notifiers()
            raise
        if self.tier.disk is not None:
            log.info("QuireL2Adapter: %d pieces are there in %s", len(self.tier.disk), options.folder)
        if self.tier.store is not None:
            log.info("QuireL2Adapter: objects are shared through %s", self.tier.store.client.store.name)

    # what is over

    def get_store_event_fd(self) -> int:
        """Readable when stores are over."""
        return int(self._notifiers["store"].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """Readable when lookups are over."""
        return int(self._notifiers["lookup"].fileno())

    def get_load_event_fd(self) -> int:
        """Readable when loads are over."""
        return int(self._notifiers["load"].fileno())

    def _signal(self, kind: Kind) -> None:
        with self._open:
            if not self._is_closed:
                self._notifiers[kind].notify()

    # stores

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Objects of L1 go to the disk and the store."""
        names, pages = self._names(keys, objects), [_bytes_of(one) for one in objects]
        with self._lock:
            number = self.tier.submit_store(names, pages)
            self._objects[number] = objects
            self._stores[number] = [
                (key, name, page.nbytes) for key, name, page in zip(keys, names, pages, strict=True)
            ]
        return number

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Each once; a store has failed if one of its objects has."""
        results: dict[int, Any] = {}
        new: list[tuple[Any, bytes, int]] = []
        with self._lock:
            for number, stored in self.tier.pop_stored().items():
                del self._objects[number]
                moved = zip(self._stores.pop(number), stored.good, stored.fresh, strict=True)
                fresh = [one for one, good, is_new in moved if good and is_new]
                new += fresh
                results[number] = L2StoreResult(all(stored.good), sum(size for _, _, size in fresh))
        self._tell(new)
        return results

    # lookups

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Mapping[int, Any]) -> int:
        """Which are there. The disk knows at once, and holds them; the store is asked once for the others."""
        names, sizes = [], []
        with self._lock:
            for key in keys:
                layout = group_layout_descs.get(key.object_group_id)
                if _class_of(key) not in self._forms and layout is not None:
                    self._learn(key, _form(layout.shapes, layout.dtypes), _size(layout.shapes, layout.dtypes))
                form, size = self._forms.get(_class_of(key), NO_FORM)
                names.append(_name(key, form))
                sizes.append(size)
            return self.tier.submit_lookup(names, sizes)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Its answer, once; None: not known yet."""
        found = self.tier.take_found(task_id)
        return None if found is None else _bitmap(found)

    def submit_unlock(self, keys: list[Any]) -> None:
        """What a lookup held may go."""
        with self._lock:
            self.tier.unlock(self._known(keys)[0])

    # loads

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Objects come into L1's memory."""
        names, pages = self._names(keys, objects), [_bytes_of(one) for one in objects]
        with self._lock:
            number = self.tier.submit_load(names, pages)
            self._objects[number] = objects
            self._loads[number] = list(keys)
        return number

    def query_load_result(self, task_id: int) -> Any:
        """Which came, once; None: it is under way."""
        with self._lock:
            came = self.tier.take_loaded(task_id)
            if came is None:
                return None
            del self._objects[task_id]
            loaded = [key for key, good in zip(self._loads.pop(task_id), came, strict=True) if good]
        if loaded:
            self._notify_keys_accessed(loaded)
        self._tell()
        return _bitmap(came)

    # what LMCache wants to know and do beside that

    def delete(self, keys: list[Any]) -> None:
        """These go from the disk. A store has an order of its own."""
        with self._lock:
            self.tier.delete(*self._known(keys))
        self._tell()

    def get_usage(self) -> Any:
        """Bytes on the disk, those of earlier processes too; per salt what this one has stored."""
        usage = super().get_usage()
        if self.tier.disk is None:
            return usage
        used = len(self.tier.disk) * self.tier.piece_bytes
        return AdapterUsage(used, usage.total_capacity_bytes, usage.bytes_by_cache_salt)

    def report_status(self) -> dict[str, Any]:
        """For LMCache's status page."""
        disk, store = self.tier.disk, self.tier.store
        status: dict[str, Any] = {"type": "QuireL2Adapter", "is_healthy": True, "waiting": self.tier.num_waiting}
        if disk is not None:
            status |= {"pieces": len(disk), "disk": disk.broken or disk.stalled or "well", "hanging": disk.hanging}
            status["is_healthy"] = not disk.broken and not disk.hanging
        if store is not None:
            status |= {"store": store.client.store.name, "store_reachable": store.client.reachable}
        return status

    def close(self) -> None:
        """Make it durable, and let go; the pages stay."""
        if not self.tier.close():
            log.warning("QuireL2Adapter: disk or store does not answer; what came since the last fence may be lost")
        self._close_notifiers()

    def _close_notifiers(self) -> None:
        with self._open:
            if not self._is_closed:
                self._is_closed = True
                for notifier in self._notifiers.values():
                    notifier.close()

    def _tell(self, fresh: Sequence[tuple[Any, bytes, int]] = ()) -> None:
        """LMCache counts what is on the disk; a store keeps its own books. Listeners may call back: no lock here."""
        with self._lock:
            new = {name: (key, size) for key, name, size in fresh if name not in self._counted}
            if self.tier.disk is None:
                new = {}
            self._counted.update(new)
            gone = [self._counted.pop(name) for name in self.tier.take_gone() if name in self._counted]
        if new:
            self._notify_keys_stored([key for key, _ in new.values()], [size for _, size in new.values()])
        if gone:
            self._notify_keys_deleted([key for key, _ in gone], [size for _, size in gone])

    def _names(self, keys: Sequence[Any], objects: Sequence[Any]) -> list[bytes]:
        """Of objects whose memory is there: their class has that form from now on."""
        names = []
        with self._lock:
            for key, one in zip(keys, objects, strict=True):
                shapes, dtypes = _layout_of(one)
                form = _form(shapes, dtypes)
                self._learn(key, form, _size(shapes, dtypes))
                names.append(_name(key, form))
        return names

    def _learn(self, key: Any, form: Form, size: int) -> None:
        if len(self._forms) >= MOST_CLASSES and _class_of(key) not in self._forms:
            self._forms.clear()
        self._forms[_class_of(key)] = form, size

    def _known(self, keys: Sequence[Any]) -> tuple[list[bytes], list[int]]:
        """Names and sizes of objects whose class has been seen."""
        known = [(key, self._forms[_class_of(key)]) for key in keys if _class_of(key) in self._forms]
        return [_name(key, form) for key, (form, _) in known], [size for _, (_, size) in known]


def _class_of(key: Any) -> tuple[str, int, int]:
    """Objects of one class have one form."""
    return key.model_name, key.kv_rank, key.object_group_id


def _name(key: Any, form: Form) -> bytes:
    return object_id(key.chunk_hash, key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, form)


def _layout_of(one: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Shapes and dtypes of an object of L1."""
    meta = one.metadata
    return (meta.shapes, meta.dtypes) if meta.shapes and meta.dtypes else ([meta.shape], [meta.dtype])


def _form(shapes: Iterable[Any], dtypes: Iterable[Any]) -> Form:
    return tuple((tuple(shape), str(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True))


def _size(shapes: Iterable[Any], dtypes: Iterable[Any]) -> int:
    return sum(int(shape.numel()) * int(dtype.itemsize) for shape, dtype in zip(shapes, dtypes, strict=True))


def _bytes_of(one: Any) -> Bytes:
    """An object's own memory, all of its form: LMCache may call less of it used, and reads into all of it."""
    size = _size(*_layout_of(one))
    found: Bytes = np.frombuffer(one.byte_array, np.uint8)
    if found.nbytes != size:
        found = one.raw_data.numpy().view(np.uint8)[:size]
    return found


def _bitmap(good: Sequence[bool]) -> Any:
    made = Bitmap(len(good))
    for nth, is_good in enumerate(good):
        if is_good:
            made.set(nth)
    return made


def _version() -> str:
    try:
        return version("lmcache")
    except PackageNotFoundError:
        return "unknown"
