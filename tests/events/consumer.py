"""Consumer: a router that knows only the public form of events, in both encodings. Judges every event it gets."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from quire.events.follow.read import FIELDS

STRICT = FIELDS["BlockStored"][:8]  # what the strictest decoder wants to see, null or not


def fields(event: Any) -> dict[str, Any]:
    """An event by name, whichever way it came."""
    return event if isinstance(event, dict) else dict(zip(FIELDS.get(event[0], ("type",)), event, strict=False))


class Consumer:
    """Blocks by (group, medium)."""

    def __init__(self, block_size: int = 4) -> None:
        self.block_size = block_size
        self.blocks: dict[tuple[int, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
        self.seen: list[dict[str, Any]] = []

    def hear(self, payload: bytes) -> int:
        """A batch; its rank."""
        _, events, rank = msgspec.msgpack.decode(payload)
        for event in map(fields, events):
            self._apply(event)
            self.seen.append(event)
        return int(rank)

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "BlockStored":
                self._stored(event)
            case "BlockRemoved":
                for name in event["block_hashes"]:
                    del self.blocks[event["group_idx"], event["medium"]][name]
            case "AllBlocksCleared":
                self.blocks.clear()

    def _stored(self, event: dict[str, Any]) -> None:
        names, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        assert size == self.block_size and len(tokens) == size * len(names) and names
        assert all(isinstance(name, int) and 0 < name < 1 << 64 for name in names)
        assert set(STRICT) <= set(event), "strict decoders want every field, null or not"
        known = self.blocks[event["group_idx"], event["medium"]]
        for place, name in enumerate(names):
            assert name not in known, "stored twice in one medium"
            known[name] = tuple(tokens[place * size : (place + 1) * size])

    def media(self, group: int) -> dict[int, str]:
        """Per block of a group the one medium it is in."""
        found: dict[int, str] = {}
        for (number, medium), blocks in self.blocks.items():
            if number == group:
                assert not set(found) & set(blocks), "one block in two media"
                found |= dict.fromkeys(blocks, medium)
        return found
