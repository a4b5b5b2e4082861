"""Admit, both phases, as the oracle answers it: one wave of claims after the other. The definitions are elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from fuzzing.oracle import admission, background, flights, life, seating, waves
from fuzzing.oracle import pools as slots
from fuzzing.oracle.budget import Purse
from fuzzing.oracle.model import Model
from fuzzing.oracle.state import Batch, Claim, Row, State
from fuzzing.world.plain import Admission, Budget, World


class Admissions:
    """What admits claims."""

    world: World
    model: Model
    state: State

    @abstractmethod
    def refresh(self) -> None: ...

    def _admit(self, batch: Batch, budget: Budget, continuing: Sequence[str]) -> Admission:
        model, own = self.model, self.state
        begun, purse = [own.rows[name] for name in continuing], Purse(self.world, budget)
        planned = admission.go_on(model, begun, purse)
        waves.part(model, batch, budget, planned)
        spans, left, refused = admission.fit(model, batch, budget, purse)
        going_on = [span for span in planned if seating.hand_out(own, own.rows[span[0]], span[2])]
        (out, lacked), refused = admission.fit_slots(model, batch, budget, left, refused)
        spans = spans[: len(batch.claims)]
        counts: list[tuple[int, ...]] = []
        rows, claims = self._take(batch, spans, counts), list(batch.claims)
        offered: dict[Row, int] = {}
        while batch.behind:
            self._hand_out([*going_on, *spans])
            waves.next_wave(model, batch, [*(own.rows[name] for name, *_ in going_on), *rows], offered, planned)
            planned = []  # they have been offered
            more, (last, short), refused = admission.fit(model, batch, budget, purse)
            out, lacked = last + out, short or lacked
            spans += more[: len(batch.claims)]
            rows += self._take(batch, more[: len(batch.claims)], counts)
            claims += batch.claims
        for row, end in offered.items():
            row.launched = end
        batch.claims = claims
        inside = self._open_inside([*going_on, *spans], len(going_on), counts)
        self._hand_out([*going_on, *spans])
        for stream, place in model.groups() if rows else ():
            pools = stream.pools[place]
            if pools.cells is not None:
                pools.cells.learn(pools.pages.values())
        background.end(model, {row.ask.name for row in rows})
        seated = tuple((row.ask.name, row.number, row.start) for row in rows)
        refused = admission.in_order(admission.left_out(model, out, lacked), refused) + batch.refused
        waiting = tuple(name for name in continuing if name not in {span[0] for span in going_on})
        told = tuple(claim.receipt for claim in batch.claims if claim.receipt is not None)
        return Admission(
            seated, (*going_on, *spans), tuple(refused), model.take_plan(), tuple(counts), waiting,
            told if self.world.receipts else None, inside,
        )  # fmt: skip

    def _take(self, batch: Batch, spans: admission.Spans, counts: list[tuple[int, ...]]) -> list[Row]:
        """Rows for claims that fit, with all they need; what that counted."""
        model, rows = self.model, [self._seat(claim) for claim in batch.claims]
        if rows and not counts:  # the first of this call
            self.refresh()
        for claim, row, span in zip(batch.claims, rows, spans, strict=True):
            counts += seating.settle(self.state, claim, row, span[2])
            if model.cross is not None and claim.across is not None:
                across = model.cross.rows[row.ask.name]
                counts += seating.settle(model.cross, claim.across, across, len(across.tokens))
            else:
                counts += [(0,) * slots.NUM_COUNTS] * (self.world.num_groups - self.world.num_own)
        return rows

    def _hand_out(self, spans: admission.Spans) -> None:
        for name, _, end in spans:
            row = self.state.rows[name]
            if end > row.computed:
                row.granted, row.handed = max(row.granted, end), end
                row.prompt = max(row.prompt, row.prompt_end, life.paged(self.state, row))

    def _open_inside(self, spans: admission.Spans, old: int, counts: list[tuple[int, ...]]) -> tuple[Any, ...]:
        """What steps write themselves; what that took is part of the counts of new sequences, behind `old` others."""
        told = []
        for nth, (name, start, end) in enumerate(spans, -old):
            mine, more = seating.open_inside(self.state, self.state.rows[name], start, end)
            told += [(name, *one) for one in mine]
            for place, numbers in enumerate(more if nth >= 0 else (), nth * self.world.num_groups):
                counts[place] = tuple(map(sum, zip(counts[place], numbers, strict=True)))
        return tuple(told)

    def _seat(self, claim: Claim) -> Row:
        row = seating.seat(self.state, claim, number := self.model.free_rows.pop())
        flights.ride(self.model, row, claim)
        if self.model.cross is not None and claim.across is not None:
            seating.seat(self.model.cross, claim.across, number)
        return row
