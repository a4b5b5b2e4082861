"""Hybrids: models whose layer groups remember differently. A prompt resumes where all of them can.

With the others the only state that was kept lay in tokens that nobody else has, and nothing was ever resumed.
"""

from __future__ import annotations

from quire import Request, Span
from quire.core.store import StoreName
from quire.integrations.vllm.requests.state_tables import StateOffer
from tests.integrations.states.state_engine import StateEngine
from tests.integrations.toy_parts import ToyRequest
from tests.museum.toys import carry_out
from tests.scenarios.conftest import decode, release, start_of, tokens
from tests.scenarios.groups.test_junctions import ask
from tests.scenarios.groups.test_tails import build_talk
from tests.scenarios.groups.test_windows import prefill


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


def test_vllm_45238_under_vllm_the_second_turn_begins_at_the_last_state_that_vllm_kept() -> None:
    """vLLM keeps states at the ends of some blocks. With the connector all of them stay, for others and for later."""
    engine, turn = StateEngine(0), ToyRequest("turn", list(range(18)), 18)
    serve_states(engine, turn, [0, 0, 0, 7, 8], [(1, 7, 16)])
    later = ToyRequest("later", [*range(18), *range(30, 40)], 28)
    assert engine.side.look(later, 0) == 16
    engine.side.finish(later)
    other = ToyRequest("other", [*range(14), *range(40, 50)], 24)  # the states before 16 were not kept by vLLM
    assert engine.side.look(other, 0) == 0
    engine.side.finish(other)
    engine.nothing_is_held()


def serve_states(engine: StateEngine, request: ToyRequest, states: list[int], offers: list[StateOffer]) -> None:
    """It is computed in one step, in which vLLM names these states."""
    assert engine.side.look(request, 0) == 0
    request.tables = [list(range(1, 1 + len(states))), states]
    engine.side.place(request, request.tables, 0)
    scheduled = {request.request_id: request.num_tokens}
    orders = engine.side.order(scheduled, (), lambda _: request.tables, (), {request.request_id: offers})
    carry_out(engine, orders)
    engine.side.finish(request)
