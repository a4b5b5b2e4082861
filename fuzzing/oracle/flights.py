"""Steps in flight by definition: what a launch, a commit and a failure of one mean for its rows. Knows no claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fuzzing.oracle import admission, life, pending, reach
from fuzzing.oracle.commit import commit
from fuzzing.oracle.model import Model
from fuzzing.oracle.recut import recut
from fuzzing.oracle.state import Claim, Row, State
from fuzzing.world.plain import Identity, Misuse, SetbackFacts


@dataclass(eq=False, slots=True)
class Step:
    """What was launched at once: rows with what they compute, from and to."""

    number: int
    parts: list[tuple[Row, int, int]]
    rides: list[tuple[Row, Row, int, int]] = field(default_factory=list)  # rows that share of another's, from and to

    def counts(self) -> list[tuple[Row, int, int]]:
        """Those whose pages are what they were."""
        return [part for part in self.parts if part[0].since <= self.number]


def launch(model: Model, names: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """These rows are computed as far as they were handed out: row, from and to."""
    rows = [model.own.rows[name] for name in names]
    if any(row.handed <= max(row.computed, row.launched) for row in rows):
        raise Misuse("nothing to launch")
    if any(row in rows and owner not in rows for row, owner, *_ in model.coming):
        raise Misuse("it shares what is not launched")
    parts = [(row, max(row.computed, row.launched), row.handed) for row in rows]
    for row in rows:
        row.launched = row.handed
    model.steps.append(Step(model.next_step, parts))
    model.next_step += 1
    rides, model.coming = model.coming, []
    for row, owner, start, until in rides:
        board(model, row, owner, start, until, model.steps[-1:])
    return tuple((row.number, start, end) for row, start, end in parts)


def ride(model: Model, row: Row, claim: Claim) -> None:
    """A new row is computed with the steps in flight that compute what it shares."""
    if row.launched and claim.owner is not None:
        board(model, row, claim.owner, row.computed, row.launched, model.steps)


def board(model: Model, row: Row, owner: Row, at: int, until: int, steps: Sequence[Step]) -> None:
    """These steps compute what it shares, as far as they compute the owner; the rest is computed in one to come."""
    size = model.world.block_size
    for step in steps:
        ends = [end for other, _, end in step.counts() if other is owner]
        ends += [end for other, _, _, end in step.rides if other is owner]
        end = min(max(ends, default=0) // size * size, until)
        if end > at:
            step.rides.append((row, owner, at, end))
            at = end
    if at < until:
        model.coming.append((row, owner, at, until))


def flies(model: Model, row: Row) -> bool:
    """Some step in flight has the row, whether that counts or not."""
    return any(row is other for step in model.steps for other, *_ in (*step.parts, *step.rides))


def check_landed(model: Model, rows: Sequence[Row]) -> None:
    """A step in flight has its own end."""
    if any(flies(model, row) for row in rows):
        raise Misuse("a step in flight computes it")
    if any(row in ride[:2] for row in rows for ride in model.coming):
        raise Misuse("it shares what is yet to be launched")


def learn(state: State, rows: Sequence[Row], tokens: Sequence[Sequence[Identity]]) -> None:
    """Tokens that a step has made, as far as they fit."""
    extra = max(kind.extra or 0 for kind in state.kinds)
    most = state.world.blocks(state.world.max_length) * state.world.block_size - extra
    for row, new in zip(rows, tokens, strict=True):
        if new and (row.handed < row.prompt or len(row.tokens) + len(new) > most):
            raise Misuse("tokens behind an unfinished prompt, or too many")
    for row, new in zip(rows, tokens, strict=True):
        row.tokens += new


def land(model: Model, nth: int, computed: Sequence[int] | None, tokens: Sequence[Sequence[Identity]]) -> int:
    """A step has run: its tokens are known, what it computed is there, and what has waited for it ends."""
    if nth:
        raise Misuse("an older step is in flight")
    step, own = model.steps[0], model.own
    told = [end for _, _, end in step.parts] if computed is None else list(computed)
    parts = [(row, end, told[place], tokens[place]) for place, (row, _, end) in enumerate(step.parts)
             if row.since <= step.number]  # fmt: skip
    marks = []
    for row, end, mark, new in parts:
        known = len(row.tokens) + len(new)
        later = any(row is other for one in model.steps[1:] for other, _, _ in one.parts)
        marks.append(min(mark, known) if row.ending is not None else mark)
        if not 0 <= marks[-1] <= min(end, known):
            raise Misuse("more than was handed out or is known")
        if own.world.has_state and later and row.ending is None and mark < end:
            raise Misuse("a later step goes on from that state")
        if mark < pending.shared_end(model, step, row, end):
            raise Misuse("others share what it was to compute")
    rows = [row for row, *_ in parts]
    learn(own, rows, [new for *_, new in parts])
    for pools in own.pools if any(map(reach.bounded, own.kinds)) else ():
        pools.refresh(own.now())
    ran = [row for row, mark in zip(rows, marks, strict=True) if mark > row.computed]
    shared = {row: end for row, _, _, end in step.rides if row.since <= step.number}
    come = dict(zip(rows, marks, strict=True))
    fresh = sum(commit(own, row, mark) for row, mark in come.items() if row not in shared)
    fresh += sum(commit(own, row, max(end, come.get(row, 0))) for row, end in shared.items())
    for across in (model.cross.rows.get(row.ask.name) for row in ran) if model.cross is not None else ():
        if across is not None and model.cross is not None and across.computed < len(across.tokens):
            fresh += commit(model.cross, across, len(across.tokens))
    del model.steps[0]
    for (row, end, *_), mark in zip(parts, marks, strict=True):
        if not flies(model, row) and mark < end:
            take_back(row, row.computed, own.world.block_size, True)
    end_waiting(model, [row for row, *_ in (*step.parts, *step.rides)])
    return fresh


def take_back(row: Row, end: int, size: int, ran: bool) -> None:
    """What a row was handed out from there on is not computed."""
    row.reached = max(row.reached, row.handed) if ran else row.reached
    row.written = [min(column, end // size) for column in row.written]
    row.handed = end


def crash(model: Model, nth: int) -> tuple[SetbackFacts, ...]:
    """A step fails, and all behind it: their rows go back to where the first of them has begun."""
    failed = model.steps[nth:]
    starts: dict[int, tuple[Row, int]] = {}
    for step in reversed(failed):
        starts.update({row.number: (row, start) for row, start, _ in step.counts()})
    shared, stranded = pending.shared_ends(model), pending.stranded(model, failed)
    del model.steps[nth:]
    model.coming = [ride for ride in model.coming if ride[0] not in stranded]
    left = pending.shared_ends(model)
    starts |= {row.number: (row, left.get(row, 0)) for row in stranded}
    edges = {row: max(start, row.computed) for row, start in starts.values()}
    shaken = [claim for owner, claim in pending.claims_on(model) if claim.start > edges.get(owner, claim.start)]
    for claim in shaken:
        model.let_go(claim)
    backs = [(row, *go_back(model, row, start)) for _, (row, start) in sorted(starts.items())]
    gone = {row.number: row for step in failed for row, *_ in step.parts} | {row.number: row for row in stranded}
    live = [back for back in backs if back[0].ending is None]
    end_waiting(model, [row for _, row in sorted(gone.items())])
    ends = {row: shared[row] for row in stranded}
    told = [set_back(model, row, old, edge, ends.get(row, 0)) for row, old, edge in live]
    return (*told, *(admission.look_again(model, claim) for claim in shaken))


def go_back(model: Model, row: Row, start: int) -> tuple[int, int]:
    """A row of failed steps, or one that shared what they were to compute: how far it was handed out, and is now."""
    flown, old = flies(model, row), row.handed
    edge = max(start, row.computed) if flown else row.computed
    take_back(row, edge, model.world.block_size, True)
    row.launched = edge if flown else 0
    return old, edge


def set_back(model: Model, row: Row, old: int, edge: int, shared: int) -> SetbackFacts:
    """It goes on from there, and computes what it was to share; where groups forget, or without room, it is lost."""
    lost = model.own.world.has_state
    if shared and not lost:
        forgets = any(reach.bounded(kind) for kind in model.own.kinds)
        lost = forgets or not recut(model.own, row, edge // model.world.block_size, shared, edge)
    if not lost:
        return "sequence", row.ask.name, old, row.handed, False
    name, model.lost[row.ask.name] = row.ask.name, replace(row, tokens=list(row.tokens))
    end(model, row, True, 0)
    return "sequence", name, old, 0, True


def end(model: Model, row: Row, store: bool, back: int) -> None:
    """A sequence ends: at once, or when no step in flight has it any more; its name is free already."""
    if any(owner is row for _, owner, *_ in model.coming):
        raise Misuse("others share what it is to compute")
    if not flies(model, row):
        model.coming = [ride for ride in model.coming if ride[0] is not row]
        model.free_rows.append(row.number)
        for stream in model.streams:
            if row.ask.name in stream.rows:
                life.release(stream, stream.rows[row.ask.name], store, back)
        return
    row.ending = (store, back)
    take_back(row, max(row.launched, row.computed), model.world.block_size, False)
    name, other = row.ask.name, f"{row.ask.name}~{row.number}"
    for stream in model.streams:
        if name in stream.rows:
            mine = stream.rows.pop(name)
            mine.ask = replace(mine.ask, name=other)
            stream.rows[other] = mine


def end_waiting(model: Model, rows: Sequence[Row]) -> None:
    """Steps are closed: of their rows, those that no other step has are in flight no longer."""
    for row in rows:
        row.launched = row.launched if flies(model, row) else 0
        if row.ending is not None and not flies(model, row):
            (store, back), row.ending = row.ending, None
            end(model, row, store, back)
