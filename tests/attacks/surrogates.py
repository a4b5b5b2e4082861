"""Halves of characters in every text that a client sends: no thread ends, nothing is a 500, no log shows them.

JSON may say "\\ud800", which is no text that can be written as UTF-8. A server that publishes events is asked with it
as salt and in other fields; it refuses them or answers, and goes on telling routers what it has cached.
"""

from __future__ import annotations

import sys
import time

from .target import Target, Verdict, target

ROUNDS = 12
SECRET = "tenant-secret"
HALF = SECRET + "\\ud800"
FIELDS = ("cache_salt", "user", "request_id", "session_id", "model", "stop", "suffix", "prompt")
LISTS = ("stop", "bad_words")


def bodies() -> list[bytes]:
    """One per field."""
    plain = '"prompt": "Once upon a time there was", "max_tokens": 2'
    made = [f'{{{plain}, "{field}": "{HALF}"}}' for field in FIELDS if field != "prompt"]
    made += [f'{{{plain}, "{field}": ["{HALF}"]}}' for field in LISTS]
    made += [f'{{"prompt": "{HALF}", "max_tokens": 2}}', f'{{{plain}, "{HALF}": 1}}']
    return [body.encode() for body in made]


def attack(server: Target, verdict: Verdict) -> None:
    """Ask, and look whether all goes on."""
    verdict.check("it is ready before", server.ask("GET", "/ready")[0] == 200)
    statuses = [server.ask("POST", "/v1/completions", body)[0] for body in bodies()]
    for nth in range(ROUNDS):  # of as many texts, so that there is something to tell
        body = (
            f'{{"prompt": "{nth} a text of some blocks that nobody has sent", "max_tokens": 2, "cache_salt": "{HALF}"}}'
        )
        statuses.append(server.ask("POST", "/v1/completions", body.encode())[0])
    verdict.note(f"{len(statuses)} requests were answered with {sorted(set(statuses))}")
    verdict.check("each was answered, and none with a 5xx", all(200 <= one < 500 for one in statuses), statuses)
    before = batches(server)
    verdict.check("an honest request is answered", server.complete(prompt="something else of some blocks") == 200)
    verdict.check(
        "it is ready and healthy", [server.ask("GET", path)[0] for path in ("/ready", "/health")] == [200, 200]
    )
    numbers = server.numbers()
    up = {name: value for name, value in numbers.items() if name.startswith(("quire:thread_up", "quire:events_up"))}
    verdict.check("all threads are at work", bool(up) and all(up.values()), up)
    verdict.check("routers hear of it", more_batches(server, before))
    verdict.check("no log line shows the salt", SECRET not in server.log)


def batches(server: Target) -> float:
    """How many were told to routers."""
    found = server.numbers().items()
    return sum(value for name, value in found if name.startswith("quire:event_batches_total"))


def more_batches(server: Target, before: float) -> bool:
    """Whether there are more, in a moment."""
    end = time.monotonic() + 10.0
    while batches(server) <= before and time.monotonic() < end:
        time.sleep(0.05)
    return batches(server) > before


def main() -> int:
    """Run it."""
    verdict = Verdict("halves of characters")
    with target("--events", "tcp://127.0.0.1:*") as server:
        attack(server, verdict)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
