"""Where a first token's time goes: the steps of vLLM until it is there, and of each the time in hooks of the connector.

perf.py --steps prints a line for one prompt of each kind. All runs in one process, so a hook's time is its own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.vllm_gpu.engines import core

HOOKS = (
    "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished", "request_finished_all_groups", "bind_connector_metadata",
    "start_load_kv", "wait_for_save", "get_finished", "build_connector_worker_meta", "handle_preemptions",
    "take_events", "has_pending_push_work",
)  # fmt: skip


class StepTimes:
    """Milliseconds of steps, and of the hooks in them."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.hooks: list[dict[str, float]] = []
        self._now: dict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._now[name] += 1e3 * (time.perf_counter() - began)

        return hook

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def one(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.steps.append(round(1e3 * (time.perf_counter() - began), 2))
                self.hooks.append({name: round(ms, 2) for name, ms in self._now.items() if ms >= 0.05})
                self._now.clear()

        return one


@contextmanager
def step_times(llm: Any) -> Iterator[StepTimes]:
    """Notes all steps inside; hooks are those of both sides of the connector, if there is one."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    times, engine = StepTimes(), llm.llm_engine
    sides = [core(llm).scheduler.connector, get_kv_transfer_group() if has_kv_transfer_group() else None]
    wrapped = [(engine, "step", times.step(engine.step))]
    for side in [one for one in sides if one is not None]:
        wrapped += [(side, name, times.timed(name, getattr(side, name))) for name in HOOKS if hasattr(side, name)]
    for owner, name, function in wrapped:
        setattr(owner, name, function)
    try:
        yield times
    finally:
        for owner, name, _ in wrapped:
            delattr(owner, name)
