"""quire chat: talk to a model in the terminal; after each answer, what of the prompt was reused and how soon it came.

Lines are read from standard input, so a script can pipe questions in. Ctrl-C stops an answer, Ctrl-D ends the chat. An
answer that fails is reported; an engine that has failed ends the chat, with the code 1.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from io import TextIOWrapper
from typing import TYPE_CHECKING

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser, not_negative
from quire.cli.model_options import add_link, add_model, need_engine, note_printer, open_llm, read_secret, read_tls

if TYPE_CHECKING:
    from quire.engine import LLM, Run, Sampling, Stream

HELP = "/new forgets the conversation, /quit ends, /help shows this; Ctrl-C stops an answer"


def main(argv: list[str] | None = None) -> int:
    """Load, then talk until the input ends."""
    options = _parser().parse_args(argv)
    for stream in (sys.stdin, sys.stdout):  # a terminal that lacks a character shows another one
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    tell = note_printer()
    try:
        llm, sampling = _open(options, tell)
    except (QuireError, ImportError, OSError, ValueError) as error:  # of a folder without a model that works, too
        print(f"quire chat: {error}", file=sys.stderr)
        return 2
    with llm:
        tell(HELP)
        broken = Chat(llm, sampling, options.system).run()
    if broken is not None:
        print(f"quire chat: {broken}", file=sys.stderr)
    return int(broken is not None)


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire chat", description=__doc__)
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", default="You are a helpful assistant.", help="the system prompt")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="longest answer (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default): the likeliest token")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest tokens of mass P")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answers")
    parser.add_argument("--drafts", type=int, default=0, metavar="N", help="guess up to N tokens from the text so far")
    parser.add_argument("--prefill-peer", metavar="HOST:PORT", help="prompts are computed by a `quire prefill` there")
    parser.add_argument(
        "--patience", type=not_negative, default=60.0, metavar="S", help="for a prompt to come (default 60)"
    )
    add_link(parser)
    return parser


def _open(options: Namespace, tell: Callable[[str], None]) -> tuple[LLM, Sampling]:
    need_engine(options.model)
    from quire.engine import PrefillPeer, Sampling

    sampling = Sampling(
        max_tokens=options.max_tokens, temperature=options.temperature, top_p=options.top_p, seed=options.seed,
        drafts=options.drafts,
    )  # fmt: skip
    far = None
    if options.prefill_peer is not None:
        ways = (options.link, options.patience, read_tls(options))
        far = PrefillPeer(options.prefill_peer, read_secret(options), *ways)
    return open_llm(options, tell, far), sampling


class Chat:
    """One conversation, turn by turn."""

    def __init__(self, llm: LLM, sampling: Sampling, system: str) -> None:
        self.llm, self.sampling = llm, sampling
        self.first = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.first)
        self.tell = note_printer()

    def run(self) -> str | None:
        """Until the input or the user ends it, or until the engine has failed: why."""
        while self.llm.loop.error is None and (line := self._ask()) is not None and line != "/quit":
            if line == "/new":
                self.messages = list(self.first)
                self.tell("a new conversation")
            elif line.startswith("/"):
                self.tell(HELP)
            elif line:
                self.turn(line)
        return self.llm.loop.error

    def _ask(self) -> str | None:
        try:
            return input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return None

    def turn(self, question: str) -> None:
        """Ask, show the answer as it comes, and what it cost. Ctrl-C stops it; what was shown has been said."""
        messages = [*self.messages, {"role": "user", "content": question}]
        stream: Stream | None = None
        pieces: list[str] = []
        try:
            stream = self.llm.stream(messages, self.sampling)
            for piece in stream:
                pieces.append(piece.text)
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            if stream is not None:
                stream.close()
        except InputError as error:
            self.tell(f"{error} (/new forgets the conversation)")
            return
        except QuireError as error:
            print(end="\n" if any(pieces) else "", flush=True)  # what came of the answer stands on a line of its own
            self.tell(str(error))
            return
        print(flush=True)
        if text := "".join(pieces):
            self.messages = [*messages, {"role": "assistant", "content": text}]
        run = None if stream is None else stream.wait()
        self.tell("stopped" if run is None else run.error or cost(run))


def cost(run: Run) -> str:
    """One line: the prompt, what of it was reused, when the first token came, how fast the others."""
    ask = f"prompt {len(run.prompt):,} tokens, {run.reused:,} reused"
    why = " (stopped)" if run.answers[0].finish == "cancelled" else ""
    if not run.times.first_token:
        return f"[{ask}; no answer]{why}"
    made = len(run.answers[0].tokens)
    rest = run.times.finished - run.times.first_token
    pace = f", {(made - 1) / rest:.1f} tokens/s" if made > 1 and rest > 0 else ""
    far = f"; {run.received:,} bytes from the peer" if run.received and not run.fallback else ""
    near = f"; computed here: {run.fallback}" if run.fallback else ""
    return f"[{ask}; first token after {run.time_to_first_token:.2f} s; answer {made:,} tokens{pace}{far}{near}]{why}"


if __name__ == "__main__":
    sys.exit(main())
