"""StateEngine: a toy engine with recurrent states, as vLLM keeps them. Its tables say less than vLLM names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quire.integrations.vllm.requests.state_tables import StateOffer
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE, STRIP, MambaSpec, Tables, ToyRequest, groups


class StateEngine(ToyEngine):
    """Its second group has recurrent states, as vLLM keeps them in mode `align`: a step ends at a block's edge or stays
    inside a block, and its state is in the last block of the table. The one that it began from stays for that step.

    Some steps leave a state from the middle of a block in a block of its own: nobody can go on from it.
    """

    def __init__(self, seed: int, **more: Any) -> None:
        super().__init__(seed, **more)
        self.inside: set[int] = set()  # blocks with such a state
        self.named: dict[ToyRequest, int] = {}  # blocks of a request whose state was named, or was there

    def open_groups(self, hybrid: bool) -> list[Any]:
        first, _ = groups(True)
        spec = MambaSpec(block_size=SIZE, page_size_bytes=STRIP, mamba_cache_mode="align", num_speculative_blocks=0)
        return [first, SimpleNamespace(kv_cache_spec=spec, layer_names=["state"])]

    def allocate(self, request: ToyRequest, end: int, computed: int) -> bool:
        table, states = request.tables or ([], [])
        (free, others), need = self.free, -(-end // SIZE)
        if need - len(table) > len(free) or len(others) < 2:
            return False
        if not request.tables:
            request.tables, self.named[request] = [table, states], computed // SIZE
        while len(table) < need:
            table.append(free.pop(self.rng.randrange(len(free))))
            self.fresh.append(table[-1])
        for nth, block in enumerate(states[:-1]):
            self._give(block)
            states[nth] = 0
        if len(states) < need:
            states += [0] * (need - 1 - len(states))
            if len(states) > 1 and not states[-1] and computed < end and self.rng.random() < 0.5:
                states[-1] = self._take()
                self.inside.add(states[-1])
            states.append(self._take())
        return True

    def _take(self) -> int:
        block = self.free[1].pop(self.rng.randrange(len(self.free[1])))
        self.fresh.append(block)
        self.inside.discard(block)
        return block

    def _give(self, block: int) -> None:
        if block:
            self.free[1].append(block)
            self.inside.discard(block)

    def chunk(self, request: ToyRequest) -> int:
        start, count = request.num_computed_tokens, super().chunk(request)
        edge = (start + count) // SIZE * SIZE
        if start % SIZE:
            return min(count, SIZE - start % SIZE)
        return edge - start if edge > start else count

    def states(self, request: ToyRequest, count: int) -> list[StateOffer]:
        end, table = min(request.num_computed_tokens + count, request.num_tokens), request.tables[1]
        offers = []
        for nth in range(self.named[request], end // SIZE):
            if table[nth] in self.inside:
                offers.append((1, table[nth], (nth + 1) * SIZE - 1))
            elif table[nth]:
                offers.append((1, table[nth], (nth + 1) * SIZE))
                self.seen["named"] += 1
        self.named[request] = max(self.named[request], end // SIZE)
        return offers

    def fill(self, request: ToyRequest, tables: Tables, start: int, end: int) -> None:
        states = [255 if block in self.inside else block for block in tables[1]]
        super().fill(request, [tables[0], [0 if block == 255 else block for block in states]], start, end)
        for block, shown in zip(tables[1], states, strict=True):
            if shown == 255:
                for kv in self.kv:
                    kv[1][0][block] = 7  # the right state of no block

    def expect(self, request: ToyRequest, tables: Tables, block: int, where: str) -> None:
        states = [0 if one in self.inside else one for one in tables[1]]
        super().expect(request, [tables[0], states], block, where)
