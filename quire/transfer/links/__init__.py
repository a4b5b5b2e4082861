"""Links: how bytes get from one process to another. `local` and `tcp` come along; `nixl` needs its package."""

from quire.transfer.links.link import Door, Link, Lost, Message, Moved, News
from quire.transfer.links.local import LocalHub, LocalLink

__all__ = ["Door", "Link", "LocalHub", "LocalLink", "Lost", "Message", "Moved", "News"]
