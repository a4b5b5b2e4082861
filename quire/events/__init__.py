"""Events on the wire: a publisher beside the cache, an index beside the router. Needs `pip install 'quire[events]'`.

    cache ──tell──► Publisher ══ PUB, ROUTER ══► Follower ──hear──► Index ◄──find── router
                    own thread                   own thread

The recorder is the core's (quire/core/records/events.py); docs/events.md says what a consumer may rely on.
"""

try:
    import msgspec as _msgspec  # noqa: F401
    import zmq as _zmq  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import StateError, say

    fact = f"it needs pyzmq and msgspec ({missing})"
    raise StateError(say("quire.events", fact, "pip install 'quire[events]'")) from missing

from quire.events.curve import Keys
from quire.events.follower import Follower
from quire.events.index import Holding, Index
from quire.events.publisher import Publisher, Room
from quire.events.tape import Message, Tape, messages, replay
from quire.events.track import Ask, Report, Status

__all__ = [
    "Ask", "Follower", "Holding", "Index", "Keys", "Message", "Publisher", "Report", "Room", "Status", "Tape",
    "messages", "replay",
]  # fmt: skip
