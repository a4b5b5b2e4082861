"""quire tiers bench: measure host memory, disks and shared stores with pages of a model's size; what is worth using."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing

from quire import InputError
from quire.cli.arguments import finite
from quire.core.records.errors import say
from quire.core.records.memory import parse_bytes, say_bytes
from quire.simulate.setup.shape import PRESETS, ModelShape, find_shape
from quire.simulate.show.screen import progress, show_table
from quire.tiers.measure.measure import Measured, MeasureLoad, measure, steps_of
from quire.tiers.measure.places import DiskPlace, HostPlace, Place, StorePlace

MOST_BYTES = 1 << 36


def add_options(parser: ArgumentParser) -> None:
    """What to measure, and with which pages."""
    parser.add_argument(
        "--disk", action="append", default=[], metavar="FOLDER", help="a folder on the disk in question"
    )
    parser.add_argument(
        "--store", action="append", default=[], metavar="PLACE",
        help="a shared store: redis://user:password@host:6379/0, or a folder that machines share",
    )  # fmt: skip
    parser.add_argument(
        "--shape", default="llama-3-8b", help=f"a preset ({', '.join(PRESETS)}) or a .toml file (default %(default)s)"
    )
    parser.add_argument(
        "--block-size", type=int, default=16, metavar="N", help="tokens of a block (default %(default)s)"
    )
    parser.add_argument("--bytes", default="128MiB", metavar="SIZE", help="how much to write (default %(default)s)")
    parser.add_argument(
        "--tokens-per-second", type=finite, default=10_000.0, metavar="N",
        help="how fast the model computes a prompt (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.set_defaults(act=run)


def run(options: Namespace) -> int:
    """Measure, and say it."""
    shape = find_shape(options.shape)
    load = _load(shape, options)
    makers = list(_makers(options, load))
    found: list[Measured] = []
    with progress("measuring", steps_of(len(makers))) as tell:
        for make in makers:
            with closing(make()) as place:
                found.append(measure(place, load, tell))
    if options.json:
        facts = {
            "shape": shape.name, "block_size": options.block_size, "page_bytes": load.page_bytes,
            "bytes_per_token": load.bytes_per_token, "computes_tokens_per_second": load.tokens_per_second,
            "places": [one.to_json() for one in found],
        }  # fmt: skip
        print(json.dumps(facts))
    else:
        _show(shape, load, found)
    return 0


def _load(shape: ModelShape, options: Namespace) -> MeasureLoad:
    if not 1 <= options.block_size <= 1 << 16:
        raise InputError(say(f"--block-size {options.block_size}", "that is not a block size", "give 1 to 65536"))
    if not 0 < options.tokens_per_second < 1e12:
        ask = f"--tokens-per-second {options.tokens_per_second}"
        raise InputError(say(ask, "no model computes so", "give a number above 0"))
    groups = shape.groups(options.block_size)
    kept = [group.page_bytes for group in groups if not group.bounded] or [max(group.page_bytes for group in groups)]
    page_bytes, amount = sum(kept), parse_bytes(options.bytes, "--bytes")
    if not page_bytes <= amount <= MOST_BYTES:
        fact = f"a block of {shape.name} takes {say_bytes(page_bytes)}"
        raise InputError(
            say(f"--bytes {options.bytes}", fact, f"give that at least, and at most {say_bytes(MOST_BYTES)}")
        )
    return MeasureLoad(
        page_bytes, max(1, amount // page_bytes), page_bytes / options.block_size, options.tokens_per_second
    )


def _makers(options: Namespace, load: MeasureLoad) -> Iterator[Callable[[], Place]]:
    """Each place is made when its turn comes, and gone before the next."""
    yield lambda: HostPlace(load.pages, load.page_bytes)
    for folder in options.disk:
        yield lambda where=folder: DiskPlace(where, load.pages, load.page_bytes)  # type: ignore[misc]
    for store in options.store:
        yield lambda where=store: StorePlace(where)  # type: ignore[misc]


def _show(shape: ModelShape, load: MeasureLoad, found: list[Measured]) -> None:
    head = ["place", "write", "read", "scattered", "first page", "look up", "brings"]
    rows = [
        [
            one.name, _rate(one.write), _rate(one.read), _rate(one.scattered), f"{one.first * 1e3:.2f} ms",
            f"{one.lookup * 1e3:.2f} ms" if one.kind == "store" else "-", f"{one.tokens_per_second:,.0f} tokens/s",
        ]
        for one in found
    ]  # fmt: skip
    title = f"{load.pages} blocks of {shape.name}, {say_bytes(load.page_bytes)} each"
    show_table(title, head, rows, sys.stdout)
    for one in found:
        print(f"{one.name}: {_advice(one, load)}")


def _rate(number: float) -> str:
    return f"{say_bytes(number)}/s"


def _advice(one: Measured, load: MeasureLoad) -> str:
    """What it is good for, in a line."""
    computes = f"computing at {load.tokens_per_second:,.0f} tokens/s"
    if one.from_tokens is None:
        return f"slower than {computes}: leave it out, or use it for models that compute slower"
    worth = f"faster than {computes} from {one.from_tokens:,} missing tokens on"
    size = f"; batches of {one.batch} blocks ({say_bytes(one.batch * load.page_bytes)}) are enough"
    if one.room is None:
        return worth + size
    return f"{worth}; {say_bytes(one.room)} could be given to it ({one.room_tokens:,} tokens){size}"
