"""Options of what watches a server's cache: incidents and bills, as an EngineConfig has them. Knows no server."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from quire import InputError
from quire.core.records.errors import say
from quire.incidents.signs import Lines

OF_INCIDENTS = ("incident_at", "incidents_keep", "incidents_bytes")


def add_watchers(parser: ArgumentParser) -> None:
    """Where they write, and what."""
    add = parser.add_argument
    add("--incidents", metavar="FOLDER", help="the cache's last calls go there when something is wrong")
    add("--incident-at", metavar="LINES", help="hang=60,waiting=10,hit_rate=0.2: what is wrong (default hang=60)")
    add("--incidents-keep", metavar="TIME", help="how far back calls are to reach: 90s, 30m (default 1h)")
    add("--incidents-bytes", metavar="SIZE", help="memory for them (default 256MiB); what they lack is logged")
    help_ = "what each tenant uses is written there, for quire bill (alone: into the folder of --disk)"
    add("--bills", metavar="FOLDER", nargs="?", const="", help=help_)
    add("--bill-sessions", action="store_true", help="each session is billed apart")


def watcher_fields(options: Namespace) -> dict[str, Any]:
    """Fields of an EngineConfig."""
    fields: dict[str, Any] = {}
    if options.incidents is not None:
        fields |= {"incidents": options.incidents, "incident_lines": lines_of(options.incident_at)}
        for name in ("incidents_keep", "incidents_bytes"):
            if (value := getattr(options, name)) is not None:
                fields[name] = value
    for name in OF_INCIDENTS if options.incidents is None else ():
        if getattr(options, name) is not None:
            given = f"--{name.replace('_', '-')}"
            raise InputError(say(given, "no incidents are kept", "give --incidents FOLDER"))
    if options.bills is not None:
        fields |= {"bills": options.bills or options.disk, "bill_sessions": options.bill_sessions}
        if not fields["bills"]:
            raise InputError(say("--bills", "there is no folder", "name one, or give --disk FOLDER"))
    elif options.bill_sessions:
        raise InputError(say("--bill-sessions", "nothing is billed", "give --bills FOLDER"))
    return fields


def lines_of(text: str | None) -> Lines:
    """What must not be crossed, from hang=60,waiting=10,hit_rate=0.2."""
    given: dict[str, float] = {}
    for part in () if text is None else text.split(","):
        name, _, number = part.partition("=")
        try:
            given[{"hang": "hang", "waiting": "waiting", "hit_rate": "hit_rate"}[name]] = float(number)
        except (KeyError, ValueError):
            cure = "write hang=60,waiting=10,hit_rate=0.2, or some of them"
            raise InputError(say(f"--incident-at {part}", "it names no line with a number", cure)) from None
    return Lines(**given)
