"""Links: how bytes get from one process to another. `local` and `tcp` come along; `nixl` needs its package."""

from quire.transfer.links.link import Door, Link, Lost, News, Received, WriteDone
from quire.transfer.links.local import LocalHub, LocalLink

__all__ = ["Door", "Link", "LocalHub", "LocalLink", "Lost", "News", "Received", "WriteDone"]
