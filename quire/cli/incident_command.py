"""quire incident: the recorded calls of a cache, in a file that a server (--incidents) or `quire.incidents.Incidents`
writes. `save` makes a server write one now; `show` prints hits and refusals over time, requests that waited, and what
was left open; `play` makes the same calls on a real cache, exactly, and with --what-if on other caches too.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from quire.cli.arguments import CommandParser, not_negative
from quire.cli.main import run_act
from quire.core.admission.batch import Batch
from quire.core.check import check
from quire.core.records.config import CacheConfig, TierConfig
from quire.core.records.errors import InputError, StateError, say
from quire.incidents.files.incident_file import Incident, load
from quire.incidents.incidents import SUFFIX
from quire.incidents.listening import ask_to_save, is_listening
from quire.incidents.play.findings import find_out
from quire.incidents.play.loose_player import LoosePlayer, PlayOutcome
from quire.incidents.play.player import IncidentPlayer
from quire.incidents.play.waiting_line import Order

if TYPE_CHECKING:
    from quire.viewer.viewer import Viewer

PATIENCE = 600.0  # seconds for a server to write
CHANGES = (
    "eviction", "eviction_cost", "compute_doubles_at", "ghosts", "partial_reuse", "copy_on_partial_reuse", "shadows",
    "resume_every", "offload_min_priority", "max_sequences",
)  # fmt: skip
STEPS = ("add", "admit", "grow")
HOST = "host"  # a tier that may be added


class Variant(NamedTuple):
    """Another cache, and who is admitted first."""

    config: CacheConfig
    order: Order


def main(argv: list[str] | None = None) -> int:
    """One act."""
    return run_act("incident", _parser().parse_args(argv))


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire incident", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="ACT", parser_class=CommandParser)
    saving = acts.add_parser("save", help="make a server write one now")
    saving.add_argument("folder", help="the server's --incidents")
    saving.set_defaults(act=_save)
    showing = acts.add_parser("show", help="hits, refusals and waits of its calls")
    showing.add_argument("file")
    showing.add_argument("--json", action="store_true", help="as JSON")
    showing.set_defaults(act=_show)
    playing = acts.add_parser("play", help="make its calls on a real cache again")
    add = playing.add_argument
    add("file")
    add("--store", choices=["auto", "twin", "compiled"], default="auto", help="default: the fastest available")
    add("--page", type=int, metavar="PORT", nargs="?", const=0, help="the live page beside it (0, the default: any)")
    add("--step", action="store_true", help="wait for Enter after each step of the engine")
    add(
        "--speed",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="1: the recorded pace; 0 (default): as fast as possible",
    )
    add(
        "--from",
        dest="first",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="skip --step and --speed until this second",
    )
    add("--check", type=int, default=0, metavar="N", help="check every invariant after every N calls")
    add("--what-if", action="append", default=[], metavar="CHANGES", help="other caches: device=x2,host=500,order=fair")
    add("--json", action="store_true", help="print the result as JSON")
    playing.set_defaults(act=_play)
    return parser


def _save(options: Namespace) -> int:
    folder = Path(options.folder)
    ask = f"saving an incident in {str(folder)!r}"
    before = set(folder.glob(f"*-asked{SUFFIX}"))
    pid = ask_to_save(folder, ask)
    until, is_there = time.monotonic() + PATIENCE, True
    while is_there and time.monotonic() < until:
        is_there = is_listening(folder)  # looked at first: it may write and end
        if new := set(folder.glob(f"*-asked{SUFFIX}")) - before:
            print(max(new))
            return 0
        time.sleep(0.1)
    fact = "has written nothing" if is_there else "ended before it wrote"
    raise StateError(say(ask, f"process {pid} {fact}", "read its log"))


def _show(options: Namespace) -> int:
    incident = load(options.file)
    found = find_out(incident)
    if options.json:
        print(json.dumps({**_head(incident), **asdict(found)}))
    else:
        print("\n".join([_title(incident), *found.words()]))
    return 0


def _head(incident: Incident) -> dict[str, Any]:
    whole = incident.start is None
    return {
        "reason": incident.reason, "made": incident.made, "calls": len(incident.calls),
        "seconds": round(incident.seconds, 3), "from_the_start": whole,
    }  # fmt: skip


def _title(incident: Incident) -> str:
    begun = "" if incident.start is None else ", without its beginning"
    return f"{incident.reason} ({incident.made}): {len(incident.calls)} calls in {incident.seconds:.1f} s{begun}"


def _play(options: Namespace) -> int:
    incident = load(options.file)
    variants = {text: _changed(incident.config, text) for text in options.what_if}
    facts: dict[str, Any] = _head(incident)
    if not options.json:
        print(_title(incident), flush=True)
    if incident.start is None:
        played = _play_exactly(incident, options)
        facts["exact"] = True
        if not options.json:
            print(f"played {played} calls: every row, slot and answer as it was")
    elif not variants:
        variants = {"as it was, from an empty cache": Variant(incident.config, "fcfs")}
    outcomes = {"then": _as_it_was(incident)}
    for text, (config, order) in variants.items():
        outcomes[text] = LoosePlayer(config, order=order).play(incident.calls)
    if options.json:
        print(json.dumps({**facts, "outcomes": {name: asdict(one) for name, one in outcomes.items()}}))
    else:
        print("\n".join(_table(outcomes)))
    return 0


def _play_exactly(incident: Incident, options: Namespace) -> int:
    player = IncidentPlayer(incident, store=options.store)
    with ExitStack() as stack:
        viewer = None
        if options.page is not None:
            from quire.viewer.viewer import Viewer

            viewer = stack.enter_context(Viewer(player.cache, port=options.page, name=incident.reason))
            print(f"open {viewer.url}", file=sys.stderr, flush=True)
        last = 0.0
        while (call := player.step()) is not None:
            if options.check and player.place % options.check == 0:
                check(player.cache)
            if call[0] in STEPS:
                _show_step(player, viewer, player.time - last)
                if player.time >= options.first:
                    _wait(options, player, call, player.time - last)
                last = player.time
        if options.check:
            check(player.cache)
        if viewer is not None and sys.stdin.isatty():
            input("the end; Enter closes the page ")
    return player.place


def _show_step(player: IncidentPlayer, viewer: Viewer | None, seconds: float) -> None:
    if viewer is not None and isinstance(player.answer, Batch):
        viewer.admitted(player.answer)
        viewer.stepped(player.answer.num_tokens, max(0.0, seconds))


def _wait(options: Namespace, player: IncidentPlayer, call: list[Any], seconds: float) -> None:
    if options.step:
        print(f"{player.time:10.3f} s  call {player.place:7}  {call[0]:6} {player.cache!r}", end="  ", flush=True)
        sys.stdin.readline()
    elif options.speed > 0:
        time.sleep(max(0.0, seconds / options.speed))


def _as_it_was(incident: Incident) -> PlayOutcome:
    """What became of the requests then."""
    found, outcome = find_out(incident), PlayOutcome()
    for one in found.stretches:
        outcome.admitted += one.admitted
        outcome.prompt_tokens += one.prompt_tokens
        outcome.hit_tokens += one.hit_tokens
    outcome.preempted = sum(call[0] == "suspend" for call in incident.calls)
    return outcome


def _table(outcomes: dict[str, PlayOutcome]) -> list[str]:
    width = max(len(name) for name in outcomes)
    lines = [f"{'':{width}}  admitted  hit rate  preempted  never fit  waits, s"]
    for name, one in outcomes.items():
        lines.append(
            f"{name:{width}}{one.admitted:10}{one.hit_rate:10.1%}{one.preempted:11}{one.refused:11}{one.waited:10.1f}"
        )
    return lines


def _changed(config: CacheConfig, text: str) -> Variant:
    """A config with other sizes, with host memory or another order: device=x2,host=500,eviction=lru,order=fair."""
    tiers = {tier.name: tier for tier in config.tiers}
    fields: dict[str, Any] = {}
    order: Order = "fcfs"
    for part in text.split(","):
        name, given, value = part.partition("=")
        if not given or (name not in tiers and name not in (*CHANGES, HOST, "order")):
            fact = f"it is none of {', '.join([*{*tiers, HOST}, *CHANGES, 'order'])}, with a value"
            raise InputError(say(f"--what-if {part}", fact, "write device=x2 or eviction=lru"))
        if name in tiers:
            tiers[name] = replace(tiers[name], slots=_slots(tiers[name].slots, value, part))
        elif name == HOST:
            tiers[name] = TierConfig(HOST, _number(value, int, part, "there was none: write host=500"))
        elif name == "order":
            order = _order(value, part)
        elif name in ("eviction", "eviction_cost"):
            fields[name] = value
        else:
            fields[name] = _number(value, int, part) if value not in ("True", "False") else value == "True"
    ordered = sorted(tiers.values(), key=lambda tier: tier.slow)  # a slow one is the last
    return Variant(replace(config, tiers=tuple(ordered), **fields), order)


def _order(value: str, part: str) -> Order:
    for known in get_args(Order):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise InputError(say(f"--what-if {part}", "it is not an order", f"use one of {', '.join(get_args(Order))}"))


def _slots(slots: Any, value: str, part: str) -> Any:
    if not value.startswith("x"):
        return _number(value, int, part)
    factor = _number(value[1:], float, part)
    return tuple(int(one * factor) for one in slots) if isinstance(slots, tuple) else int(slots * factor)


def _number(value: str, kind: Callable[[str], Any], part: str, cure: str = "write device=x2 or device=500") -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InputError(say(f"--what-if {part}", "it is not a number", cure)) from None
