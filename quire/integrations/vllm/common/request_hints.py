"""Request hints: which session one of vLLM's requests belongs to, and when its text comes back. Knows no cache.

    kv_transfer_params["quire"]     "session", "back": what the caller says counts first
    Request.session_id              the session, where vLLM has such a field
    Request.kv_hints                an envelope of actions, from vLLM 0.33 on: "quire.hint" with the same two keys;
                                    "kv.retain" with priority 0 for the whole text releases it: never
    how it finished                 stop: later; length, abort and errors: not known

Fields that a version does not have count as absent, and invalid ones are logged and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from quire.core.records.errors import InputError, shown
from quire.core.records.hint_words import Back, check_session, hint_number
from quire.integrations.vllm.common.request_identity import EngineRequest, params_of

log = logging.getLogger(__name__)
HINT, RETAIN = "quire.hint", "kv.retain"  # types of actions
MOST_ACTIONS = 16  # of one request that are looked at
FINISHES: Mapping[str, Back] = {"stop": "later"}


def session_of(request: EngineRequest) -> str | None:
    """The session that its caller names."""
    if request.kv_transfer_params is not None and (given := params_of(request).get("session")) is not None:
        return _session(request, given)
    for payload in _payloads(request, HINT):
        if payload.get("session") is not None:
            return _session(request, payload["session"])
    given = getattr(request, "session_id", None)
    return None if given is None else _session(request, given)


def _session(request: EngineRequest, given: object) -> str | None:
    try:
        check_session(given, f"request {shown(request.request_id)}")
    except InputError as wrong:
        log.warning("the session is left out: %s", wrong)
        return None
    return str(given)


def back_of(request: EngineRequest) -> Back | None:
    """When the text of a request that is over comes back."""
    if request.kv_transfer_params is not None and (given := params_of(request).get("back")) is not None:
        return _back(request, given)
    for payload in _payloads(request, HINT):
        if payload.get("back") is not None:
            return _back(request, payload["back"])
    if any(_releases(payload) for payload in _payloads(request, RETAIN)):
        return "never"
    return FINISHES.get(finish_of(request) or "")


def finish_of(request: EngineRequest) -> str | None:
    """Why a request that is over ended, in vLLM's word."""
    reason = getattr(request, "get_finished_reason", None)
    name = getattr(reason() if callable(reason) else None, "name", None)
    return name.lower() if isinstance(name, str) else None


def _back(request: EngineRequest, given: Any) -> Back | None:
    try:
        hint_number(given, f"request {shown(request.request_id)}")
    except InputError as wrong:
        log.warning("the hint is left out: %s", wrong)
        return None
    told: Back = given
    return told


def _releases(payload: Mapping[str, Any]) -> bool:
    """Whether it gives up the whole text, and not only a part of it."""
    given = payload.get("directives")
    directives = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return (
        len(directives) == 1
        and directives[0].get("priority") == 0
        and not (directives[0].get("start") or directives[0].get("end") or directives[0].get("covers_output"))
    )


def _payloads(request: EngineRequest, kind: str) -> Iterator[Mapping[str, Any]]:
    """What the actions of a kind say, if the request has any: of the first version, the only one there is."""
    actions = getattr(getattr(request, "kv_hints", None), "actions", None)
    for action in actions[:MOST_ACTIONS] if isinstance(actions, list | tuple) else ():
        payload, version = getattr(action, "payload", None), str(getattr(action, "action_version", "1"))
        if (
            getattr(action, "action_type", None) == kind
            and version.split(".")[0] == "1"
            and isinstance(payload, Mapping)
        ):
            yield payload
