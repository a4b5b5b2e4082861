"""Hybrids: models whose layer groups remember differently. A prompt resumes where all of them can.

With the others the only state that was kept lay in tokens that nobody else has, and nothing was ever resumed.
"""

from __future__ import annotations

import pytest

from quire import InputError, Request, Span
from quire.core.store import StoreName
from quire.integrations.vllm.common.cache_groups import layer_group
from tests.integrations.test_vllm_options import MambaSpec, group
from tests.scenarios.conftest import decode, release, start_of, tokens
from tests.scenarios.test_junctions import ask
from tests.scenarios.test_tails import build_talk
from tests.scenarios.test_windows import prefill


def test_vllm_45238_the_only_checkpoint_lay_in_tokens_that_nobody_shares(store: StoreName) -> None:
    """0 % of a shared prompt was reused, and the second turn took twice as long as a cold one.

    70 tokens, 40 of them shared: the second that parts there leaves a state, and the third starts at it.
    """
    cache = build_talk(store)
    for name, first, spans in (
        ("first", 100, [Span(0, 64), Span(64, 70)]),
        ("second", 200, [Span(0, 32), Span(32, 64), Span(64, 70)]),  # no more than a cold one, in one step more
        ("third", 300, [Span(32, 64), Span(64, 70)]),
    ):
        sequence, computed = prefill(cache, ask(name, 40, first))
        assert computed == spans
        release(cache, sequence)


def test_vllm_45238_the_second_turn_of_a_conversation_begins_where_the_first_ended(store: StoreName) -> None:
    """The prompt, the answer and the next question: what was computed before is not computed again."""
    cache = build_talk(store)
    turn, _ = prefill(cache, ask("turn", 40, 100))
    decode(cache, turn, *range(500, 510))
    said = cache.tokens(turn).copy()
    release(cache, turn)
    assert start_of(cache, tokens(said, range(600, 630))) >= 64  # of 110 tokens
    second, spans = prefill(cache, Request("second", tokens(said, range(600, 630))))
    assert spans[0].start >= 64 and sum(span.end - span.start for span in spans) < 50
    release(cache, second)


def test_vllm_45238_under_vllm_such_a_model_is_refused() -> None:
    """vLLM does not give connectors its states as blocks. Refused at start, instead of a cache that never hits."""
    with pytest.raises(InputError, match="recurrent states"):
        layer_group(1, group(MambaSpec(block_size=16, page_size_bytes=1)))
