"""TokenDeadline: when a first token is wanted, as a caller says it. Checks it; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.records.errors import InputError, say, shown
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.setup.submission import Away
from quire.engine.step.runs.page_hints import PageHintOptions

LONGEST = 3600.0  # seconds


class TokenDeadline(NamedTuple):
    """So many seconds after it was asked for, on the engine's clock."""

    seconds: float
    asked: float | None = None  # None: when it is submitted


class SubmitOptions(PageHintOptions, total=False):
    """What `submit` takes besides: of a prompt's pages, and when its first token is wanted."""

    ttft: float | TokenDeadline | None


def checked_first_token(given: object) -> TokenDeadline | None:
    """The same, if it can be understood."""
    if given is None:
        return None
    seconds, asked = given if isinstance(given, TokenDeadline) else (given, None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST:
        fact = f"it is not a time to a first token: seconds above 0, at most {LONGEST:g}"
        raise InputError(say(f"ttft={shown(seconds)}", fact, "give such a number, as 2.0, or None"))
    return TokenDeadline(float(seconds), asked)


def wanted_first_token(
    options: SubmitOptions, config: EngineConfig, begun: Sequence[int] | Away
) -> TokenDeadline | None:
    """Taken out of a submission's options. Where bounds are not kept, or it is made elsewhere, it is refused."""
    wanted = checked_first_token(options.pop("ttft", None))
    if wanted is not None and config.deadlines is None:
        cure = "give EngineConfig(deadlines=0.95) or quire serve --deadlines 0.95, or leave it out"
        raise InputError(say("ttft", "this engine keeps no deadlines", cure))
    if wanted is not None and (isinstance(begun, Away) or len(begun)):
        raise InputError(say("ttft", "its first token is made elsewhere", "ask the engine that computes its prompt"))
    return wanted
