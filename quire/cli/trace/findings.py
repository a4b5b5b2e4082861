"""Findings: what keeps prompts from sharing more, by the numbers of a trace. Reads nothing, prints nothing.

A trace that was made from prompts brings numbers from before its tokens were gone (differences.py); of others only ids
can be looked at, and the words are more careful.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.simulate.show.number_format import count_text, percent_text, time_text

Numbers = dict[str, Any]
SOME, MANY = 0.05, 0.2  # shares of requests that are worth a word
LEAST_REQUESTS = 20  # fewer say nothing
EQUAL_AFTER = 64  # tokens
COARSE = 128  # tokens per block


@dataclass(frozen=True, slots=True)
class TraceRemark:
    """One reason, and what would help."""

    kind: str
    text: str

    def to_json(self) -> Numbers:
        """For machines."""
        return {"kind": self.kind, "text": self.text}


def findings(stats: Numbers, said: Numbers) -> list[TraceRemark]:
    """Of a trace's numbers (`TraceStats.to_json`) and what it says of itself; the weightiest first."""
    if not stats["sharing_known"]:
        text = "The trace has lengths only: what its prompts have in common, and so any reuse, cannot be known."
        return [TraceRemark("lengths_only", f"{text} Make one from the prompts themselves.")]
    compared = _numbers(_numbers(said.get("end")).get("compared"))
    apart = _scopes(stats, compared)
    found = [_interrupted(compared), apart, None if apart else _nothing_shared(stats), _short(stats)]
    found += [_blocks(stats, compared), _late(stats), _cut_off(stats)]
    return [one for one in found if one is not None]


def _numbers(value: Any) -> Numbers:
    """What a file says may be anything."""
    return value if isinstance(value, dict) else {}


def _number(values: Numbers, name: str) -> float:
    value = values.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if good and value is not None else 0.0


def _interrupted(compared: Numbers) -> TraceRemark | None:
    """A time, a date or an id near the beginning."""
    told = _numbers(compared.get("interrupted"))
    requests, after = _number(compared, "requests"), _number(told, "equal_after")
    if requests < LEAST_REQUESTS or _number(told, "requests") < MANY * requests or after < EQUAL_AFTER:
        return None
    share, place, width = _number(told, "requests") / requests, _number(told, "at_token"), _number(told, "tokens")
    text = (
        f"{percent_text(round(share, 2))} of the prompts differ from another one in about {count_text(max(width, 1))} "
        f"tokens at token {count_text(place)}, and are equal for about {count_text(after)} tokens after that: a time, "
        "a date or an id in the system prompt? Nothing behind it is shared. Put it behind what stays the same."
    )
    return TraceRemark("interrupted_prefix", text)


def _scopes(stats: Numbers, compared: Numbers) -> TraceRemark | None:
    """A salt per request, or models that need not be apart."""
    requests = stats["arrivals"]["requests"]
    told = _numbers(compared.get("equal_in_another_scope"))
    looked = _number(compared, "requests")
    apart = stats["sharing"]["scopes"] > requests / 2
    if looked >= LEAST_REQUESTS and _number(told, "requests") >= MANY * looked:
        tokens = _number(told, "tokens") / max(_number(told, "requests"), 1)
        share = percent_text(round(_number(told, "requests") / looked, 2))
        why = "every request has a scope of its own, a salt per request" if apart else "a salt or a model name"
        text = f"{share} of the prompts equal one of another scope for {count_text(round(tokens))} tokens more: {why}?"
        return TraceRemark("scope_per_request", f"{text} Requests that may share need one scope: a salt per tenant.")
    if apart and requests >= LEAST_REQUESTS:
        fact = f"{count_text(stats['sharing']['scopes'])} scopes for {count_text(requests)} requests"
        return TraceRemark("scope_per_request", f"{fact}: a salt per request? Only requests of one scope can share.")
    return None


def _nothing_shared(stats: Numbers) -> TraceRemark | None:
    """No two prompts begin alike, for a reason that ids do not show."""
    if stats["arrivals"]["requests"] < LEAST_REQUESTS or stats["sharing"]["requests_that_share"] >= 0.01:
        return None
    text = (
        "No two prompts share even their first block. Either they have nothing in common, or something at their very "
        "beginning is different each time: a salt, a time, an id."
    )
    return TraceRemark("nothing_shared", text)


def _short(stats: Numbers) -> TraceRemark | None:
    share, unit = stats["sharing"]["shorter_than_a_block"], stats["block_size"]
    if unit is None or share < SOME:
        return None
    fact = f"{percent_text(round(share, 2))} of the prompts are shorter than one block of {unit} tokens"
    return TraceRemark(
        "short_prompts", f"{fact}: where only whole blocks are shared, nothing of them is. Use smaller ones."
    )


def _blocks(stats: Numbers, compared: Numbers) -> TraceRemark | None:
    """Blocks so large that what is equal in part is lost."""
    unit, tokens = stats["block_size"], _number(compared, "tokens")
    lost = _number(compared, "equal_tokens") - _number(compared, "equal_tokens_in_whole_blocks")
    if unit is not None and tokens and lost >= SOME * tokens:
        fact = f"{percent_text(round(lost / tokens, 2))} of the prompt tokens are equal to others', but inside a block"
        return TraceRemark(
            "large_blocks", f"{fact} of {unit} tokens that is not equal as a whole: smaller blocks share them."
        )
    if unit is not None and not compared and unit >= COARSE:
        fact = f"An id stands for {unit} tokens: what prompts share beyond a whole block does not show here"
        return TraceRemark(
            "coarse_ids", f"{fact}. A trace with smaller blocks would show up to {unit - 1} tokens more each."
        )
    return None


def _late(stats: Numbers) -> TraceRemark | None:
    """Reuse that needs a long memory."""
    reuse = stats["reuse"]
    enough = reuse["tokens_for_90_percent"]
    soon = [(int(edge), share) for edge, share in reuse["share_within_seconds"].items() if edge != "more"]
    when = next((edge for edge, share in soon if share >= 0.9), None)
    if reuse["ceiling"] < 0.01 or enough is None or when is None:
        return None
    text = (
        f"90 % of what can be reused was last used at most {time_text(when)} before, with at most {count_text(enough)} "
        f"tokens used since: an LRU cache must keep about {count_text(enough)} tokens to come near the ceiling (quire "
        "sweep plays it, with requests that overlap and with other orders)."
    )
    return TraceRemark("memory", text)


def _cut_off(stats: Numbers) -> TraceRemark | None:
    if stats["whole"] is not False:
        return None
    return TraceRemark("cut_off", "The trace has no end mark: it was cut, or is still being written.")
