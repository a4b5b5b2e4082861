"""From the fields of a request to what is known of its pages' future: its session, and when it comes back.

Knows fields and the record, no endpoint. Without a word of the client the finish of the answer decides.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from quire.core.records.errors import say, shown
from quire.core.records.hint_words import BACKS, Back
from quire.core.records.identity import Scope
from quire.core.records.retain import Retention
from quire.engine.step.runs.page_hints import PageHints
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.bodies import GenerationBody

SESSION, BACK = "session_id", "quire_back"  # names in `metadata`


def hints_of(
    body: GenerationBody, scope: Scope, retention: Retention | None, calls_tool: Callable[[str], bool] | None,
    resume_points: tuple[int, ...] = (),
) -> PageHints:  # fmt: skip
    """All of it."""
    return PageHints(retention, session_of(body, scope), back_of(body), calls_tool, resume_points)


def session_of(body: GenerationBody, scope: Scope) -> str | None:
    """The session that a client names, as a digest under its scope: no tenant's is another's, and none is shown.

    `prompt_cache_key` comes last: some clients give one to many conversations with the same beginning.
    """
    given = body.session_id or (body.metadata or {}).get(SESSION) or body.prompt_cache_key
    if not given:
        return None
    return blake2b(given.encode(), digest_size=16, key=blake2b(scope.key, digest_size=32).digest()).hexdigest()


def back_of(body: GenerationBody) -> Back | None:
    """What a client says of its return."""
    given = (body.metadata or {}).get(BACK)
    for back in BACKS:
        if given == back:
            return back
    if given is None:
        return None
    where = f"metadata.{BACK}"
    raise ApiError(400, say(where, f"it is {shown(given)}", f"give one of {', '.join(BACKS)}"), param=where)
