"""What a link costs: pages of 1 MiB, scattered (every second slot), from this process to another one on loopback.

    python benchmarks/transfer.py [--pages 128] [--rounds 7] [--no-nixl] [--cuda] [--json]

Rows, round by round in turn, in one run: a bare socket (sendall, recv_into), the tcp link, a whole session over it;
bare NIXL (one READ with the same descriptors), the NIXL link, a whole session over it. Compare rows of one run only.
With --cuda the pages are on a GPU, for both processes; a session also takes them to pinned memory and from there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

from quire import LayerGroup, Request
from quire.tiers import ArenaTier
from quire.transfer import BlockLists, Endpoint, Key, Limits, NixlLink, Source, StagedView, TcpLink, layout_of
from quire.transfer.geometry.byte_rows import Rows
from quire.transfer.links.link import Received, WriteDone

PAGE = 1 << 20
SECRET = b"a secret of this benchmark alone"
LIMITS = Limits(transfer=60, grace=10)


class Scattered(BlockLists):
    """Block lists that use every second slot, so that no two pages are neighbours."""

    def __init__(self, pages: int) -> None:
        super().__init__((LayerGroup("full", page_bytes=PAGE),), 1, (2 * pages,))
        self._free = [list(range(2 * pages - 2, -2, -2))]


class Side:
    """One process: a pool, a bare socket, and per link an endpoint over the same pool."""

    def __init__(self, name: str, pages: int, kinds: list[str], cuda: bool) -> None:
        self.pages = pages
        self.pool = pinned(2 * pages) if cuda else np.ones((2 * pages, PAGE), np.uint8)
        make: dict[str, Any] = {"tcp": TcpLink, "nixl": NixlLink}
        self.links = {kind: make[kind](name, [self.pool], SECRET) for kind in kinds}
        self.lists = {kind: Scattered(pages) for kind in kinds}
        views = {kind: on_gpu(lists, self.pool) if cuda else lists for kind, lists in self.lists.items()}
        self.ends = {
            kind: Endpoint(link, views[kind], layout_of(views[kind].shape(), name), limits=LIMITS)
            for kind, link in self.links.items()
        }

    def rows(self) -> Rows:
        slots = np.arange(self.pages, dtype=np.int64) * 2 * PAGE
        return np.stack([np.zeros_like(slots), slots, slots, np.full_like(slots, PAGE)], axis=1)

    def request(self, name: str) -> Request:
        return Request(name, np.arange(self.pages, dtype=np.int32))


def pinned(slots: int) -> Any:
    import torch

    return torch.ones(slots, PAGE, dtype=torch.uint8, pin_memory=True).numpy()


def on_gpu(lists: Scattered, staging: Any) -> StagedView:
    import torch

    from quire.tiers.torch_tier import TorchTier

    device = TorchTier("device", [torch.ones(len(staging), PAGE, dtype=torch.uint8, device="cuda")])
    return StagedView(lists, device, ArenaTier.over("staging", [staging]))


# -- the receiving process -------------------------------------------------------------------------------------------


def child(pages: int, kinds: list[str], cuda: bool) -> None:
    side = Side("receiver", pages, kinds, cuda)
    server = socket.create_server(("127.0.0.1", 0))
    doors = {kind: link.door([np.arange(2 * pages, dtype=np.int32)]) for kind, link in side.links.items()}
    facts = {kind: [link.address, doors[kind].number] for kind, link in side.links.items()}
    print(json.dumps({"bare": server.getsockname()[1], **facts}), flush=True)
    bare, _ = server.accept()
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for line in sys.stdin:
        what, kind, *rest = line.split()
        if what == "bare" and kind == "tcp":
            take(bare, side)
        elif what == "bare":
            read(side)
        elif what == "link":
            wait_for_goodbye(side.links[kind])
        elif what == "session":
            receive(side, kind, *rest)
        bare.sendall(b"k")


def take(bare: socket.socket, side: Side) -> None:
    for slot in range(0, 2 * side.pages, 2):
        view, got = memoryview(side.pool[slot]), 0
        while got < PAGE:
            got += bare.recv_into(view[got:])


def read(side: Side) -> None:
    """The same bytes with NIXL and nothing around it: the link's own agent and descriptors."""
    link = side.links["nixl"]
    agent, pools = next(iter(link._remote.values()))
    rows = side.rows()
    local, remote = (np.zeros((len(rows), 3), np.uint64) for _ in range(2))
    local[:, 0] = rows[:, 2] + link.pages[0].ctypes.data
    remote[:, 0] = rows[:, 1] + pools[0][0]
    local[:, 1] = remote[:, 1] = PAGE
    lists = [link._agent.get_xfer_descs(part, "DRAM") for part in (local, remote)]
    handle = link._agent.initialize_xfer("READ", *lists, agent)
    state = link._agent.transfer(handle)
    while state == "PROC":
        state = link._agent.check_xfer_state(handle)
        time.sleep(0)
    handle.release()


def wait_for_goodbye(link: Any) -> None:
    while not any(isinstance(news, Received) and news.data == b"bye" for news in link.poll(0.05)):
        pass


def receive(side: Side, kind: str, name: str, peer: str) -> None:
    key, view = Key(name), side.lists[kind]
    session = None
    while session is None:  # until they know each other
        session = side.ends[kind].receive(key, side.request(name), Source((peer,)), aux=False)
        side.ends[kind].step(0.0 if session else 0.05)
    while side.ends[kind].is_open(key):
        side.ends[kind].step(0.05)
    assert session.num_bytes == side.pages * PAGE, session.verdict
    view.finish(view._tables[name], keep=False)
    view._found[0].clear()
    view._names[0].clear()
    view._free = [list(range(2 * side.pages - 2, -2, -2))]


# -- the sending process ---------------------------------------------------------------------------------------------


class Runs:
    """The parent: tells the child what comes, does it, and takes the time."""

    def __init__(self, pages: int, kinds: list[str], cuda: bool) -> None:
        self.side = Side("sender", pages, kinds, cuda)
        command = [sys.executable, __file__, "--child", str(pages), ",".join(kinds), "cuda" if cuda else "host"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())
        self.bare = socket.create_connection(("127.0.0.1", self.facts["bare"]))
        self.bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.names = 0

    def tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def answered(self, kind: str) -> None:
        """The child is done; meanwhile a passive agent has to be asked."""
        self.bare.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                assert self.bare.recv(1) == b"k"
                break
            self.side.ends[kind].step()
            time.sleep(0)
        self.bare.setblocking(True)

    def once(self, what: str, kind: str) -> float:
        """Seconds of one round."""
        self.names += 1
        name, link = f"r{self.names}", self.side.links[kind]
        if what == "session":
            self.tell(what, kind, name, link.address)
            return self.session(kind, name)
        self.tell(what, kind)
        begin = time.perf_counter()
        if what == "link":
            address, door = self.facts[kind]
            ticket = link.write(address, door, self.side.rows())
            while not any(isinstance(news, WriteDone) and news == (ticket, None) for news in link.poll(0.05)):
                pass
            seconds = time.perf_counter() - begin
            link.send(address, b"bye")
            link.poll(0.0)
        elif kind == "tcp":
            for slot in range(0, 2 * self.side.pages, 2):
                self.bare.sendall(self.side.pool[slot])
            self.answered(kind)
            return time.perf_counter() - begin
        else:
            self.answered(kind)
            return time.perf_counter() - begin
        self.answered(kind)
        return seconds

    def session(self, kind: str, name: str) -> float:
        """From the last piece to the last word, both processes' work included."""
        view, end, key = self.side.lists[kind], self.side.ends[kind], Key(name)
        table = view.compute(self.side.request(name))
        assert table is not None
        end.send(key, name)
        begin = time.perf_counter()
        end.put(key, self.side.pages, last=True)
        while end.is_open(key):
            end.step(0.05)
        seconds = time.perf_counter() - begin
        self.answered(kind)
        view.finish(table, keep=False)
        view._free = [list(range(2 * self.side.pages - 2, -2, -2))]
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-nixl", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    nixl = not options.no_nixl and not options.cuda and importlib.util.find_spec("nixl") is not None
    kinds = ["tcp", "nixl"] if nixl else ["tcp"]
    runs = Runs(options.pages, kinds, options.cuda)
    rows = [(what, kind) for kind in kinds for what in ("link", "bare", "session")]  # a link meets its peer first
    times: dict[tuple[str, str], list[float]] = {row: [] for row in rows}
    for nth in range(options.rounds + 1):
        for row in rows:
            seconds = runs.once(*row)
            if nth:  # the first round warms up
                times[row].append(seconds)
    size = options.pages * PAGE / 1e9
    result = {f"{kind} {what}": (size / statistics.median(t), size / min(t)) for (what, kind), t in times.items()}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{options.pages} pages of 1 MiB, scattered, {options.rounds} rounds; GB/s: median, best; of bare median")
        for name, (median, best) in result.items():
            bare = result[name.split()[0] + " bare"][0]
            print(f"  {name:14}{median:8.2f}{best:8.2f}{100 * median / bare:8.0f} %")
    runs.process.stdin.close()  # type: ignore[union-attr]
    runs.process.wait(10)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4] == "cuda")
    else:
        main()
