"""PeerIndex: which keys one peer has to do with, so that news of a peer costs what is its own, not a walk over all."""

from __future__ import annotations

from quire.transfer.wire.verdict import Key


class PeerIndex:
    """Keys by peer, in the order they came. Peers without keys take no room."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, dict[Key, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, peer: str, key: Key) -> None:
        """That peer has to do with this key."""
        self._keys.setdefault(peer, {})[key] = None

    def discard(self, peer: str, key: Key) -> None:
        """It has not any more, if it had."""
        keys = self._keys.get(peer)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys[peer]

    def keys_of(self, peer: str) -> list[Key]:
        """All of that peer, as a list that stays while they change."""
        return list(self._keys.get(peer, ()))
