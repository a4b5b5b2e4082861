"""Model: one small cache as it should be: its token streams, rows, claims and plans. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuzzing.oracle import claims, pending
from fuzzing.oracle.charge import Charge
from fuzzing.oracle.pools import EXCHANGE
from fuzzing.oracle.state import Batch, Claim, Done, Row, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Ask, Move, Path, PlanFacts, World


class Model:
    """The sequences' own stream, and the encoder's where cross groups read one; a row has one number in both."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self.world = world
        self.own = State(world, clock, range(world.num_own))
        self.cross = State(world, clock, range(world.num_own, world.num_groups)) if self.has_cross else None
        self.streams = [self.own] if self.cross is None else [self.own, self.cross]
        self.places = [(stream, place) for stream in self.streams for place in range(len(stream.pools))]
        homes = [world.home(group) for group in range(world.num_groups)]
        self.sharers = [[group for group, one in enumerate(homes) if one == home] for home in dict.fromkeys(homes)]
        self.free_rows = list(range(world.rows - 1, -1, -1))
        self.batches: dict[str, Batch] = {}
        self.finds: dict[str, Claim] = {}
        self.writers: dict[str, Any] = {}  # what is being written, by writers of that module
        self.prefetches: dict[str, Any] = {}  # by prefetches of the module background
        self.plans: dict[int, list[Done]] = {}
        self.background: dict[int, list[Done]] = {}
        self.next_plan = 0
        self.steps: list[Any] = []  # in flight, by steps of the module flights
        self.next_step = 0
        self.coming: list[tuple[Row, Row, int, int]] = []  # rows that share of another's of their batch, from and to
        self.lost: dict[str, Row] = {}  # released because a move failed

    @property
    def has_cross(self) -> bool:
        """Some group reads an encoder."""
        return self.world.num_own < self.world.num_groups

    def groups(self) -> list[tuple[State, int]]:
        """Every group: its stream and its place there."""
        return self.places

    def free(self, group: int) -> int:
        """Device slots that can be had."""
        stream, place = self.place(group)
        return stream.free(place)

    def place(self, group: int) -> tuple[State, int]:
        """Stream of a group and its place there."""
        return self.places[group]

    def take_plan(self) -> PlanFacts:
        """Everything decided since the last plan."""
        number = self.next_plan
        self.next_plan += 1
        done = [move for stream in self.streams for move in stream.moves]
        if done:
            self.plans[number] = done
        for stream in self.streams:
            stream.moves.clear()
        self.trust()
        return PlanFacts(number, tuple(row for row, _ in done))

    def take_background(self, done: list[Done]) -> PlanFacts:
        """A plan beside those of steps; the last of those that it must not overtake."""
        number = self.next_plan
        self.next_plan += 1
        if done:
            self.background[number] = done
        rows = tuple(row for row, _ in done)
        waits = [
            plan
            for plan, moves in self.plans.items()
            if any(self.collides(row, other) for row in rows for other, _ in moves)
        ]
        return PlanFacts(number, rows, True, max(waits, default=-1))

    def collides(self, copy: Move, move: Move) -> bool:
        """Whether a background move writes what a step's move reads or writes, or reads what that writes."""
        here, there = self.world.home(copy[1]), self.world.home(move[1])
        source, target = (here, *copy[2:4]), (here, *copy[4:6])
        read, written = {(there, *move[2:4])}, {(there, *move[4:6])}
        if move[0] == EXCHANGE:
            read, written = read | written, read | written
        return source in written or target in read | written

    def trust(self) -> None:
        """Copies are trusted while no plan is under way that might fail to make them."""
        for stream in self.streams:
            stream.trusted = not self.plans

    # -- claims ------------------------------------------------------------------------------------------------------

    def find(self, ask: Ask, purpose: str) -> Claim:
        """What is there for a request in every stream; holds nothing yet. What a batch shares is not, before that is
        launched."""
        with pending.launched_only(self):
            return self.find_offered(ask, purpose)

    def find_offered(self, ask: Ask, purpose: str) -> Claim:
        """The same, with what a batch offers its own claims."""
        claim = claims.find(self.own, ask, purpose)
        if self.cross is not None and ask.encoder is not None:
            claim.across = claims.find(self.cross, encoder_ask(ask), "encoder")
        return claim

    def let_go(self, claim: Claim) -> None:
        """Give a claim back, in every stream."""
        claims.let_go(self.own, claim)
        if self.cross is not None and claim.across is not None:
            claims.let_go(self.cross, claim.across)

    def open_claims(self) -> list[Claim]:
        """Those of all batches."""
        return [claim for batch in self.batches.values() for claim in batch.claims]

    def cut(self, top: Path, across: bool = False) -> None:
        """What stands at a path and below is forgotten: claims that found it become rows that store nothing."""
        for claim in self.open_claims():
            hit = claim.across if across else claim
            if hit is not None:
                path = path_of(hit.ask.root, hit.ask.identities, self.world.block_size)[: hit.blocks + 1]
                hit.cut = hit.cut or path[: len(top)] == top

    def takes(self, claim: Claim, group: int) -> int:
        """Device slots it takes of a group, at its peak, onboards aside."""
        stream, place = self.place(group)
        if stream is not self.own:
            return 0 if claim.across is None else len(claim.ask.places) // self.world.block_size - claim.across.blocks
        charge = Charge(self.world, claim.ask, stream.kinds[place], claim.junction)
        if claim.purpose == "decode" and stream.apart:
            return charge.room_takes(len(claim.pages[place]))
        return charge.takes(claim.start)

    def cold(self, claim: Claim, group: int) -> set[object]:
        """Pages it needs of a group that are not on the device; a state is copied from where it is."""
        stream, place = self.place(group)
        hit = claim if stream is self.own else claim.across
        if hit is None or stream.kinds[place].kind == "state":
            return set()
        return {page for page in hit.pages[place].values() if 0 not in page.copies}


def encoder_ask(ask: Ask) -> Ask:
    """The encoder's part of a request, as a request of its own stream."""
    assert ask.encoder is not None
    tokens = (0,) * len(ask.places)
    return replace(
        ask, tokens=tokens, identities=ask.places, root=ask.scope_root, length=None, ranges=(), reuse_limit=None,
        redo=0, beams=1, extra_tokens=0,
    )  # fmt: skip
