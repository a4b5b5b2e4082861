"""Transfer: pages from the process that computes a prompt to the one that decodes it. Re-exports what a caller needs.

Needs the extra `transfer`; docs/transfer.md says how it works.
"""

try:
    import msgspec as _msgspec  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import MissingExtra, install_line, say

    fact = f"it needs msgspec ({missing})"
    raise MissingExtra(say("quire.transfer", fact, install_line("transfer"))) from missing

from quire.core.records.caller_arguments import renamed
from quire.net.tls import Tls
from quire.transfer.endpoint import Endpoint
from quire.transfer.endpoint_thread import EndpointThread
from quire.transfer.geometry.ranks import Grid, Source, Vote, agree
from quire.transfer.geometry.shards import PageShape, Section, Shard
from quire.transfer.links import Link, LocalHub
from quire.transfer.links.nixl import NixlLink
from quire.transfer.links.tcp import TcpLink
from quire.transfer.session.endpoint_registry import Session
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.session.sending_session import Sending
from quire.transfer.views.plain_view import BlockLists
from quire.transfer.views.quire_view import QuireView
from quire.transfer.views.staged_view import StagedView
from quire.transfer.views.view import CacheView, Landing, Offer
from quire.transfer.wire.aux import Aux, AuxRoom, with_logits
from quire.transfer.wire.layout import Layout, layout_of
from quire.transfer.wire.verdict import Key, Limits, Outcome, Verdict, check_key

__all__ = [
    "Aux", "AuxRoom", "BlockLists", "CacheView", "Endpoint", "EndpointThread", "Grid", "Key", "Landing", "Layout",
    "Limits", "Link", "LocalHub", "NixlLink", "Offer", "Outcome", "PageShape", "QuireView", "Receiving", "Section",
    "Sending", "Session", "Shard", "Source", "StagedView", "TcpLink", "Tls", "Verdict", "Vote", "agree", "check_key",
    "layout_of", "with_logits",
]  # fmt: skip

__getattr__ = renamed(__name__, {"Pump": "EndpointThread"})
