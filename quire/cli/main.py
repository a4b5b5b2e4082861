"""The `quire` command: one word, one tool. Each tool is imported when it is named."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from argparse import Namespace

from quire.core.records.caller_arguments import nearest
from quire.core.records.errors import MissingExtra, QuireError

INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143  # as a shell says it: 128 and the signal
TOOLS = {
    "demo": ("quire.cli.demo.demo", "two requests, one promise: why admission has two phases"),
    "chat": ("quire.cli.chat", "talk to a model; shows what of each prompt was reused, and how soon it answered"),
    "serve": (
        "quire.cli.serve.serve_command",
        "a model behind an OpenAI-compatible HTTP server: metrics, API keys",
    ),
    "prefill": ("quire.cli.prefill", "compute prompts for `quire chat --prefill-peer` in another process"),
    "replay": ("quire.cli.simulate.replay_command", "a recorded workload through the cache, on a virtual clock"),
    "sweep": ("quire.cli.simulate.sweep_command", "a replay for every size and policy, beside the offline optimum"),
    "fleet": ("quire.cli.simulate.fleet_command", "a trace over several workers: what cache-aware routing gains"),
    "plan": ("quire.cli.simulate.plan_command", "the cheapest workers and memory that answer a trace soon enough"),
    "trace": (
        "quire.cli.trace.trace_command",
        "make a trace of request logs, without text; statistics of a trace",
    ),
    "findings": (
        "quire.cli.prompts.findings_command",
        "what keeps prompts of a log from sharing more; what mending it would bring",
    ),
    "lint": (
        "quire.cli.prompts.lint_command",
        "a few prompts, or a template with examples: what keeps them from sharing",
    ),
    "diff": ("quire.cli.prompts.diff_command", "requests before and after a change of template or tools: what is lost"),
    "tiers": ("quire.cli.tiers.tiers_command", "measure memory, disks and shared stores here; what is worth using"),
    "events": ("quire.cli.events_command", "watch, record or republish a stream of KV events"),
    "fsck": (
        "quire.cli.tiers.fsck_command",
        "verify the pages of a disk tier; report damage, and repair it",
    ),
    "incident": ("quire.cli.incident_command", "replay a cache's recorded calls: exactly, or with other sizes"),
    "bill": ("quire.cli.serve.bill_command", "what each tenant used of a cache, and what it costs"),
    "disagg": ("quire.cli.disagg", "compute in one process, decode in another; what is sent, and what a crash costs"),
}
ENDED = (
    "replay",
    "sweep",
    "trace",
    "findings",
    "lint",
    "diff",
    "incident",
    "bill",
)  # by SIGTERM in one line; a server has its own way
SERVERS = ("serve", "prefill")  # whose output may have no reader
MOVED = {
    "fuzz": "the fuzzer is not installed any more; in a checkout: make fuzz, or python -m fuzzing",
    "bench": "the benchmark is not installed any more; in a checkout: make bench",
}  # tools of 0.1.0


def main(argv: list[str] | None = None) -> int:
    """Run the tool that the first word names."""
    words = sys.argv[1:] if argv is None else argv
    if not _can_tell(words[:1]):
        print("quire: standard output: it is closed; leave it open, or send it to /dev/null", file=sys.stderr)
        return 2
    if not words or words[0] in ("-h", "--help", "--help-all", "help"):
        print("usage: quire TOOL [options]    (quire TOOL --help says more)\n")
        for name, (_, what) in TOOLS.items():
            print(f"  {name:10}{what}")
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(importlib.import_module("quire").__version__)
        return 0
    if words[0] in MOVED:
        print(f"quire {words[0]}: {MOVED[words[0]]}", file=sys.stderr)
        return 2
    if words[0] not in TOOLS:
        print(f"quire: there is no tool {words[0]!r}; {nearest(words[0], TOOLS)}", file=sys.stderr)
        return 2
    return _run(words[0], words[1:])


def _can_tell(name: list[str]) -> bool:
    """Whether there is somewhere to write to; a server needs nothing, and what it opens gets no stream's number."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the process is
    if sys.stdout is None and name and name[0] in SERVERS:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return sys.stdout is not None


def _run(name: str, words: list[str]) -> int:
    """One tool; whatever ends it from outside is one line."""
    try:
        tool = importlib.import_module(TOOLS[name][0])
        if name in ENDED:
            signal.signal(signal.SIGTERM, _terminate)
        code: int = tool.main(words)
        sys.stdout.flush()
    except MissingExtra as missing:
        print(f"quire {name}: {missing}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"quire {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Terminated:
        print(f"quire {name}: terminated", file=sys.stderr)
        return TERMINATED
    except BrokenPipeError:  # the reader has enough, as in `quire replay ... --json | head`
        _write_nothing_more()
        return BROKEN_PIPE
    except OSError as wrong:
        if wrong.errno != errno.ENOSPC:
            raise
        _write_nothing_more()
        print(f"quire {name}: standard output: {wrong.strerror}; write it elsewhere", file=sys.stderr)
        return 1
    return code


def run_act(tool: str, options: Namespace) -> int:
    """Do what the options of a tool with several acts have chosen (`act`); an error is one line."""
    try:
        code: int = options.act(options)
    except BrokenPipeError:
        raise
    except (QuireError, OSError) as wrong:
        print(f"quire {tool}: {wrong}", file=sys.stderr)
        return 2
    return code


class Terminated(BaseException):
    """SIGTERM: what is open is closed on the way out."""


def _terminate(*_: object) -> None:
    raise Terminated


def _write_nothing_more() -> None:
    """Nothing is left to fail at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
