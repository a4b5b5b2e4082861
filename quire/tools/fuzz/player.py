"""Player: makes calls as a well-behaved engine would, and remembers what it must not forget. Chooses nothing itself.

It computes only what was handed out last, runs plans in order, and finishes them before a step reads what they move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.tools.fuzz import build
from quire.tools.fuzz.oracle.life import final
from quire.tools.fuzz.oracle.state import Row
from quire.tools.fuzz.plain import Admission, Ask, Budget, World
from quire.tools.fuzz.subject import StoreName
from quire.tools.fuzz.trial import Bad, Trial, same


class Player:
    """The engine's side of one world."""

    def __init__(
        self, world: World, stores: Sequence[StoreName], check_every: int = 20, compare_every: int = 5
    ) -> None:
        self.world = world
        self.trial = Trial(world, stores, check_every, compare_every)
        self.spans: dict[str, int] = {}  # sequence -> end of the span it was handed last
        self.waiting: list[Ask] = []  # suspended
        self.open: list[str] = []  # claimed batches
        self.held: list[str] = []
        self.untold: dict[str, int] = {}  # sequence -> tokens whose KV is there, though the cache does not know yet
        self.forked: set[str] = set()  # sequences whose beams have come
        self.count = 0

    @property
    def rows(self) -> dict[str, Row]:
        """Live sequences, as the oracle knows them."""
        return self.trial.oracle.state.rows

    def name(self, letter: str) -> str:
        """A name never used before."""
        self.count += 1
        return f"{letter}{self.count}"

    # -- admission ---------------------------------------------------------------------------------------------------

    def add(self, asks: Sequence[Ask], budget: Budget, continuing: Sequence[str] = ()) -> Admission | None:
        """Claim and admit in one call; None when one of them must not be asked at all."""
        return self._admitted(self.trial.do("add", asks, budget, continuing))

    def add_watched(self, asks: Sequence[Ask], budget: Budget, continuing: Sequence[str] = ()) -> Admission | None:
        """The same; when all are refused, nothing at all may have changed."""
        rows: list[Any] = []
        with self.trial.nothing_changes(unless=rows):
            admission = self.add(asks, budget, continuing)
            if admission is not None:
                rows += admission.rows or admission.spans or admission.plan.moves  # a plan also brings older moves
        return admission

    def claim(self, asks: Sequence[Ask], purpose: str) -> None:
        """Open a batch of claims."""
        key = self.name("b")
        if self.trial.do("claim", key, asks, purpose) is not None:
            self.open.append(key)

    def claim_in_vain(self, asks: Sequence[Ask], purpose: str) -> None:
        """Claim and drop: nothing at all may have changed."""
        with self.trial.nothing_changes():
            key = self.name("b")
            if self.trial.do("claim", key, asks, purpose) is not None:
                self.trial.do("drop_claim", key)

    def admit(self, key: str, budget: Budget, continuing: Sequence[str] = ()) -> Admission | None:
        """Admit an open batch; None when one of its names was taken meanwhile, so that it can only be dropped."""
        admission = self.trial.do("admit", key, budget, continuing)
        if admission is None:
            self.drop_claim(key)
            return None
        self.open.remove(key)
        return self._admitted(admission)

    def drop_claim(self, key: str) -> None:
        """Drop an open batch."""
        self.open.remove(key)
        self.trial.do("drop_claim", key)

    def _admitted(self, admission: Admission | None) -> Admission | None:
        if admission is None:
            return None
        for name, _, end in admission.spans:
            self.spans[name] = end
        for name, _, start in admission.rows:
            if self.spans[name] == start:  # nothing to compute: the rest comes by transfer
                self.spans[name] = self.rows[name].prompt_end
        return admission

    def unfinished_prompts(self) -> list[str]:
        """Sequences that still have prompt tokens to be granted; what a transfer brings is not computed."""
        rows = [(name, row) for name, row in self.rows.items() if not row.ahead]
        return [name for name, row in rows if row.computed < min(row.prompt_end, len(row.tokens))]

    # -- plans and steps ---------------------------------------------------------------------------------------------

    def settle(self, bad: Sequence[Bad] = (), doubted: Sequence[int] = ()) -> list[str]:
        """Carry out and finish all plans; a sequence that was lost is gone, one that was set back has run nothing."""
        if self.world.has_state and self.trial.oracle.state.moves:
            self.trial.do("offload", 0, 0)  # a snapshot is copied before its state moves on
        self.trial.settle_plans(bad, doubted)
        lost = self.trial.oracle.model.lost
        self.waiting += [build.resumed(row.ask, tuple(row.tokens), row.kept) for row in lost.values()]
        lost.clear()
        for notes in (self.spans, self.untold):
            for name in notes.keys() - self.rows.keys():
                del notes[name]
        back = [name for name in dict.fromkeys(self.trial.set_back) if name in self.rows]
        self.trial.set_back.clear()
        for name in back:
            self.spans[name] = self.rows[name].computed
            self.untold.pop(name, None)
        return back

    def ran(self, name: str) -> int:
        """Tokens with KV after a step that ran as it was told to; behind the prompt a step computes all there is."""
        row = self.rows[name]
        span = self.spans.get(name, row.prompt_end)
        return len(row.tokens) if span >= row.prompt_end else min(span, len(row.tokens))

    def ready(self) -> dict[str, int]:
        """Sequences that can compute something, and up to where."""
        found: dict[str, int] = {}
        for name, row in self.rows.items():
            end = self.ran(name)
            if row.ahead and row.computed < row.prompt_end:
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
        return min(reach, default=len(row.tokens))

    def compute(self, names: Sequence[str]) -> None:
        """A step of the model on some sequences that are ready."""
        ready = self.ready()
        for name in names:
            self.trial.compute(name, ready[name])
            self.untold[name] = ready[name]

    def tell(self, default: bool = False) -> None:
        """Commit what was computed, by default what was handed out; calls and plans may have come in between."""
        names, ends = list(self.untold), list(self.untold.values())
        whole = default and all(end == self.ran(name) for name, end in self.untold.items())
        self.untold.clear()
        if whole and any(self.ran(name) < self.rows[name].prompt_end for name in names):
            self.trial.reached["told by default in a prompt"] += 1
        if names:
            self.trial.do("commit", names, None if whole else ends)

    def _tell_first(self, name: str) -> None:
        """A state that has moved on without being told must not be copied nor kept as what it was."""
        if self.world.has_state and name in self.untold:
            self.tell()

    # -- life --------------------------------------------------------------------------------------------------------

    def grow(self, names: Sequence[str], tokens: Sequence[Sequence[int]] | None, num_tokens: int) -> bool:
        """More tokens, or slots only, for those that are not too long for it; False without room."""
        extra = max(kind.extra or 0 for kind in self.world.kinds)
        last = self.world.blocks(self.world.max_length) * self.world.block_size - extra
        fit = [place for place, name in enumerate(names) if len(self.rows[name].tokens) + num_tokens <= last]
        some = None if tokens is None else [tokens[place] for place in fit]
        return not fit or self.trial.do("grow", [names[place] for place in fit], some, num_tokens) is not None

    def open_tokens(self, name: str) -> int:
        """Tail tokens that are not committed."""
        row = self.rows[name]
        return len(row.tokens) - final(self.trial.oracle.state, row)

    def trim(self, name: str, num_tokens: int) -> None:
        """Take back tail tokens, but leave one."""
        self._tell_first(name)
        row = self.rows[name]
        self.trial.do("trim", name, max(0, min(num_tokens, self.open_tokens(name), len(row.tokens) - 1)))
        if name in self.untold:
            self.untold[name] = min(self.untold[name], len(row.tokens))

    def fork(self, name: str, count: int) -> None:
        """Beams, or copies at any time."""
        self._tell_first(name)
        names, charged = [self.name("f") for _ in range(count)], self.is_charged(name, count)
        done = self.trial.do("fork", name, names) is not None
        if charged:
            self.trial.reached["forked into its beams"] += 1
            same(f"forks of {name} into beams that were charged", done, True)
        if done:
            self.forked |= {name, *names}
            self.spans.update(dict.fromkeys(names, self.spans.get(name, self.rows[name].prompt_end)))

    def is_charged(self, name: str, count: int) -> bool:
        """Its prompt is computed and no more, and its beams, which were charged when it was admitted, have not come."""
        row = self.rows[name]
        fits = count < row.ask.beams and count <= len(self.trial.oracle.model.free_rows)
        fresh = name not in self.forked and len(row.tokens) == row.ask.compute_end == row.prompt_end
        return fits and fresh and row.computed == row.prompt_end and not self.unheard(name)

    def unheard(self, name: str) -> bool:
        """The KV of its encoder is still to come."""
        across = self.trial.oracle.model.cross
        row = None if across is None else across.rows.get(name)
        return row is not None and row.computed < len(row.tokens)

    def release(self, name: str, store: bool) -> None:
        """A sequence ends."""
        self._tell_first(name)
        self.trial.do("release", name, store)
        self._forget(name)

    def suspend(self, name: str) -> None:
        """Preempt a sequence; it waits to be asked for again."""
        self._tell_first(name)
        row = self.rows[name]
        self.waiting.append(build.resumed(row.ask, self.trial.do("suspend", name), row.kept))
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.spans.pop(name, None)
        self.untold.pop(name, None)
        self.forked.discard(name)

    def hold(self, name: str, start: int, end: int) -> None:
        """Keep some pages of a sequence for a reader; ends beyond its slots are cut."""
        self._tell_first(name)
        last, key = self.slots(self.rows[name]), self.name("h")
        if self.trial.do("hold", key, name, min(start, end, last), min(max(start, end), last)) is not None:
            self.held.append(key)
            self.trial.reached["hold of promised pages"] += any(self.rows[name].extras)

    def drop_hold(self, key: str) -> None:
        """The reader is done."""
        self.held.remove(key)
        self.trial.do("drop", key)

    # -- tree, tiers, time -------------------------------------------------------------------------------------------

    def truncate(self, ask: Ask, keep: int) -> None:
        """Forget the end of something, unless claims are open."""
        if not self.open:
            self.trial.do("truncate", ask, keep)

    def clear(self) -> None:
        """Forget everything, unless claims are open."""
        if not self.open:
            self.trial.do("clear")

    def refresh(self, seconds: int) -> None:
        """Time passes."""
        self.trial.pass_time(seconds)
        self.trial.do("refresh")

    def probe(self, ask: Ask, purpose: str, then_add: bool) -> None:
        """Ask without asking for; what was told must come true when it is added right after."""
        with self.trial.nothing_changes():
            told = self.trial.do("probe", ask, purpose)
        if then_add and purpose == "compute" and told is not None:
            before = self.trial.oracle.brief()
            admission = self.add([ask], Budget())
            spent = tuple(was - now for was, now in zip(before, self.trial.oracle.brief(), strict=True))
            if admission is not None and admission.rows:
                same("start of an admission after its probe", admission.rows[0][2], told.start)
                kinds = zip(spent, told.slots, self.world.kinds, strict=False)
                wrong = [now - then for now, then, one in kinds if now > then or (now < then and one.kind != "state")]
                same("slots of an admission beyond what its probe told", wrong, [])
