"""NixlLink: pages by NIXL (UCX: RDMA where there is any), everything else over the tcp link it extends.

The sender offers rows; the receiver's own agent READs them into its pages and says when they are there. So a receiver
knows by itself when nothing more can land, and a sender that is gone makes its reads fail. What was read counts only
when the sender says its word afterwards, while it still holds the pages.

    sender                        receiver
    PULL door, ticket, rows  -->  READ from the sender's memory ... DONE of the handle
    Moved(ticket)            <--  DONE ticket
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.errors import StateError, say
from quire.tiers.base import Bytes
from quire.transfer.links.connection import Broken, Connection, Views
from quire.transfer.links.going import WRITE, Going
from quire.transfer.links.link import Door, News
from quire.transfer.links.tcp import TcpLink
from quire.transfer.rows import Rows, chunks, from_bytes, to_bytes

AGENT, PULL = 16, 17
POOL = struct.Struct("<QQ")  # address and bytes of one group's pages
PART = 64 << 20  # bytes of one READ
MAX_GROUPS = 64
SETTLE = 0.25  # seconds after a failed READ: NIXL tells of the first part that failed, the others end with it


@dataclass(slots=True, eq=False)
class Reading:
    """One READ under way into this process's pages."""

    peer: str
    door: int
    ticket: int
    handle: Any
    problem: str | None = None
    over: bool = False  # NIXL has said how it ended
    quiet_at: float = 0.0  # when nothing of it can land any more


class NixlLink(TcpLink):
    """A tcp link whose page bytes go by NIXL. `thread` lets NIXL work while nobody polls, for most of a core."""

    def __init__(
        self, name: str, pages: Sequence[Bytes], secret: bytes, *, listen: str | None = "127.0.0.1:0",
        patience: float = 5.0, thread: bool = False,
    ) -> None:  # fmt: skip
        api = _api()
        super().__init__(name, pages, secret, listen=listen, patience=patience)
        config = api.nixl_agent_config(enable_prog_thread=thread, backends=[])
        self._agent = api.nixl_agent(f"{name}-{uuid.uuid4().hex}", config)
        self._agent.create_backend("UCX", {"ucx_error_handling_mode": "peer"})  # else a dead peer is never noticed
        pools = [(page.ctypes.data, page.nbytes, 0) for page in pages if page.nbytes]
        self._registered = self._agent.register_memory(np.array(pools, np.uint64), "DRAM") if pools else None
        self._remote: dict[str, tuple[str, list[tuple[int, int]]]] = {}  # peer -> agent, pools
        self._readings: list[Reading] = []
        self._departed: dict[str, str] = {}  # agents of peers that are gone, until their reads have ended
        self._open_reads: Counter[tuple[str, int]] = Counter()  # of one write
        self._all_named: set[tuple[str, int]] = set()  # writes whose last PULL has come

    # -- the sender's side -------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Tell the peer where this side's pages are."""
        super().opened(connection)
        pools = b"".join(POOL.pack(page.ctypes.data, page.nbytes) for page in self.pages)
        head = struct.pack("<I", len(self.pages))
        connection.queue(AGENT, head + pools + self._agent.get_agent_metadata(), first=True)

    def _start(self, connection: Connection, going: Going, rows: Rows) -> None:
        going.flushed = True  # no bytes leave from here
        parts = chunks(rows, PART)
        for nth, part in enumerate(parts):
            head = WRITE.pack(going.door, going.ticket, nth == len(parts) - 1)
            connection.queue(PULL, head + to_bytes(part))

    # -- the receiver's side -----------------------------------------------------------------------------------------

    def frame(self, connection: Connection, kind: int, body: bytes) -> Views | None:
        """Frames of NIXL; all others are the tcp link's."""
        if kind == AGENT:
            self._meet(connection, body)
        elif kind == PULL:
            self._pull(connection, body)
        else:
            return super().frame(connection, kind, body)
        return None

    def _meet(self, connection: Connection, body: bytes) -> None:
        (count,) = struct.unpack_from("<I", body)
        if count > MAX_GROUPS or len(body) < 4 + count * POOL.size:
            raise Broken(f"it names {count} pools")
        pools = [POOL.unpack_from(body, 4 + nth * POOL.size) for nth in range(count)]
        try:
            agent = self._agent.add_remote_agent(body[4 + count * POOL.size :])
        except Exception as wrong:  # NIXL's errors share no class of their own
            raise Broken(f"its agent cannot be added: {wrong}") from wrong
        self._remote[connection.peer] = (agent.decode() if isinstance(agent, bytes) else agent, pools)

    def _pull(self, connection: Connection, body: bytes) -> None:
        rows = from_bytes(body[WRITE.size :])
        door, ticket, last = WRITE.unpack_from(body)
        write, known = (connection.peer, ticket), self._doors.get(door)
        if last:
            self._all_named.add(write)
        if known is None or not known.admits(rows) or not self._in_their_pools(connection.peer, rows):
            self._spoil(write)
        elif len(rows):
            self._read(connection, door, ticket, rows)
        self._settle(connection, write)

    def _in_their_pools(self, peer: str, rows: Rows) -> bool:
        pools = self._remote.get(peer, ("", []))[1]
        return all(g < len(pools) and source + size <= pools[g][1] for g, source, _, size in rows.tolist())

    def _read(self, connection: Connection, door: int, ticket: int, rows: Rows) -> None:
        agent, pools = self._remote[connection.peer]
        mine = np.array([page.ctypes.data for page in self.pages], np.uint64)
        theirs = np.array([pool[0] for pool in pools], np.uint64)
        local, remote = (np.zeros((len(rows), 3), np.uint64) for _ in range(2))
        for descriptors, bases, offsets in ((local, mine, rows[:, 2]), (remote, theirs, rows[:, 1])):
            descriptors[:, 0] = bases[rows[:, 0]] + offsets.astype(np.uint64)
            descriptors[:, 1] = rows[:, 3]
        reading = Reading(connection.peer, door, ticket, None)
        try:
            lists = (self._agent.get_xfer_descs(part, "DRAM") for part in (local, remote))
            reading.handle = self._agent.initialize_xfer("READ", *lists, agent)
            self._agent.transfer(reading.handle)
        except Exception as wrong:  # told with the next poll, like any other end
            reading.problem, reading.over, reading.quiet_at = str(wrong), True, time.monotonic() + SETTLE
        self._open_reads[connection.peer, ticket] += 1
        self._readings.append(reading)

    def _progress(self) -> None:
        """Ask every READ how far it is; ended ones are released, and told when they were a write's last."""
        self._agent.get_new_notifs()  # a passive target makes progress only when asked
        now = time.monotonic()
        for reading in self._readings:
            if not reading.over:
                self._look(reading, now)
        for agent, peer in list(self._departed.items()):
            if all(reading.over for reading in self._readings if reading.peer == peer):
                self._remove(agent)
        ended = [reading for reading in self._readings if reading.over and now >= reading.quiet_at]
        if ended:
            self._readings = [reading for reading in self._readings if reading not in ended]
        for reading in ended:
            write = (reading.peer, reading.ticket)
            self._open_reads[write] -= 1
            if reading.problem is not None:
                self._spoilt.add(write)
            connection = self._peers.get(reading.peer)
            if connection is not None:
                try:
                    self._settle(connection, write)
                except Broken as wrong:
                    self._lose(connection, str(wrong))

    def _look(self, reading: Reading, now: float) -> None:
        try:
            reading.over = self._agent.check_xfer_state(reading.handle) != "PROC"
        except Exception as wrong:
            reading.over, reading.problem = True, str(wrong)
        if reading.over:
            reading.quiet_at = now if reading.problem is None else now + SETTLE
            with contextlib.suppress(Exception):  # whatever it says: how it ended is known
                reading.handle.release()

    def _remove(self, agent: str) -> None:
        """Close what leads to a peer that is gone. Before its reads have ended by themselves that proves nothing."""
        del self._departed[agent]
        if all(agent != other for other, _ in self._remote.values()):  # both may have dialled
            with contextlib.suppress(Exception):  # it is gone: there is nobody to tell
                self._agent.remove_remote_agent(agent)

    def _settle(self, connection: Connection, write: tuple[str, int]) -> None:
        """A write is over when all of it was named and every READ has ended."""
        if write in self._all_named and not self._open_reads[write]:
            self._all_named.discard(write)
            del self._open_reads[write]
            self.tell(connection, write[1], "its door is shut, or reading failed" if write in self._spoilt else None)
            self._spoilt.discard(write)

    # -- the contract, where it differs ------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0) -> list[News]:
        """Sockets and NIXL in turn while bytes move; otherwise it waits for sockets."""
        limit = time.monotonic() + timeout
        while True:
            busy = bool(self._readings or self._going)
            news = super().poll(0.0 if busy else timeout)
            self._progress()
            if news or self._news or time.monotonic() >= limit:
                made, self._news = self._news, []
                return news + made
            time.sleep(0)

    def _shut(self, door: Door) -> bool:
        """Nothing new is read for it; what is under way must end first."""
        self._doors.pop(door.number, None)
        if any(reading.door == door.number for reading in self._readings):
            self._progress()
        return not any(reading.door == door.number for reading in self._readings)

    def _lose(self, connection: Connection, reason: str) -> None:
        super()._lose(connection, reason)
        agent, _ = self._remote.pop(connection.peer, ("", None))
        self._all_named = {write for write in self._all_named if write[0] != connection.peer}
        for write in [write for write in self._open_reads if write[0] == connection.peer]:
            del self._open_reads[write]
        if agent:
            self._departed[agent] = connection.peer

    def close(self, peer: str | None = None) -> bool:
        """True when no READ of that peer is left."""
        super().close(peer)
        self._progress()
        left = [reading for reading in self._readings if peer in (None, reading.peer)]
        if peer is None and not left and self._registered is not None:
            self._agent.deregister_memory(self._registered)
            self._registered = None
        return not left


def _api() -> Any:
    try:
        return importlib.import_module("nixl._api")
    except ImportError as missing:
        cure = "pip install --no-deps nixl nixl-cu12 (plain `pip install nixl` brings torch with CUDA)"
        raise StateError(say("a link over NIXL", f"nixl is not installed: {missing}", cure)) from missing
