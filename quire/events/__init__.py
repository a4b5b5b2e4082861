"""Events on the wire: a publisher beside the cache, an index beside the router. Needs the extra `events`.

    cache ──tell──► Publisher ══ PUB, ROUTER ══► Follower ──hear──► Index ◄──find── router
                    own thread                   own thread

The recorder is the core's (quire/core/records/events.py); docs/events.md says what a consumer may rely on.
"""

try:
    import msgspec as _msgspec  # noqa: F401
    import zmq as _zmq  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import MissingExtra, install_line, say

    fact = f"it needs pyzmq and msgspec ({missing})"
    raise MissingExtra(say("quire.events", fact, install_line("events"))) from missing

from quire.core.records.caller_arguments import renamed as _renamed
from quire.events.follow.event_recording import RecordedMessage, Recording, messages, replay
from quire.events.follow.follower import Follower
from quire.events.follow.index import Holding, Index
from quire.events.follow.stream_state import ReplayRequest, Report, Status
from quire.events.publish.publisher import Publisher
from quire.events.publish.room import Room
from quire.net.curve_keys import Keys

__all__ = [
    "Follower", "Holding", "Index", "Keys", "Publisher", "RecordedMessage", "Recording", "ReplayRequest", "Report",
    "Room", "Status", "messages", "replay",
]  # fmt: skip
__getattr__ = _renamed("quire.events", {"Ask": "ReplayRequest", "Message": "RecordedMessage", "Tape": "Recording"})
