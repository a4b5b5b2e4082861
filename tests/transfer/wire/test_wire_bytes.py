"""Every message to the byte: two workers of different releases understand each other as long as VERSION stands."""

from __future__ import annotations

import numpy as np
import pytest

from quire.transfer.geometry.ranks import Grid
from quire.transfer.geometry.shards import PageShape, Section, Shard
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import Aux, AuxRoom, pack
from quire.transfer.wire.layout import Layout, hello
from quire.transfer.wire.verdict import Key

PAGE = PageShape((0, 1), (Section("k", 64, Shard(2, 1, 2, 0), 4),))
LAYOUT = Layout("w", {"block size": "16"}, (PAGE,), Grid(2, (1, 1)), 3)
STATE = wire.group_want(np.array([-1, 5, 6, -1], np.int32), state=True, position=60)

MESSAGES: list[tuple[wire.AnyMessage, str]] = [
    (
        hello(LAYOUT),
        "0197a548656c6c6fa17781aa626c6f636b2073697a65a23136940292010101010391929200019194a16b4094020102000491"
        "af7065722d67726f75702077616e7473",
    ),
    (wire.Refuse("no"), "0192a6526566757365a26e6f"),
    (wire.Order("r", 2, b"body"), "0194a54f72646572a17202c404626f6479"),
    (
        wire.Ask("r", 2, 0, 7, 60, b"c", (STATE,), 1, 2.5),
        "019aa341736ba1720200073cc40163919404919201c4080500000006000000c33c01cb4004000000000000",
    ),
    (
        wire.DeliveryReport("r", 2, 0, True, True, (((0, 3),),), 4096, "", b"aux"),
        "019aa6526573756c74a1720200c3c39191920003cd1000a0c403617578",
    ),
    (wire.Cancel("r", 2, "why"), "0194a643616e63656ca17202a3776879"),
    (wire.Beat((("r", 2), ("s", 0))), "0192a4426561749292a1720292a17300"),
]


@pytest.mark.parametrize(("message", "data"), MESSAGES, ids=lambda value: type(value).__name__)
def test_a_message_is_the_same_bytes_as_ever(message: wire.AnyMessage, data: str) -> None:
    assert wire.encode(message).hex() == data
    assert wire.decode(bytes.fromhex(data)) == message


def test_auxiliary_data_is_the_same_bytes_as_ever() -> None:
    aux = Aux((7,), (8, 9), b"\0" * 8, 2, b"s", 3)
    data = "518d5fea6d41dc63e52b4a13e0586969969107920809c408000000000000000002c4017303"
    assert pack(aux, Key("r", 2), AuxRoom()).hex() == data
