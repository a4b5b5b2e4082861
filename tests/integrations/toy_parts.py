"""What a toy engine is made of: requests and groups with the fields that we read of vLLM's, and a mover with faults."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

from quire.integrations.vllm.common.worker_orders import Copy
from quire.integrations.vllm.worker.host_pages import Ended, HostPages

Tables = list[list[int]]
SIZE = 4
STRIP = 16  # bytes of a block in one layer
LAYERS = (2, 1)  # of each group
WINDOW = 9


class FullAttentionSpec(SimpleNamespace):
    """Known by its name, as vLLM's is."""


class SlidingWindowSpec(SimpleNamespace):
    """The same."""


class MambaSpec(SimpleNamespace):
    """The same."""


def groups(hybrid: bool) -> list[Any]:
    """One group that reads everything, and one with a window."""
    specs: list[Any] = [FullAttentionSpec(block_size=SIZE, page_size_bytes=STRIP)]
    if hybrid:
        specs.append(SlidingWindowSpec(block_size=SIZE, page_size_bytes=STRIP, sliding_window=WINDOW))
    names = [[f"layer {nth}.{layer}" for layer in range(LAYERS[nth])] for nth in range(len(specs))]
    return [SimpleNamespace(kv_cache_spec=spec, layer_names=name) for spec, name in zip(specs, names, strict=True)]


@dataclass(eq=False)
class ToyRequest:
    """vLLM's Request, as far as we read it."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int = 0
    cache_salt: str | None = None
    lora_request: Any = None
    prompt_embeds: Any = None
    mm_features: list[Any] = field(default_factory=list)
    kv_transfer_params: dict[str, Any] | None = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False
    num_computed_tokens: int = 0
    status: str = "waiting"
    tables: list[list[int]] = field(default_factory=list)
    loading: int = 0  # ranks that have not ended its load
    failed: bool = False
    behind: int = 0  # sampled tokens that the scheduler does not know yet

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def prompt_token_ids(self) -> list[int] | None:
        return self.all_token_ids[: self.num_prompt_tokens] if self.prompt_embeds is None else None

    @property
    def block_hashes(self) -> list[bytes]:
        ids = self.all_token_ids
        return [digest(self, ids[: end + SIZE]) for end in range(0, len(ids) - SIZE + 1, SIZE)]


def digest(request: ToyRequest, tokens: list[int], *more: int) -> bytes:
    """Names a block by all that its KV depends on."""
    media = [
        (one.identifier, one.mm_position.offset) for one in request.mm_features if one.mm_position.offset < len(tokens)
    ]
    lora = request.lora_request.lora_name if request.lora_request else None
    return blake2b(repr((tokens, request.cache_salt, lora, media, more)).encode(), digest_size=STRIP).digest()


class ToyMover:
    """Real pages, with loads and stores that fail, or are made some steps later."""

    def __init__(self, pages: HostPages, rng: random.Random, late: float, failing: float) -> None:
        self.pages, self.rng, self.late = pages, rng, late
        self.failing_loads = self.failing_stores = failing
        self.waiting: list[Copy] = []
        self.stores: list[Copy] = []  # that come late; what they read must not change before

    def load(self, copy: Copy) -> None:
        if self.rng.random() < self.failing_loads:
            raise OSError("a load that fails")
        if self.rng.random() < self.late:
            self.waiting.append(copy)
        else:
            self.pages.load(copy)

    def store(self, copy: Copy) -> None:
        if self.rng.random() < self.failing_stores:
            raise OSError("a store that fails")
        if self.rng.random() < self.late:
            self.stores.append(copy)
        else:
            self._store(copy)

    def _store(self, copy: Copy) -> None:
        self.pages.store(copy)
        if self.rng.random() < self.failing_stores:  # a bit of a page that was stored
            part = self.rng.choice(copy.parts)
            self.pages.memory[self.rng.choice(part.slots), 3] ^= 4

    def flush(self, jobs: Iterable[int]) -> None:
        for copy in [copy for copy in self.stores if copy.job in jobs]:
            self.stores.remove(copy)
            self._store(copy)

    def take_ended(self) -> list[Ended]:
        due = [copy for copy in self.waiting if self.rng.random() < 0.5]
        for copy in due:
            self.waiting.remove(copy)
            self.pages.load(copy)
        self.flush([copy.job for copy in self.stores if self.rng.random() < 0.3])
        return self.pages.take_ended()


def requests(rng: random.Random, count: int, *, salts: bool = False) -> list[ToyRequest]:
    """Prompts that share beginnings."""
    roots = [[rng.randrange(50) for _ in range(rng.choice([12, 24, 40]))] for _ in range(4)]
    made = []
    for nth in range(count):
        prompt = rng.choice(roots)[: rng.randrange(6, 40)] + [rng.randrange(50) for _ in range(rng.randrange(1, 9))]
        salt = rng.choice([None, "a", "b"]) if salts else None
        made.append(ToyRequest(f"r{nth}", prompt, len(prompt), rng.choice([1, 5, 20]), cache_salt=salt))
    return made
