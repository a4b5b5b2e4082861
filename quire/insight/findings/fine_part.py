"""fine_part: the part of a large log in which most text is lost, cut as finely as a small log is.

A large log is cut coarsely, to need bounded memory, and pieces as short as a chunk cannot be told apart any more. Cuts
are by content, so a part needs its tokens only: they are fetched again. What it has behind it in the log is not known
to it: it is several times what a cache holds, and what is older would be gone.
"""

from __future__ import annotations

import numpy as np

from quire.core.content.content_chunks import cut_prompts
from quire.insight.findings.finding import Fetch
from quire.insight.findings.prompt_rows.lost_text import LostText
from quire.insight.findings.prompt_rows.prompt_log import BATCH, PromptLog, dense
from quire.trace.units import Int32, Int64

TOKENS = 12 << 20


def fine_part(log: PromptLog, lost: LostText, fetch: Fetch, tokens: int = TOKENS) -> tuple[slice, dict[int, Int32]]:
    """Which requests, one behind the other, and their tokens."""
    ends = np.cumsum(log.lengths)
    last = np.searchsorted(ends, ends - log.lengths + tokens, side="right")  # of a part that begins with each
    gone = np.concatenate([[0], np.cumsum(lost.lost_tokens)])
    first = int((gone[last] - gone[:-1]).argmax())
    part = slice(first, max(int(last[first]), first + 1))
    found = fetch(range(part.start, part.stop))
    return part, {number - first: found[number] for number in found}


def fine_log(log: PromptLog, part: slice, tokens: dict[int, Int32]) -> PromptLog:
    """The log of this part alone."""
    lengths = log.lengths[part]
    names, sizes, counts = [], [], list[Int64]()
    begin = 0
    while begin < len(lengths):
        end = begin + max(int(np.searchsorted(np.cumsum(lengths[begin:]), BATCH, side="right")), 1)
        some = np.concatenate([tokens[number] for number in range(begin, end)])
        chunks = cut_prompts(some, lengths[begin:end])
        names.append(chunks.names)
        sizes.append(chunks.sizes)
        counts.append(chunks.counts)
        begin = end
    starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return PromptLog(
        dense(np.concatenate(names)), np.concatenate(sizes), starts, log.times[part], lengths, log.scopes[part],
        log.scope_parts[part], log.names[part], log.lines[part], log.name_list, 0,
    )  # fmt: skip
