"""PageHints: what the caller of a prompt knows of its pages' future. Owns how the end of an answer becomes a hint.

    the caller says it                 that
    the answer calls a tool            soon: the request comes back with what the tool found
    the answer is complete             later: a person reads it first
    it was cut short, or cancelled     nothing: it is not known

Knows no cache and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from quire.core.records.caller_arguments import nearest
from quire.core.records.errors import InputError, UnknownField, say, shown
from quire.core.records.groups import LARGEST
from quire.core.records.hint_words import Back, check_session, hint_number
from quire.core.records.retain import Retention

SUBMITTED = ("sampling", "scope", "listener", "tenant", "mask", "begun")  # what `submit` takes besides
COMPLETE = ("eos", "stop")  # finishes of an answer that its model has ended


class PageHintOptions(TypedDict, total=False):
    """The same as keywords."""

    retention: Retention | None
    session: str | None
    back: Back | None
    calls_tool: Callable[[str], bool] | None
    resume_points: Sequence[int]


class PageHints(NamedTuple):
    """Of one run. `calls_tool` is asked in the engine's thread, with the text of an answer that is complete."""

    retention: Retention | None = None  # which pages stay, how much and how long
    session: str | None = None  # requests that follow one another
    back: Back | None = None  # when its text is asked for again; None: as its answers end
    calls_tool: Callable[[str], bool] | None = None  # None: there are no tools, or they cannot be read
    resume_points: Sequence[int] = ()  # positions in the prompt where others may go on from

    def __repr__(self) -> str:
        session = "" if self.session is None else ", a session"  # whose name may identify a person
        return f"PageHints({self.retention!r}, back={self.back!r}{session})"

    def at_end(self, finish: str | None, called: bool) -> Back | None:
        """When an answer that ended so comes back."""
        if self.back is not None or finish not in COMPLETE:
            return self.back
        return "soon" if called else "later"

    def before_end(self) -> Back | None:
        """The same of a prompt whose answer others make, while it is not known how that will end."""
        return self.back or ("later" if self.calls_tool is None else "soon")


NO_HINTS = PageHints()


def hints_among(options: Mapping[str, Any]) -> PageHints:
    """Those among the keywords of a submission."""
    return PageHints(**{name: options[name] for name in PageHints._fields if name in options})


def submitted_hints(options: Mapping[str, Any]) -> PageHints:
    """Those of a submission, if they can be understood. What is no keyword of it at all lands here, too."""
    names = PageHints._fields
    for name in options:
        if name not in names:
            cure = nearest(name, [*SUBMITTED, *names])
            raise UnknownField(say(f"submit({name}=...)", "it has no such option", cure))
    return checked_hints(PageHints(**options))


def checked_hints(hints: PageHints) -> PageHints:
    """The same, if it can be understood."""
    if not isinstance(hints.retention, Retention | None):
        cure = "pass a Retention, such as Retention([RetainRange(0, 100, 50)])"
        fact = f"it is a {type(hints.retention).__name__}"
        raise InputError(say(f"retention={shown(hints.retention)}", fact, cure))
    hint_number(hints.back, "submit")
    if hints.session is not None:
        check_session(hints.session, "submit")
    if hints.calls_tool is not None and not callable(hints.calls_tool):
        fact = f"it is a {type(hints.calls_tool).__name__}"
        raise InputError(say(f"calls_tool={shown(hints.calls_tool)}", fact, "pass a function of a text, or None"))
    points = hints.resume_points
    if not isinstance(points, list | tuple) or not all(type(at) is int and 0 < at < LARGEST for at in points):
        fact, cure = "they are not a list of positions", "pass numbers of tokens in the prompt, such as [512]"
        raise InputError(say(f"resume_points={shown(points)}", fact, cure))
    return hints
