"""trace_remarks: what a reader of a trace's numbers should know: what they cannot show, the memory that reuse takes.

What keeps its prompts from sharing more is said by `quire findings`, of the log it was made of. Reads nothing, prints
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.simulate.show.number_format import count_text, share_text, time_text

Numbers = dict[str, Any]
COARSE = 128  # tokens per block
SOME = 0.05  # of the prompt tokens: worth a word


@dataclass(frozen=True, slots=True)
class TraceRemark:
    """One of them."""

    kind: str
    text: str

    def to_json(self) -> Numbers:
        """For machines."""
        return {"kind": self.kind, "text": self.text}


def remarks(stats: Numbers) -> list[TraceRemark]:
    """Of a trace's numbers (`TraceStats.to_json`)."""
    if not stats["sharing_known"]:
        text = "The trace has lengths only: what its prompts have in common, and so any reuse, cannot be known."
        return [TraceRemark("lengths_only", f"{text} Make one from the prompts themselves.")]
    found = [_interrupted(stats), _coarse(stats), _memory(stats), _cut_off(stats)]
    return [one for one in found if one is not None]


def _interrupted(stats: Numbers) -> TraceRemark | None:
    """Text that was here behind something else."""
    marked = stats["interrupted"]
    if marked is None or marked["share"] < SOME:
        return None
    at = marked["most_at"]
    same = at["requests"] / max(stats["arrivals"]["requests"], 1)
    text = (
        f"At least {share_text(marked['share'])} of the prompt tokens stood in earlier prompts word for word, behind "
        f"something that differs (most often near token {count_text(at['token'])}: in "
        f"{share_text(same)} of the requests): a time, a date or an id, or pieces in another order? "
        "Put what changes behind what stays the same."
    )
    return TraceRemark("interrupted", text)


def _memory(stats: Numbers) -> TraceRemark | None:
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


def _coarse(stats: Numbers) -> TraceRemark | None:
    """Ids of blocks so large that what is equal in part does not show."""
    unit = stats["block_size"]
    if unit is None or unit < COARSE:
        return None
    fact = f"An id stands for {unit} tokens: what prompts share beyond a whole block does not show here"
    return TraceRemark(
        "coarse_ids", f"{fact}. A trace with smaller blocks would show up to {unit - 1} tokens more each."
    )


def _cut_off(stats: Numbers) -> TraceRemark | None:
    if stats["whole"] is not False:
        return None
    return TraceRemark("cut_off", "The trace has no end mark: it was cut, or is still being written.")
