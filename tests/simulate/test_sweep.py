"""A sweep: every combination, the same wherever it runs, and never above the offline optimum."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pytest

import quire.simulate.play.sweep as sweeping
from quire import InputError
from quire.cli import main as cli
from quire.cli.simulate.sweep_command import spread
from quire.simulate.play.sweep import (
    LocalExecutor,
    Sweep,
    TraceSource,
    _process_pool,
    find_optima,
    optimum_size,
    run_one,
    sweep,
)
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show import curves
from tests.effort import slow
from tests.engine.threads import Crew
from tests.simulate.test_replay_counts import some_asks, some_settings
from tests.simulate.test_replay_page import check_alone
from tests.trace.test_replay_trace import written
from tests.waits import PATIENCE

# a shell, or nohup, may have said no
HEAR = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
)
RUN = "import sys; from quire.cli.main import main; sys.exit(main(sys.argv[1:]))"
EVICTIONS: tuple[Literal["lru", "release_order"], ...] = ("lru", "release_order")
TIMED = ("requests_per_second", "wall_requests_per_second", "cache_seconds", "wall_seconds")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Forty requests of several users that ask again and again."""
    draw = random.Random(7)
    lines, blocks, names = [], {user: [user] for user in range(6)}, iter(range(100, 10_000))
    for at in range(40):
        user = draw.randrange(6)
        blocks[user] += [next(names) for _ in range(draw.randrange(1, 3))]
        ids = blocks[user][:8]
        length = 512 * (len(ids) - 1) + draw.randrange(1, 513)
        lines.append({"timestamp": 200 * at, "input_length": length, "output_length": 4, "hash_ids": ids})
    path = tmp_path / "users.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def grid_of(*sizes: int, **changes: Any) -> list[ReplaySettings]:
    base = replace(ReplaySettings(block_size=512, decode_stride=8), **changes)
    page = 512 * 32 * 2 * 8 * 128 * 2  # bytes of a block of the default shape
    return [base.with_memory("device", size * page).with_memory("host", 0) for size in sizes]


def counted(found: Sweep) -> list[dict[str, Any]]:
    """Everything but how long it took."""
    points: list[dict[str, Any]] = found.to_json()["points"]
    return [{name: value for name, value in point.items() if name not in TIMED} for point in points]


@pytest.mark.parametrize("partial", [True, False])
def test_no_replay_beats_the_optimum_and_memory_pays(trace: str, partial: bool) -> None:
    found = sweep(trace, grid_of(12, 24, 400, partial_reuse=partial), executor=LocalExecutor())
    rates = [point.result["hit_rate_of_trace"] for point in found.points]
    optima = [point.optimum for point in found.points if point.optimum is not None]
    assert rates == sorted(rates) and rates[0] < rates[-1] and len(optima) == 3
    assert all(rate <= best <= (found.unlimited or 0) for rate, best in zip(rates, optima, strict=True))
    assert found.unlimited == optima[-1] > 0.3
    assert all(point.result["broken_promises"] == 0 for point in found.points)


@pytest.mark.filterwarnings("ignore::quire.ConfigWarning")
def test_no_shape_tier_or_granularity_beats_the_optimum(tmp_path: Path) -> None:
    """In the order of the trace, with nothing decoded: the optimum bounds every shape, tier and size of block."""
    near = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        path = str(written(tmp_path, *some_asks(rng, 25, int(rng.choice([0, 15, 300])))))
        settings = replace(some_settings(rng), prefill_only=True, eviction=EVICTIONS[int(rng.integers(2))])
        size = optimum_size(settings)
        assert size is not None and (size.unit == 1) == (settings.partial_reuse and settings.shape != "qwen3-next-like")
        sweeping._trace.cache_clear()  # another trace of the same name
        found = sweep(path, [settings], executor=LocalExecutor())
        (point,) = found.points
        assert not point.error and point.optimum is not None
        assert point.result["hit_rate_of_trace"] <= point.optimum + 1e-12 <= (found.unlimited or 0) + 1e-11, seed
        near += point.result["hit_rate_of_trace"] > 0.9 * point.optimum > 0
    sweeping._trace.cache_clear()
    assert near > 3  # the bound is not an empty one


def test_the_work_and_its_records_travel(trace: str) -> None:
    source, settings = TraceSource(trace, limit=10), grid_of(24)[0]
    work, where, how = pickle.loads(pickle.dumps((run_one, source, settings)))
    assert json.dumps(work(where, how)) and how == settings
    assert pickle.loads(pickle.dumps(find_optima))(where, 512, (24,))[24] > 0


def test_any_executor_gives_the_same(trace: str) -> None:
    grid = grid_of(12, 24)
    here = sweep(trace, grid, executor=LocalExecutor())
    with ThreadPoolExecutor(2) as threads:
        assert counted(sweep(trace, grid, executor=threads)) == counted(here)
    done: list[int] = []
    assert counted(sweep(trace, grid, workers=2, tell=done.append)) == counted(here)  # processes of its own
    assert done == [1, 1]


def test_an_old_keyword_works_and_warns(trace: str) -> None:
    seen, old = list[ReplaySettings](), {"told": lambda asked, found: seen.append(asked)}
    with pytest.warns(DeprecationWarning, match=r"sweep\(told=\.\.\.\) is called on_result since 0\.2"):
        found = sweep(trace, grid_of(12, 24), executor=LocalExecutor(), **old)  # type: ignore[arg-type]
    assert seen == [point.settings for point in found.points]
    with pytest.raises(TypeError, match="told"):  # both: there is no saying which is meant
        sweep(trace, grid_of(12), on_result=None, **old)  # type: ignore[arg-type]


def test_ctrl_c_ends_the_processes_without_a_word_and_starts_no_more(trace: str) -> None:
    with _process_pool(2) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_DFL
    told = []

    def interrupted(more: int) -> None:
        told.append(more)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(trace, grid_of(*[24] * 30), workers=2, tell=interrupted)
    assert told == [1]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", slow("SIGHUP"), "SIGKILL"])
def test_no_process_outlives_the_sweep(trace: str, tmp_path: Path, how: str) -> None:
    """The trace is a pipe, new for each reader: a worker that has opened it waits there, at work, until it is ended."""
    pipe, text = tmp_path / "pipe", Path(trace).read_bytes()
    os.mkfifo(pipe)

    def serve(whole: bool) -> IO[bytes]:
        file = pipe.open("wb", buffering=0)  # somebody has come to read
        pipe.unlink()
        os.mkfifo(pipe)
        file.write(text if whole else text[:10])
        return file

    options = ["--workers", "2", "--device", "4GB,8GB", "--host", "0"]
    command = [sys.executable, "-c", HEAR + RUN, "sweep", str(pipe), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            with Crew() as crew:
                for _ in range(2):  # the command looks at the trace, and so does the sweep
                    crew.start(serve, True).result(PATIENCE).close()
                with crew.start(serve, False).result(PATIENCE):
                    process.send_signal(getattr(signal, how))
                    crew.start(process.communicate).result(PATIENCE)  # its output ends when nobody has it any more
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    told = {"SIGINT": 130, "SIGTERM": 143}  # in one line, as a shell says it
    assert process.returncode == told.get(how, -getattr(signal, how))


def test_a_dask_cluster_runs_the_same_sweep(trace: str, tmp_path: Path) -> None:
    """On loopback, in processes of its own, so that everything is sent; in a fresh interpreter, which it may leave."""
    pytest.importorskip("distributed", reason="a sweep on a Dask cluster needs the extra sweep")
    script = tmp_path / "on_dask.py"
    script.write_text(
        "import json, sys\n"
        "from dask.distributed import Client, LocalCluster\n"
        "from quire.simulate.play.sweep import LocalExecutor, sweep\n"
        "from tests.simulate.test_sweep import counted, grid_of\n"
        "if __name__ == '__main__':\n"
        "    grid = grid_of(12, 24)\n"
        "    own = dict(host='127.0.0.1', n_workers=1, threads_per_worker=1, dashboard_address=None)\n"
        "    with LocalCluster(**own) as cluster:\n"
        "        with Client(cluster) as client:\n"
        "            far = counted(sweep(sys.argv[1], grid, executor=client.get_executor()))\n"
        "    print(far == counted(sweep(sys.argv[1], grid, executor=LocalExecutor())), len(far))\n"
    )
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    ran = subprocess.run([sys.executable, str(script), trace], capture_output=True, text=True, timeout=240, env=paths)
    assert ran.stdout.split() == ["True", "2"], ran.stderr


def test_a_combination_that_cannot_run_says_why(trace: str) -> None:
    found = sweep(trace, [*grid_of(24), grid_of(24)[0].with_memory("device", 1)], executor=LocalExecutor())
    assert not found.points[0].error and "it holds no page" in found.points[1].error
    assert (
        "did not run" in curves.rows(found)[1][1] and "it holds no page" in check_alone(curves.render(found)).words[""]
    )
    assert found.to_json()["points"][1]["error"] == found.points[1].error
    with pytest.raises(InputError, match="nothing to run"):
        sweep(trace, [])


def test_one_bad_combination_is_a_row_and_the_others_run(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """More pages than there can be, a shape that is none, a longest part of no tokens."""
    far = grid_of(24)[0].with_memory("device", 10**18)
    bad = [replace(far, block_size=1), *grid_of(24, shape="gpt-9"), *grid_of(24, max_chunk=0)]
    found = sweep(trace, [*bad, *grid_of(24)], executor=LocalExecutor())
    reasons = ["the most that can be replayed", "the presets are", "max_chunk 0: it must be a whole number", ""]
    assert all(reason in point.error for point, reason in zip(found.points, reasons, strict=True))
    assert not found.points[-1].error and found.points[-1].optimum is not None and found.points[1].optimum is None
    assert sum("did not run" in line for line in curves.rows(found)[1]) == 3
    assert all(reason in check_alone(curves.render(found)).words[""] for reason in reasons)
    words = ["sweep", trace, "--workers", "1", "--host", "0", "--shape"]
    assert cli.main([*words, "gpt-9,llama-3-8b"]) == 0 and "Did not run: shape 'gpt-9'" in capsys.readouterr().out
    assert cli.main([*words, "gpt-9"]) == 2


@pytest.mark.filterwarnings("error::quire.ConfigWarning")
def test_what_was_skipped_and_warned_of_stands_under_the_table(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path(trace).open("a") as file:
        file.write("nonsense\n")
    words = ["sweep", trace, "--workers", "1", "--skip-bad", "--shape", "gemma-3-like", "--max-chunk", "256"]
    words += ["--device-blocks", "9000,40"]
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert "1 lines of the trace were broken and skipped." in told.out
    assert told.err.startswith("quire sweep: 1 of 1: ") and told.err.count("\n") == 1  # a line per combination in a log
    assert "Note: group 'local' (window 1024)" in told.out
    assert cli.main([*words, "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["skipped_lines"] == 1 and len(point["notes"]) == 1


def test_models_without_full_attention_have_no_optimum(tmp_path: Path, trace: str) -> None:
    shape = tmp_path / "windows.toml"
    shape.write_text('name = "w"\n[[group]]\nname = "local"\nbytes_per_token = 1000\nwindow = 1024\n')
    settings = replace(grid_of(24)[0], shape=str(shape))
    assert optimum_size(settings) is None and optimum_size(grid_of(24)[0]) == (1, 24 * 512)
    assert optimum_size(grid_of(24, partial_reuse=False)[0]) == (512, 24)
    found = sweep(trace, [settings], executor=LocalExecutor())
    assert found.unlimited is None and found.points[0].optimum is None and not found.points[0].error
    check_alone(curves.render(found))


def test_a_page_has_a_curve_for_every_policy_and_the_optimum(trace: str) -> None:
    grid = [one for order in ("lru", "release_order") for one in grid_of(12, 24, 400, eviction=order)]
    grid = [one.with_memory("host", 4 * 10**9) for one in grid] + grid
    found = sweep(trace, grid, executor=LocalExecutor())
    seen = check_alone(curves.render(found))
    assert [facts["id"] for tag, facts in seen.tags if tag == "figure"] == ["curve"]
    assert len(seen.paths("curve")) == 2 * 3 and len(seen.paths("dashed")) == 2
    assert all(
        word in seen.words["curve"] for word in ("no host, lru", "host 4 GB, release_order", "optimum", "26.8 GB")
    )
    head, lines = curves.rows(found)
    assert head[:3] == ["host", "device", "eviction"] and len(lines) == 12
    assert head[3:8] == ["hit rate", "optimum", "of optimum", "first token", "tokens"]
    assert [line[0] for line in lines] == ["0 B"] * 6 + ["4 GB"] * 6, "the host axis comes first"
    plot = curves.plot(found)
    assert [len(series.values) for series in plot.series] == [3] * 6 and plot.has_data
    lru, other, bound = plot.series[0], plot.series[1], plot.series[4]
    assert lru.colour == other.colour == bound.colour != plot.series[2].colour and lru.faint and not other.faint


def test_the_command_line_spreads_over_the_axes() -> None:
    words = [
        "t",
        "--device",
        "8GB,16GB",
        "--host=0,1GB",
        "--retain",
        "0:5:80",
        "--admission",
        "two-phase,one-at-a-time",
    ]
    spreads = spread(words)
    first = ["t", "--device", "8GB", "--host=0", "--retain", "0:5:80", "--admission", "two-phase"]
    assert len(spreads) == 8 and spreads[0] == first
    assert spreads[-1][2:4] == ["16GB", "--host=1GB"]


def test_the_command_runs(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "sweep.html"
    words = ["sweep", trace, "--block-size", "512", "--device", "2GB,4GB", "--host", "0", "--workers", "1"]
    words += ["--admission", "two-phase,one-at-a-time", "--html", str(html)]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "of optimum" in told and "one at a time" in told and f"page: {html}" in told
    assert "admission two-phase" in check_alone(html.read_text(encoding="utf-8")).words["curve"]
    assert cli.main([*words[:-2], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["points"]) == 4 and {"hit_rate", "optimum_hit_rate", "settings"} <= set(answer["points"][0])


def test_an_order_that_is_another_by_name_is_replayed_once(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", trace, "--block-size", "512", "--device", "2GB", "--host", "0", "--workers", "1", "--json"]
    assert cli.main([*words, "--eviction", "auto,adaptive,lru", "--shape", "llama-3-8b,gemma-3-like"]) == 0
    told = capsys.readouterr()
    ran = [(one["settings"]["shape"], one["settings"]["eviction"]) for one in json.loads(told.out)["points"]]
    both = [("llama-3-8b", "adaptive"), ("gemma-3-like", "lru"), ("gemma-3-like", "adaptive"), ("llama-3-8b", "lru")]
    assert ran == both
    assert "2 of 6 combinations are others again ('auto' is 'adaptive' for llama-3-8b, 'lru' for gemma-3" in told.err
    assert cli.main([*words, "--eviction", "auto"]) == 0
    told = capsys.readouterr()
    assert "again" not in told.err and json.loads(told.out)["points"][0]["settings"]["eviction"] == "adaptive"


def test_mistakes_on_the_command_line_are_told_before_work(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "no such file"]) == 2
    assert cli.main(["sweep", trace, "--device", "8GB,much"]) == 2
    told = capsys.readouterr().err
    assert "name a readable file" in told and "it is not an amount of memory" in told
    for page in ("/no/such/folder/x.html", str(Path(trace).parent)):
        assert cli.main(["sweep", trace, "--html", page]) == 2
        assert "folder; name a file in" in capsys.readouterr().err
    for wrong in (["--workers", "0"], ["--eviction", "lru,best"]):
        with pytest.raises(SystemExit):
            cli.main(["sweep", trace, *wrong])
