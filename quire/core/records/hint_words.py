"""The words of a hint: when a text is asked for again, and whose session it belongs to.

    soon    the request comes back within seconds: a tool runs
    later   a person has to think first, and may not answer
    never   the session is closed, the job done, the text replaced

A hint is optional, and a wrong one costs little: the order learns which words to believe (docs/orders.md).
`core/cache.py` has the calls that take them: `release`, and `hint`, which `core/outside/hint_stored.py` carries out.
The stores' `hinted_text` decides which blocks they are about. Knows no pages.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from quire.core.records.caller_arguments import nearest
from quire.core.records.errors import InputError, check_text, say, shown

Back = Literal["soon", "later", "never"]
BACKS: Final[tuple[Back, ...]] = get_args(Back)
NO_HINT, SOON, LATER, NEVER = range(4)  # as the stores number them
LONGEST_SESSION = 256  # characters


def hint_number(back: Back | None, ask: str) -> int:
    """The number of a hint; another word is refused, with the word that was probably meant."""
    if back is None:
        return NO_HINT
    if isinstance(back, str) and back in BACKS:
        return 1 + BACKS.index(back)
    words = [*BACKS, "None"]
    cure = nearest(back.lower(), words) if isinstance(back, str) else f"there are {', '.join(words)}"
    raise InputError(say(f"{ask} with back={shown(back)}", "that says not when it comes back", cure))


def check_session(session: object, what: str) -> None:
    """A name that can be written and sent. It is never shown: it may say who a user is."""
    if not isinstance(session, str):
        raise InputError(say(what, f"its session is a {type(session).__name__}", "pass a string, or None"))
    if not 1 <= len(session) <= LONGEST_SESSION:
        fact = f"the name of its session has {len(session)} characters"
        raise InputError(say(what, fact, f"use 1 to {LONGEST_SESSION}, or None"))
    if not session.isascii():
        check_text(session, f"the name of the session of {what}")
