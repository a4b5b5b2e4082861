"""View: what an engine remembers of its sequences and can say of them. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzing.compare import same
from fuzzing.lists.calls import Notes
from fuzzing.oracle.flights import Step, flies
from fuzzing.oracle.life import final
from fuzzing.oracle.state import Row
from fuzzing.oracle.tree import path_of
from fuzzing.subject import StoreName
from fuzzing.trial import Trial
from fuzzing.world.plain import Ask, Path, World


class View:
    """The engine's notes on one world, and questions to them."""

    def __init__(
        self, world: World, stores: Sequence[StoreName], check_every: int = 120, compare_every: int = 40
    ) -> None:
        self.world = world
        self.trial = Trial(world, stores, check_every, compare_every)
        self.waiting: list[Ask] = []  # suspended
        self.open: list[str] = []  # claimed batches
        self.opened: dict[str, int] = {}  # at which call each was claimed
        self.held: list[str] = []
        self.found: list[str] = []
        self.writing: list[str] = []
        self.prefetched: list[str] = []
        self.untold: dict[str, int] = {}  # sequence -> tokens whose KV is there, though the cache does not know yet
        self.forked: set[str] = set()  # sequences whose beams have come
        self.count = 0
        self.notes = Notes()

    @property
    def rows(self) -> dict[str, Row]:
        """Live sequences, as the oracle knows them."""
        return {name: row for name, row in self.trial.oracle.state.rows.items() if row.ending is None}

    def name(self, letter: str) -> str:
        """A name never used before."""
        self.count += 1
        return f"{letter}{self.count}"

    def names(self, letter: str, count: int) -> list[str]:
        """Several of them."""
        return [self.name(letter) for _ in range(count)]

    def unfinished_prompts(self) -> list[str]:
        """Sequences that still have prompt tokens to be granted; what a transfer brings is not computed."""
        rows = [(name, row) for name, row in self.rows.items() if not row.ahead and name not in self.shared()]
        return [name for name, row in rows if max(row.computed, row.launched) < min(row.prompt_end, len(row.tokens))]

    def ran(self, name: str) -> int:
        """Tokens with KV after a step that ran as it was told to."""
        return min(self.rows[name].handed, len(self.rows[name].tokens))

    @property
    def steps(self) -> list[Step]:
        """Steps in flight."""
        steps: list[Step] = self.trial.oracle.model.steps
        return steps

    def launchable(self) -> list[str]:
        """Sequences that were handed out something that no step computes yet."""
        rows = [(name, row) for name, row in self.rows.items() if not row.ahead and name not in self.untold]
        rows = [(name, row) for name, row in rows if not (row.decodes and row.computed < row.prompt_end)]
        return [name for name, row in rows if max(row.computed, row.launched) < row.handed <= self.slots(row)]

    def shared(self) -> list[str]:
        """Sequences that share pages with their batch and are yet to be launched: those computed first come first."""
        coming = self.trial.oracle.model.coming
        rows = [owner for _, owner, *_ in coming if all(owner is not row for row, *_ in coming)]
        return list(dict.fromkeys(row.ask.name for row in (*rows, *(row for row, *_ in coming))))

    def flying(self) -> list[Path]:
        """Whole blocks of prompts that steps in flight compute, of tokens that carry nothing."""
        rows, size = self.rows.values(), self.world.block_size
        ends = [(row, min(row.launched, row.prompt) // size * size) for row in rows if row.launched > row.computed]
        plain = [(row, end) for row, end in ends if end and not any(any(one[1:]) for one in row.tokens[:end])]
        return [path_of(row.ask.root, row.tokens[:end], size) for row, end in plain]

    def ready(self) -> dict[str, int]:
        """Sequences that can compute something, and up to where."""
        found: dict[str, int] = {}
        for name, row in self.rows.items():
            if flies(self.trial.oracle.model, row) or name in self.shared():
                continue
            end = self.ran(name)
            if row.decodes and row.computed < row.prompt_end:
                end = row.prompt_end  # a transfer brings this much
            end = min(end, self.slots(row))
            heard = end > row.computed or (end == len(row.tokens) and self.unheard(name))
            if heard and not (self.world.has_state and name in self.untold):
                found[name] = end  # a state that has moved on cannot be computed again
        return found

    def slots(self, row: Row) -> int:
        """Tokens it has slots for; a state needs none."""
        kinds = zip(row.pages, self.world.kinds, strict=False)
        reach = (len(pages) * self.world.block_size for pages, kind in kinds if kind.kind != "state")
        return min(reach, default=max(row.handed, len(row.tokens)))

    def open_tokens(self, name: str) -> int:
        """Tail tokens that are not committed."""
        row = self.rows[name]
        return len(row.tokens) - final(self.trial.oracle.state, row)

    def is_charged(self, name: str, count: int) -> bool:
        """Its prompt is computed and no more, and its beams, which were charged when it was admitted, have not come."""
        row = self.rows[name]
        fits = count < row.ask.beams and count <= len(self.trial.oracle.model.free_rows)
        fresh = name not in self.forked and len(row.tokens) == row.ask.compute_end == row.prompt_end
        still = not (self.world.has_state and flies(self.trial.oracle.model, row))  # a state is not forked in flight
        return fits and fresh and still and row.computed == row.prompt_end and not self.unheard(name)

    def check_spent(self, spent: list[int], inside: list[int], told: Sequence[int]) -> None:
        """An admission took what its probe told, pool by pool; of states perhaps less. `inside`: groups of snapshots
        that a step writes itself; but for the last of each they are nobody's due."""
        for some in self.trial.oracle.model.sharers:
            now = spent[some[0]] - sum(max(0, inside.count(group) - 1) for group in some)
            then = sum(told[group] for group in some)
            most = then if any(self.world.kinds[group].kind == "state" for group in some) else now
            same("slots of an admission as its probe told", max(now, most), then)

    def unheard(self, name: str) -> bool:
        """The KV of its encoder is still to come."""
        across = self.trial.oracle.model.cross
        row = None if across is None else across.rows.get(name)
        return row is not None and row.computed < len(row.tokens)
