"""Arguments: the command line of every tool. Owns how much help is shown and how a mistake is reported; knows no tool.

    --help        what people need first, and how many options there are besides
    --help-all    everything

A mistake is reported before the usage, not after it, and names the option that was probably meant.
"""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, NoReturn

from quire.core.records.caller_arguments import nearest

HELP = ("-h", "--help", "--help-all")
WRONG_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class CommandParser(ArgumentParser):
    """An ArgumentParser whose `--help` shows the options in `first`, and all of them if there are none."""

    def __init__(self, *given: Any, first: Collection[str] = (), **named: Any) -> None:
        super().__init__(*given, **named)
        self._first = frozenset(first)
        if first:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option, and exit")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As every parser does; of an option that does not exist the nearest is named."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest[0]))
        return options

    def format_help(self) -> str:
        """What people need first."""
        with self._hidden() as number:
            text = super().format_help()
        return f"{text}\n{number} more options: {self.prog} --help-all\n" if number else text

    def format_all(self) -> str:
        """Everything."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """The mistake first, then the usage."""
        if wrong := WRONG_CHOICE.search(message):
            choices = re.findall(r"[^\s,']+", wrong[2])
            cure = nearest(wrong[1], choices)
            message = message if cure.startswith("there are") else f"{message}; {cure}"
        with self._hidden():
            usage = self.format_usage()
        print(f"{self.prog}: {message}\n{usage}{self.prog} --help says more", file=sys.stderr)
        sys.exit(2)

    def _unknown(self, word: str) -> str:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            return f"{word!r} is one word too many"
        cure = nearest(name.lstrip("-"), [option[2:] for option in self._options()])  # the dashes are alike in all
        near = "" if cure.startswith("there are") else f"; {cure.replace('did you mean ', 'did you mean --')}"
        return f"there is no option {name}{near}"

    def _options(self) -> Iterator[str]:
        """The long options, those of acts included."""
        for action in self._actions:
            yield from (name for name in action.option_strings if name.startswith("--"))
            if isinstance(action, _SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._options()

    @contextmanager
    def _hidden(self) -> Iterator[int]:
        """Without the options that few people need, in the usage too; how many they are."""
        if not self._first:
            yield 0
            return
        shown = self._first.union(HELP)
        rare = [action for action in self._actions if _is_rare(action, shown)]
        helps = [action.help for action in rare]
        for action in rare:
            action.help = SUPPRESS
        words = [str(action.metavar or action.dest) for action in self._actions if not action.option_strings]
        self.usage = " ".join([self.prog, "[options]", *words])
        try:
            yield len(rare)
        finally:
            self.usage = None
            for action, text in zip(rare, helps, strict=True):
                action.help = text


def finite(text: str) -> float:
    """A number that is neither infinite nor none at all, for `type=`."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not isfinite(number):
        raise ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def not_negative(text: str) -> float:
    """The same from 0 on."""
    number = finite(text)
    if number < 0:
        raise ArgumentTypeError(f"{text!r} is below 0; give 0 or more")
    return number


def positive(text: str) -> float:
    """The same above 0."""
    number = finite(text)
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} is not above 0; give more")
    return number


class _HelpAll(Action):
    def __call__(self, parser: ArgumentParser, namespace: Namespace, *_: object) -> None:
        assert isinstance(parser, CommandParser)
        print(parser.format_all(), end="")
        parser.exit()


def _is_rare(action: Action, shown: Collection[str]) -> bool:
    return bool(action.option_strings) and not any(name in shown for name in action.option_strings)
