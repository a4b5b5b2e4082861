"""The shared side of an engine: its waiting requests are prefetched from a store that machines share, and what it has
served goes there. Knows the engine's pages; decides nothing about steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quire.core.cache import Cache
from quire.core.records.errors import InputError, say, shown
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.engine.model.layers import Model
from quire.engine.model.pages import Pages
from quire.engine.model.weights import model_fingerprint
from quire.engine.step.runs.branch import Branch
from quire.engine.step.runs.step_work import Work
from quire.tiers.page_digest import BlockDigests

if TYPE_CHECKING:
    from quire.tiers.shared import Fetch, SharedConfig  # needs xxhash, which others do without

Carry = Callable[[Plan], None]
HOST_BYTES = "256MiB"  # of an LLM with a shared store for which nothing else is said


class SharedSide:
    """A prefetcher for the scheduler, and a participant that the engine closes. `shared` is the SharedCache."""

    num_open = 0  # what is under way holds no request up: the scheduler knows which wait

    def __init__(
        self, engine: tuple[Model, Cache, Pages], carry: Carry, tell: Callable[[], None], config: SharedConfig
    ) -> None:
        from quire.tiers.shared import SharedCache, Turns

        model, cache, pages = engine
        if len(cache.config.tiers) < 2:
            cure = "give host_bytes to the LLM, or host_pages in the EngineConfig"
            raise InputError(say("an engine with a shared store", "it has no host memory to bring pages into", cure))
        self._name = name = model_fingerprint(model, cache.config, namespace=config.namespace)
        self._pages = pages
        self._turns = Turns(tell) if model.recurrent else None
        self._carry = carry
        self.shared = SharedCache(cache, pages.once_more(), config, name, turns=self._turns)

    def prefetch(self, request: Request) -> Fetch | None:
        """Bring what the store has; the last token of a prompt is computed in any case."""
        if len(request.tokens) <= self.shared.cache.config.block_size:
            return None
        most = len(request.tokens) - 1
        limit = most if request.reuse_limit is None else min(most, request.reuse_limit)
        return self.shared.fetch(replace(request, reuse_limit=limit))

    def served(self, branch: Branch) -> None:
        """What it has computed may help others: behind the whole answer, or behind the prompt."""
        prompt = len(branch.run.prompt)
        self.shared.publish(replace(branch.request(), reuse_limit=None), edges=(prompt, prompt - 1))

    def note_computed(self, works: Iterable[Work]) -> None:
        """With an audit: hash every page that a step has filled, before it can be found."""
        audit = self.shared.audit
        if audit is None:
            return
        cache, size = self.shared.cache, self.shared.cache.config.block_size
        for branch, span, _, snapshots in works:
            assert branch.sequence is not None
            names = BlockDigests(self._name, branch.run.request.scope, size)
            drafts = branch.drafts
            names.extend(np.concatenate([branch.tokens[: span.end - len(drafts)], drafts]).astype(np.int32))
            filled = [(one.position // size - 1, one.group, one.slot) for one in snapshots]
            for group, layer in enumerate(cache.config.groups):
                if not layer.current:
                    slots = branch.sequence.slots(group)
                    filled += [(block, group, slots[block]) for block in range(span.start // size, span.end // size)]
                elif span.end % size == 0 and branch.sequence.ran == span.end:  # else a later step has moved it on
                    filled.append((span.end // size - 1, group, branch.sequence.state_slot(group)))
            for block, group, slot in filled:
                page = self._pages.arenas[group][int(slot)].cpu().numpy()
                audit.note(names.page(block, group), page)

    def step(self) -> None:
        """What makes plans is done here, between two steps; the rest its threads do by themselves."""
        if self._turns is not None:
            self._turns.run(self._carry)

    def close(self) -> bool:
        """End the threads; False: one of them hangs in a call of the store."""
        return self.shared.close()


def shared_config(given: object) -> SharedConfig:
    """A SharedConfig, or one for a folder or URL; what can never work is refused before a model is loaded."""
    from quire.tiers.shared import SharedConfig, open_store

    if not isinstance(given, SharedConfig):
        if not isinstance(given, str | Path):
            cure = "pass a folder, redis://host:6379/0, or a SharedConfig"
            raise InputError(say(f"shared={shown(given)}", f"it is a {type(given).__name__}", cure))
        given = SharedConfig(given)
    open_store(given).close()
    return given
