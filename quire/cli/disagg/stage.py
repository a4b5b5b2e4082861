"""Stage: the two processes of the transfer demo: a cache, pages, a link and an endpoint each. Prints nothing."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire import Cache, CacheConfig, LayerGroup, Request, Sequence, Span, TierConfig
from quire.tiers import ArenaTier
from quire.transfer import (
    Aux,
    Endpoint,
    Key,
    Landing,
    Limits,
    NixlLink,
    Offer,
    QuireView,
    Receiving,
    Session,
    Source,
    TcpLink,
    layout_of,
)

Tokens = NDArray[np.int32]
BLOCK, LENGTH, KNOWN = 32, 10_000, 8_512
SLOTS = (320, 20, 7)
LIMITS = Limits(lease=20, transfer=20, grace=5)
PATIENCE = 60.0
FIRST_TOKEN = 4711


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What the user chose."""

    link: str
    scale: int

    def groups(self) -> tuple[LayerGroup, ...]:
        """The layer groups; a larger scale makes smaller pages."""
        full, near, state = (size // self.scale for size in (786_432, 2_359_296, 51_216_384))
        snapshots = LayerGroup("state", page_bytes=state, snapshot_every=2_048, snapshot_at_end=False)
        return LayerGroup("full", page_bytes=full), LayerGroup("window", page_bytes=near, window=128), snapshots


class Worker:
    """One process: a cache, its pages, a link and an endpoint."""

    def __init__(self, name: str, settings: StageSettings, secret: bytes) -> None:
        groups = settings.groups()
        config = CacheConfig((TierConfig("device", SLOTS),), BLOCK, groups, 2, 12_000, max_chunk=256)
        self.cache = Cache(config)
        self.view = QuireView(self.cache)
        tier = ArenaTier("device", SLOTS, [group.page_bytes for group in groups])
        self.pages = [tier.view(group) for group in range(len(groups))]
        make = NixlLink if settings.link == "nixl" else TcpLink
        self.link = make(name, self.pages, secret)
        self.end = Endpoint(self.link, self.view, layout_of(self.view.shape(), name), limits=LIMITS)

    def compute(self, name: str, tokens: Tokens) -> Sequence:
        """A prompt in chunks; its pages get bytes that name their place."""
        batch = self.cache.add_sequence_batch([Request(name, tokens)])
        (sequence,) = batch.sequences
        while True:
            self.cache.finish(batch.plan)
            self.cache.commit(sequence)
            if sequence.computed == sequence.prompt_end:
                break
            batch = self.cache.add_sequence_batch([], continuing=[sequence])
        offer = self.view.offer(name, Span(0, sequence.prompt_end))
        assert offer is not None
        for page in pages_of(offer):
            self.pages[page.group][page.slot] = page.mark
        self.view.release(offer)
        return sequence

    def remember(self) -> None:
        """The earlier turn, and then other content that takes every window page."""
        for name, tokens in (("turn", prompt()[:KNOWN]), ("other", prompt(50_000)[: 52 * BLOCK])):
            self.cache.release(self.compute(name, tokens), store=False)

    def until(self, done: Callable[[], bool]) -> list[Session]:
        """Work until something is true."""
        limit, ended = time.monotonic() + PATIENCE, []
        while not done():
            if time.monotonic() > limit:
                raise SystemExit("quire disagg: nothing happens any more")
            ended += self.end.step(0.001)
        return ended

    def receive(self, key: Key, peer: str) -> Receiving:
        """Ask for the prompt, as soon as that peer has said hello."""
        asked: list[Receiving] = []

        def ask() -> bool:
            session = self.end.receive(key, Request("prompt", prompt()), Source((peer,)))
            asked.extend([] if session is None else [session])
            return session is not None

        self.until(ask)
        return asked[0]

    def free(self) -> list[int]:
        """Slots that can be had, per group."""
        return [self.cache.num_free(group) for group in range(len(SLOTS))]


def prompt(first: int = 0) -> Tokens:
    """Its tokens."""
    return np.arange(first, first + LENGTH, dtype=np.int32)


class MarkedPage(NamedTuple):
    """One page of the prompt: its block's ordinal, and the slot it lies in."""

    group: int
    ordinal: int
    slot: int

    @property
    def mark(self) -> int:
        """The byte that fills it, so that a reader sees whether it is the right one."""
        return 1 + (self.group * 97 + self.ordinal * 7) % 255


def pages_of(held: Offer | Landing) -> list[MarkedPage]:
    """Every page that has a slot."""
    places = enumerate(held.places)
    return [MarkedPage(g, o, int(slot)) for g, slots in places for o, slot in enumerate(slots) if slot >= 0]


# -- two processes ---------------------------------------------------------------------------------------------------


class Child:
    """The other process."""

    def __init__(self, role: str, settings: StageSettings, secret: bytes, epoch: int, peer: str = "") -> None:
        words = [role, settings.link, str(settings.scale), str(epoch), peer]
        command = [sys.executable, "-m", "quire.cli.disagg", "worker", *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(secret.hex() + "\n")
        self.process.stdin.flush()
        self.address = self.process.stdout.readline().strip()
        if ":" not in self.address:
            raise SystemExit(f"quire disagg: the {role} did not start")

    def kill(self) -> None:
        """As an operator, or the kernel, would."""
        self.process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Close its input, which ends it; and whatever is left of it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


def worker(role: str, link: str, scale: str, epoch: str, peer: str) -> int:
    """The child's life: until its parent closes its input."""
    secret = bytes.fromhex(sys.stdin.readline())
    me, key = Worker(role, StageSettings(link, int(scale)), secret), Key("prompt", int(epoch))
    if role == "sender":
        serve(me, key)
    else:
        me.remember()
    print(me.link.address, flush=True)
    if role == "receiver":
        me.receive(key, peer)
    while not (select.select([sys.stdin], [], [], 0)[0] and not sys.stdin.read(1)):
        me.end.step(0.005)
    return 0


def serve(me: Worker, key: Key) -> None:
    """The prompt is computed, once; its pages wait to be asked for."""
    if not me.cache.num_sequences:
        me.compute("prompt", prompt())
    me.end.send(key, "prompt")
    me.end.put(key, LENGTH, last=True, aux=Aux(first_tokens=(FIRST_TOKEN,)))
