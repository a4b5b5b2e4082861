"""NixlLink: pages by NIXL (UCX: RDMA where there is any), everything else over the tcp link it extends.

The sender offers rows; the receiver's own agent READs them into its pages and says when they are there. So a receiver
knows by itself when nothing more can land, and a sender that is gone makes its reads fail. What was read counts only
when the sender reports afterwards, while it still holds the pages.

    sender                        receiver
    PULL door, ticket, rows  -->  READ from the sender's memory ... DONE of the handle
    WriteDone(ticket)            <--  DONE ticket
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.net.tls import Tls
from quire.tiers.base import Bytes
from quire.transfer.geometry.byte_rows import NO_ROWS, Rows, chunks, from_bytes, to_bytes
from quire.transfer.links.connection import Broken, Connection, Views
from quire.transfer.links.link import Door, News
from quire.transfer.links.pulls import PulledWrite, Pulls
from quire.transfer.links.tcp import TcpLink
from quire.transfer.links.writes import WRITE, OutgoingWrite

AGENT, PULL = 16, 17
POOL = struct.Struct("<QQ")  # address and bytes of one group's pages
PART = 64 << 20  # bytes of one READ
MAX_GROUPS, MAX_METADATA = 64, 1 << 20
MOST_READS_OF_ALL = 1 << 16  # of all peers, those that are gone included
SETTLE = 0.25  # seconds after a failed READ: NIXL reports the first part that failed, the others end with it


@dataclass(slots=True, eq=False)
class NixlRead:
    """One READ under way into this process's pages."""

    connection: Connection
    agent: str
    door: int
    ticket: int
    write: PulledWrite
    rows: int
    handle: Any = None
    problem: str | None = None
    over: bool = False  # NIXL has said how it ended
    quiet_at: float = 0.0  # when nothing of it can land any more


class NixlLink(TcpLink):
    """A tcp link whose page bytes go by NIXL. `thread` lets NIXL work between polls, for most of a core."""

    def __init__(
        self, name: str, pages: Sequence[Bytes], secret: bytes, *, listen: str | None = "127.0.0.1:0",
        patience: float = 5.0, thread: bool = False, tls: Tls | None = None,
    ) -> None:  # fmt: skip
        if tls is not None:
            fact = "NIXL moves page bytes beside the sockets, unencrypted"
            raise InputError(say("TLS for a link over NIXL", fact, "use the tcp link, or a network that encrypts"))
        api = _api()
        super().__init__(name, pages, secret, listen=listen, patience=patience)
        config = api.nixl_agent_config(enable_prog_thread=thread, backends=[])
        self._agent = api.nixl_agent(f"{name}-{uuid.uuid4().hex}", config)
        self._agent.create_backend("UCX", {"ucx_error_handling_mode": "peer"})  # else a dead peer is never noticed
        pools = sorted({(page.ctypes.data, page.nbytes, 0) for page in pages if page.nbytes})  # groups may share one
        self._registered = self._agent.register_memory(np.array(pools, np.uint64), "DRAM") if pools else None
        self._remote: dict[str, tuple[str, list[tuple[int, int]]]] = {}  # peer -> agent, pools
        self._reads: list[NixlRead] = []
        self._departed: set[str] = set()  # agents of peers that are gone, until their reads have ended
        self._pulls: dict[Connection, Pulls] = {}

    # -- the sender's side -------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Send the peer the places of this side's pages."""
        super().opened(connection)
        pools = b"".join(POOL.pack(page.ctypes.data, page.nbytes) for page in self.pages)
        head = struct.pack("<I", len(self.pages))
        connection.queue(AGENT, head + pools + self._agent.get_agent_metadata(), first=True)

    def _start(self, connection: Connection, write: OutgoingWrite, rows: Rows) -> None:
        write.flushed = True  # no bytes leave from here
        parts = chunks(rows, PART) or [NO_ROWS]
        for nth, part in enumerate(parts):
            head = WRITE.pack(write.door, write.ticket, nth == len(parts) - 1)
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
        if count > MAX_GROUPS or not 0 <= len(body) - 4 - count * POOL.size <= MAX_METADATA:
            raise Broken(f"it names {count} pools in {len(body)} bytes")
        if connection.peer in self._remote:
            raise Broken("it names its agent again")
        pools = [POOL.unpack_from(body, 4 + nth * POOL.size) for nth in range(count)]
        try:
            agent = self._agent.add_remote_agent(body[4 + count * POOL.size :])
        except Exception as error:  # NIXL's errors share no class of their own
            raise Broken(f"its agent cannot be added: {error}") from error
        self._remote[connection.peer] = (agent.decode() if isinstance(agent, bytes) else agent, pools)

    def _pull(self, connection: Connection, body: bytes) -> None:
        rows = from_bytes(body[WRITE.size :])
        if int(np.minimum(rows[:, 3], PART + 1).sum()) > PART:
            raise Broken(f"it names more than {PART} bytes at once")
        door, ticket, last = WRITE.unpack_from(body)
        pulls, known = self._pulls.setdefault(connection, Pulls()), self._doors.get(door)
        write = pulls.name(ticket, last=last)
        admitted = known is not None and known.admits(rows) and self._in_their_pools(connection.peer, rows)
        if not admitted or len(self._reads) >= MOST_READS_OF_ALL:
            write.is_spoilt = True
        elif len(rows) and not write.is_spoilt:
            pulls.begin(write, len(rows))
            agent, _ = self._remote[connection.peer]
            read = NixlRead(connection, agent, door, ticket, write, len(rows))
            self._reads.append(read)
            self._start_read(read, rows)
        self._settle(connection, ticket)

    def _in_their_pools(self, peer: str, rows: Rows) -> bool:
        pools = self._remote.get(peer, ("", []))[1]
        return all(g < len(pools) and source + size <= pools[g][1] for g, source, _, size in rows.tolist())

    def _start_read(self, read: NixlRead, rows: Rows) -> None:
        _, pools = self._remote[read.connection.peer]
        mine = np.array([page.ctypes.data for page in self.pages], np.uint64)
        theirs = np.array([pool[0] for pool in pools], np.uint64)
        local, remote = (np.zeros((len(rows), 3), np.uint64) for _ in range(2))
        for descriptors, bases, offsets in ((local, mine, rows[:, 2]), (remote, theirs, rows[:, 1])):
            descriptors[:, 0] = bases[rows[:, 0]] + offsets.astype(np.uint64)
            descriptors[:, 1] = rows[:, 3]
        try:
            lists = (self._agent.get_xfer_descs(part, "DRAM") for part in (local, remote))
            read.handle = self._agent.initialize_xfer("READ", *lists, read.agent)
            _see(read, self._agent.transfer(read.handle))
        except Exception as error:
            _see(read, str(error))

    def _progress(self) -> None:
        """Ask every READ how far it is; ended ones are released, and reported when they were a write's last."""
        self._agent.get_new_notifs()  # a passive target makes progress only when asked
        for read in self._reads:
            if not read.over:
                self._look(read)
        now = time.monotonic()
        for agent in [agent for agent in self._departed if not self._is_read(agent)]:
            self._remove(agent)
        ended = [read for read in self._reads if read.over and now >= read.quiet_at]
        if ended:
            self._reads = [r for r in self._reads if not r.over or now < r.quiet_at]
        for read in ended:
            self._end(read)

    def _end(self, read: NixlRead) -> None:
        pulls, connection = self._pulls.get(read.connection), read.connection
        if pulls is None:
            return  # its peer is gone, and what it has named
        pulls.end(read.write, read.rows, good=read.problem is None)
        try:
            self._settle(connection, read.ticket)
        except Broken as error:
            self._lose(connection, str(error))

    def _is_read(self, agent: str) -> bool:
        return any(read.agent == agent and not read.over for read in self._reads)

    def _look(self, read: NixlRead) -> None:
        try:
            _see(read, self._agent.check_xfer_state(read.handle))
        except Exception as error:
            _see(read, str(error))
        if read.over:
            with contextlib.suppress(Exception):  # whatever it says: how it ended is known
                read.handle.release()

    def _remove(self, agent: str) -> None:
        """Close what leads to a peer that is gone. Before its reads have ended by themselves that proves nothing."""
        self._departed.discard(agent)
        if all(agent != other for other, _ in self._remote.values()):  # both may have dialled
            with contextlib.suppress(Exception):  # it is gone: there is no one to tell
                self._agent.remove_remote_agent(agent)

    def _settle(self, connection: Connection, ticket: int) -> None:
        """Report a write that is over."""
        write = self._pulls[connection].take_over(ticket)
        if write is not None:
            self._tell(connection, ticket, "its door is shut, or reading failed" if write.is_spoilt else None)

    # -- the contract, where it differs ------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0) -> list[News]:
        """Sockets and NIXL in turn while bytes move; otherwise it waits for sockets."""
        if self._is_closed:
            return super().poll()
        limit = time.monotonic() + timeout
        while True:
            busy = bool(self._reads or self._outgoing)
            news = super().poll(0.0 if busy else max(limit - time.monotonic(), 0.0))
            self._progress()
            if news or self._news or time.monotonic() >= limit:
                made, self._news = self._news, []
                return news + made
            time.sleep(0)

    def _shut(self, door: Door) -> bool:
        """Nothing new is let in or read for it; what is being read must end first."""
        super()._shut(door)
        if self._is_read_into(door):
            self._progress()
        return not self._is_read_into(door)

    def _is_read_into(self, door: Door) -> bool:
        return any(read.door == door.number for read in self._reads)

    def _gone(self, connection: Connection, reason: str) -> None:
        super()._gone(connection, reason)
        self._pulls.pop(connection, None)
        agent, _ = self._remote.pop(connection.peer, ("", None))
        if agent:
            self._departed.add(agent)

    def fileno(self) -> int:
        """While bytes move NIXL must be polled; otherwise what is new comes over sockets."""
        return -1 if self._reads or self._outgoing or self._departed else super().fileno()

    def close(self, peer: str | None = None) -> bool:
        """True when no READ of that peer is left."""
        super().close(peer)
        self._progress()
        left = [read for read in self._reads if peer in (None, read.connection.peer)]
        if peer is None and not left and self._registered is not None:
            self._agent.deregister_memory(self._registered)
            self._registered = None
        return not left


def _see(read: NixlRead, state: str) -> None:
    """What NIXL says of a READ: PROC and DONE, or else what is wrong with it. The next poll reports all ends."""
    read.over = state != "PROC"
    if read.over and state != "DONE":
        read.problem, read.quiet_at = state, time.monotonic() + SETTLE


def _api() -> Any:
    try:
        return importlib.import_module("nixl._api")
    except ImportError as missing:
        cure = f"{install_line('nixl')}, which brings torch with CUDA; without it pip install --no-deps nixl nixl-cu12"
        raise MissingExtra(say("a link over NIXL", f"nixl is not installed ({missing})", cure)) from missing
