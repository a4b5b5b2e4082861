"""A cache's claims and refusals in plain data. Knows no oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzzing.world.plain import Blocks, ClaimFacts, Closing, ReceiptFacts, RefusalFacts
from quire import Claim, Refusal, Span
from quire.core.state.claim import promise_of


def refusal_facts(refused: Sequence[Refusal]) -> tuple[RefusalFacts, ...]:
    """Who stays out, and what he lacks."""
    return tuple(
        (str(item.request.id), item.reason, item.need, item.have, item.never, -1 if item.group is None else item.group)
        for item in refused
    )


def runs(spans: Sequence[Span]) -> Blocks:
    """Spans as pairs."""
    return tuple((span.start, span.end) for span in spans)


def claim_facts(claim: Claim, receipt: ReceiptFacts | None) -> ClaimFacts:
    """What a claim promises."""
    return ClaimFacts(
        str(claim.request.id), claim.start, promise_of(claim).hit.blocks, claim.onboards, claim.slots_needed,
        tuple(map(runs, claim.spans)), tuple(map(runs, claim.wanted_blocks)),
        receipt, claim.coming, claim.coming_pages, claim.junction or 0,
    )  # fmt: skip


def firm(answer: Any) -> Any:
    """An answer without what is free to differ."""
    return answer.firm() if isinstance(answer, Closing) else answer
