"""What the cases share: the acts of one request in the toy engine, with its bytes. Knows no case."""

from __future__ import annotations

from quire.integrations.vllm.common.worker_orders import StepOrders, WorkerReport
from tests.integrations.test_vllm_contract import PROMPT, ask, kept
from tests.integrations.toy_engine import ToyEngine, frozen
from tests.integrations.toy_parts import SIZE, ToyRequest

__all__ = ["PROMPT", "ask", "begin", "carry_out", "kept", "load", "placed", "right", "serve"]


def placed(engine: ToyEngine, request: ToyRequest, first: int, gain: int) -> None:
    """vLLM gives it the blocks from `first` on; `gain` tokens of them are to be loaded."""
    request.tables = [list(range(first, first + 1 + request.num_tokens // SIZE)) for _ in engine.kv_groups]
    engine.side.place(request, request.tables, gain)
    request.num_computed_tokens = gain


def begin(engine: ToyEngine, request: ToyRequest, first: int = 1) -> StepOrders:
    """It is computed in one step, in the blocks from `first` on; the orders are not carried out yet."""
    engine.texts.append(request)
    assert engine.side.look(request, 0) == 0
    placed(engine, request, first, 0)
    tables = frozen(request)
    orders = engine.side.order({request.request_id: request.num_tokens}, (), lambda _: tables, tables[0])
    for worker in engine.workers:
        worker.flush(orders)
    engine.fill(request, tables, 0, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    return orders


def carry_out(engine: ToyEngine, orders: StepOrders) -> set[str]:
    """The workers run the orders and report; returns the requests whose load failed."""
    report: WorkerReport | None = None
    failed: set[str] = set()
    for worker in engine.workers:
        worker.start_loads(orders)
        worker.run_stores(orders)
        failed |= worker.received().failed
        told = worker.report()
        report = told if report is None or told is None else report.aggregate(told)
    engine.side.hear(report)
    return failed


def serve(engine: ToyEngine, request: ToyRequest, first: int = 1) -> None:
    """From its first look to its end."""
    carry_out(engine, begin(engine, request, first))
    engine.side.finish(request)


def load(engine: ToyEngine, request: ToyRequest, gain: int, first: int = 20) -> set[str]:
    """Load its pages into the blocks from `first` on; returns the requests whose load failed."""
    placed(engine, request, first, gain)
    return carry_out(engine, engine.side.order({}, (), lambda _: request.tables))


def right(engine: ToyEngine, request: ToyRequest, tokens: int) -> bool:
    """What was loaded for it has the bytes of its text."""
    for block in range(tokens // SIZE):
        engine.expect(request, request.tables, block, "loaded")
    return True
