"""Text that leaves the process or is hashed: it can be encoded as UTF-8, or it is refused where it comes in."""

from __future__ import annotations

from quire.core.records.errors import InputError, say


def check_text(text: str, what: str) -> None:
    """Refuse halves of characters (lone surrogates). `what` names the text, which may be a secret: it is not shown."""
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        fact = f"character {wrong.start} of it is half of a pair, which UTF-8 cannot encode"
        raise InputError(say(what, fact, "write whole characters")) from None


def is_text(value: object) -> bool:
    """Whether UTF-8 can encode it, if it is a string."""
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
