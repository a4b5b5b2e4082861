"""Transfer: pages from the process that computes a prompt to the one that decodes it. Re-exports what a caller needs.

Needs `pip install 'quire[transfer]'`; docs/transfer.md says how it works.
"""

try:
    import msgspec as _msgspec  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import StateError, say

    raise StateError(say("quire.transfer", "it needs msgspec", "pip install 'quire[transfer]'")) from missing

from quire.transfer.aux import Aux, AuxRoom, with_logits
from quire.transfer.books import Session
from quire.transfer.endpoint import Endpoint
from quire.transfer.layout import Layout, layout_of
from quire.transfer.links import Link, LocalHub
from quire.transfer.links.nixl import NixlLink
from quire.transfer.links.tcp import TcpLink
from quire.transfer.links.tls import Tls
from quire.transfer.plain_view import BlockLists
from quire.transfer.pump import Pump
from quire.transfer.quire_view import QuireView
from quire.transfer.ranks import Grid, Source, Vote, agree
from quire.transfer.receiving import Receiving
from quire.transfer.sending import Sending
from quire.transfer.shards import PageShape, Section, Shard
from quire.transfer.staged_view import StagedView
from quire.transfer.verdict import Key, Limits, Outcome, Verdict, check_key
from quire.transfer.view import CacheView, Landing, Offer

__all__ = [
    "Aux", "AuxRoom", "BlockLists", "CacheView", "Endpoint", "Grid", "Key", "Landing", "Layout", "Limits", "Link",
    "LocalHub", "NixlLink", "Offer", "Outcome", "PageShape", "Pump", "QuireView", "Receiving", "Section", "Sending",
    "Session", "Shard", "Source", "StagedView", "TcpLink", "Tls", "Verdict", "Vote", "agree", "check_key", "layout_of",
    "with_logits",
]  # fmt: skip
