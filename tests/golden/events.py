"""Write an event stream in today's format, for later versions to read: python -m tests.golden.events FOLDER

Once per version of our own field. A small life over two tiers, with pages that move, pages that go, and a
scope, in several batches; with a fixed seed, so that hashes are the same in every run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import numpy as np

from quire import Cache, CacheConfig, Request, Scope, TierConfig
from quire.events import Publisher, RecordedMessage, Recording

PROMPTS = [
    (np.arange(12, dtype=np.int32), Scope()),
    (np.append(np.arange(12), [7, 8, 9, 10, 11]).astype(np.int32), Scope()),
    (np.arange(9, dtype=np.int32), Scope(lora="sql", salt="s")),
    (np.arange(40, 60, dtype=np.int32), Scope()),
]
CONFIG = CacheConfig(
    (TierConfig("device", 6), TierConfig("host", 4)), 4, max_length=64, events=True, eviction="lru", rank=2,
    event_seed=bytes(range(16)),
)  # fmt: skip
Encoding = Literal["map", "array"]
ENCODINGS: tuple[Encoding, ...] = ("map", "array")


def live(cache: Cache, nth: int) -> None:
    """Serve a prompt."""
    tokens, scope = PROMPTS[nth]
    batch = cache.add_sequence_batch([Request(nth, tokens, scope)])
    cache.finish(batch.plan)
    cache.commit(batch.sequences[0], len(tokens))
    cache.release(batch.sequences[0])


def stream(encoding: Encoding) -> list[RecordedMessage]:
    """What a publisher says of that life, a batch for each prompt."""
    import zmq

    cache, batches = Cache(CONFIG), list[tuple[int, bytes]]()
    context = zmq.Context()
    ask = context.socket(zmq.DEALER)
    with Publisher(cache, "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", bind=True, encoding=encoding) as publisher:
        ask.connect(str(publisher.replay_endpoint))
        for nth in range(len(PROMPTS)):
            live(cache, nth)
            publisher.tell()
            while len(batches) <= nth:  # until it has said it: two would become one batch
                ask.send_multipart([b"", len(batches).to_bytes(8, "big")])
                while (frames := ask.recv_multipart())[2] != b"\xff" * 8:
                    batches.append((int.from_bytes(frames[2], "big"), frames[3]))
    ask.close(0)
    context.term()
    return [RecordedMessage(0.0, b"", number, payload) for number, payload in batches]


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    for encoding in ENCODINGS:
        Recording(folder / f"{encoding}.qev").write(stream(encoding))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
