"""What all tests share: each store in turn, and an environment that is the same everywhere."""

from __future__ import annotations

import gc
import importlib
import os
from bisect import bisect
from collections.abc import Generator
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import settings

from quire.core.store import StoreName
from tests import second_look
from tests.skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401  # hooks

HERE = Path(__file__).parent
# Helper modules assert as tests do, with the values in the message, and under `python -O` too.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in HERE.iterdir() if path.is_dir()))
# Before torch comes, and for the processes that tests start: they run beside each other, and their models are tiny.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():  # no GPU: Triton, which reads this when it is imported, interprets its kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")
# By itself Hypothesis fails a test one of whose examples takes 200 ms: of a busy machine that says nothing.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")
for name in (
    "PYTHONWARNINGS",
    "QUIRE_SECRET",
    "QUIRE_API_KEYS",
    "QUIRE_VIEWER_KEY",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
):
    os.environ.pop(name, None)  # what the person who runs them has set for themselves

# A file's tests stay in one process: those that take longest begin first, or the others would wait for them at the end.
LONGEST = (
    "cli/test_chat.py", "engine/test_exact.py", "test_docs.py", "cli/test_prefill.py", "fuzz/test_driver.py",
    "engine/runner/test_engine.py", "cli/test_benchmarks.py", "engine/step/test_schedule.py", "engine/test_llm.py",
    "test_optimized.py", "transfer/test_killed.py", "engine/model/kernels/test_prompt.py", "core/store/test_runs.py",
    "engine/loop/test_streams.py", "engine/loop/test_loop_faults.py", "simulate/test_pages_in_browser.py",
    "engine/model/kernels/test_decoding.py", "engine/runner/test_steps_in_flight.py", "insight/test_precision.py",
    "cli/test_cli.py", "simulate/test_sweep.py", "engine/test_corrupt.py", "core/test_transitions.py",
    "core/store/test_ghost_memory.py", "engine/step/test_setbacks.py", "engine/memory/test_shared.py",
    "tiers/disk/test_hanging.py", "engine/step/test_fair.py", "tiers/disk/test_crash.py", "trace/test_trace_stats.py",
    "engine/disagg/test_peer.py", "engine/disagg/test_staged_peer.py", "insight/test_findings.py",
    "core/store/test_ghosts.py", "fuzz/test_lists.py", "trace/test_reuse_distance.py", "serve/test_openapi.py",
    "core/state/test_learner.py", "engine/structured_outputs/test_grammar.py", "fleet/test_fleet.py",
    "engine/memory/test_connector.py", "integrations/test_vllm_outer.py", "engine/model/test_cross.py",
    "viewer/test_page.py", "fleet/test_fleet_page.py", "tiers/shared/test_mooncake_store.py",
    "core/admission/test_gains.py", "insight/test_sampling.py", "events/test_state_machine.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """The names of what failed are kept for a second look."""
    config.pluginmanager.register(second_look, "second_look")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every worker reads the folders from another one on: in a fresh tree each then rewrites the asserts of its part,
    which takes longer than all else here, and finds the rest done."""
    report = yield
    if (
        collector.path == HERE
        and isinstance(collector, pytest.Directory)
        and (worker := os.environ.get("PYTEST_XDIST_WORKER"))
    ):
        number, workers = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        sizes = [len(list(child.path.rglob("*.py"))) or 1 for child in report.result]
        first = bisect(list(accumulate(sizes)), sum(sizes) * number // workers)
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the rest by their names; tests within a file as they were found."""
    place = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path, len(place)), item.path))


def pytest_collection_finish() -> None:
    """What was imported stays, and tests make little garbage: fewer collections save a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(params=["twin", "compiled"])
def store(request: pytest.FixtureRequest) -> StoreName:
    """Each store in turn; QUIRE_REQUIRE_COMPILED=1 turns a missing compiled one into a failure."""
    if request.param == "compiled" and os.environ.get("QUIRE_REQUIRE_COMPILED") != "1":
        try:
            importlib.import_module("quire.core.store._compiled")
        except ImportError as missing:
            pytest.skip(f"the compiled store is not built: {missing}")
    name: StoreName = request.param
    return name
