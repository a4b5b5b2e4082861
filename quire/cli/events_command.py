"""quire events: watch a stream of KV events, record it to a file, publish a recorded file again."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from quire import QuireError
from quire.cli.arguments import CommandParser
from quire.cli.main import run_act


def main(argv: list[str] | None = None) -> int:
    """Run one of the three."""
    return run_act("events", _parser().parse_args(argv))


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire events", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="ACT")
    tail = acts.add_parser("tail", help="print a publisher's events")
    tail.set_defaults(act=_tail)
    tail.add_argument("--json", action="store_true", help="one JSON object per batch")
    record = acts.add_parser("record", help="write a publisher's events to a file")
    record.set_defaults(act=_record)
    for one in (tail, record):
        one.add_argument("endpoint", metavar="ENDPOINT", help="of the publisher, as tcp://host:5557")
        one.add_argument("--bind", action="store_true", help="bind it instead, for publishers that connect")
        one.add_argument("--topic", default="", help="only messages whose topic begins with it")
        one.add_argument("--count", type=_positive, metavar="N", help="stop after so many batches")
        one.add_argument("--seconds", type=_seconds, metavar="S", help="stop after so long")
        one.add_argument("--server", metavar="KEY", help="the publisher's public key for CURVE, or its file")
        one.add_argument("--keys", metavar="FILE", help="keys of this end for CURVE (a .key_secret file); default: new")
    record.add_argument("file", metavar="FILE")
    replay = acts.add_parser("replay", help="publish a recorded file again")
    replay.set_defaults(act=_replay)
    replay.add_argument("file", metavar="FILE")
    replay.add_argument("endpoint", metavar="ENDPOINT", help="to bind, or with --connect to connect to")
    replay.add_argument("--connect", action="store_true")
    replay.add_argument("--keys", metavar="FILE", help="publish with CURVE, with the keys of this .key_secret file")
    help_ = "accept only subscribers with this public key (or that of this file); may be repeated"
    replay.add_argument("--client", action="append", metavar="KEY", help=help_)
    replay.add_argument("--speed", type=_seconds, default=1.0, metavar="X", help="times as fast; 0: without pauses")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def _stream(options: Namespace) -> Iterator[Any]:
    from quire.events import Keys, messages

    keys = Keys.read(options.keys) if options.keys else None
    return messages(
        options.endpoint, options.topic, bind=options.bind, count=options.count, seconds=options.seconds,
        keys=keys, server=options.server,
    )  # fmt: skip


def _record(options: Namespace) -> int:
    from quire.events import Recording

    recording = Recording(options.file)
    count = 0
    try:
        count = recording.write(_stream(options))
    except KeyboardInterrupt:  # the usual way to end it; the file has what came
        count = sum(1 for _ in recording)
    print(f"{count} batches in {options.file}")
    return 0


def _replay(options: Namespace) -> int:
    from quire.events import Keys, replay

    keys = Keys.read(options.keys) if options.keys else None
    if options.client:
        if keys is None:
            raise QuireError("--client: only streams with CURVE check subscribers: add --keys FILE")
        keys = keys.admitting(options.client)
    count = replay(options.file, options.endpoint, bind=not options.connect, speed=options.speed or None, keys=keys)
    print(f"{count} batches sent")
    return 0


def _tail(options: Namespace) -> int:
    from quire.events import Index
    from quire.events.follow.read import read

    index = Index()
    index.add("it", mendable=False)
    for message in _stream(options):
        index.hear("it", message.seq, message.payload)
        batch = read(message.payload) | {"seq": message.seq, "topic": message.topic.decode(errors="replace")}
        batch["status"] = index.status("it").value
        print(json.dumps(batch) if options.json else "\n".join(map(_shown, _lines(batch))), flush=True)
    return 0


def _shown(line: str) -> str:
    """What others chose may not steer a terminal."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in line)


def _lines(batch: dict[str, Any]) -> Iterator[str]:
    """One line for the batch, one for each event."""
    if "damaged" in batch:
        yield f"#{batch['seq']}  damaged: {batch['damaged']}"
        return
    when = datetime.fromtimestamp(batch["ts"]).strftime("%H:%M:%S.%f")[:-3]
    own = batch.get("quire")
    lost = f", {own['lost']} lost" if own and own.get("lost") else ""
    state = "" if not own else f"  {own['unread']}" if "unread" in own else f"  {own['pages']} pages published{lost}"
    topic = "  " + batch["topic"] if batch["topic"] else ""
    yield f"#{batch['seq']}  {when}  rank {batch['rank']}{topic}{state}  [{batch['status']}]"
    for event in batch["events"]:
        yield "    " + _words(event)


def _words(event: dict[str, Any]) -> str:
    names = event.get("block_hashes")
    names = names if isinstance(names, list) else []
    where = f"{event.get('medium') or '?'} group {event.get('group_idx') or 0}"
    first = f"{names[0]:016x}" if names and isinstance(names[0], int) else str(names[0]) if names else ""
    more = f" ... ({len(names)} blocks)" if len(names) > 1 else ""
    match event.get("type"):
        case "BlockStored":
            parent = event.get("parent_block_hash")
            above = f"under {parent:016x}" if isinstance(parent, int) else "at the root"
            tags = [f"{key}={event[key]}" for key in ("lora_name", "cache_salt") if event.get(key)]
            return " ".join(["stored ", where, first + more, above, *tags])
        case "BlockRemoved":
            return " ".join(["removed", where, first + more])
        case "AllBlocksCleared":
            return "cleared"
    return str(event)


if __name__ == "__main__":
    sys.exit(main())
