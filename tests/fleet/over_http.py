"""`quire serve --replicas 2` as users and operators meet it, by hand: `python -m tests.fleet.over_http`. Needs `ray`.

    plain     the openai client: a stream is the whole answer, usage has cached tokens
    page      / shows both workers as EXACT, over events with CURVE keys; each one's own view is there
    kill      SIGKILL of a replica with 8 streams under way: all end, with the texts they would have had
    hangup    SIGHUP under load: nothing fails, other replicas answer
    end       SIGTERM: it ends with 0 and leaves no process behind

Every check prints what it found; it ends with 1 if one is not what it must be.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import zmq.auth

from .ray_rig import folder

QUESTION = "What does a lighthouse keeper write into the green book? "
START = 180.0  # seconds for the replicas to come


class FleetProcess:
    """The server in a process of its own, and its replicas' processes."""

    def __init__(self) -> None:
        keys = Path(tempfile.mkdtemp(prefix="quire-fleet-"))
        for name in ("worker", "router"):
            zmq.auth.create_certificates(keys, name)
        pairs = {name: [f"{keys}/{name}.key_secret", f"{keys}/{name}.key"] for name in ("worker", "router")}
        words = [
            sys.executable,
            "-m",
            "quire.cli.main",
            "serve",
            "--replicas",
            "2",
            "--model",
            folder(),
            "--port",
            "0",
        ]
        words += ["--device-memory", "1MiB", "--max-length", "500", "--grace", "20"]
        words += ["--worker-keys", *pairs["worker"], "--router-keys", *pairs["router"]]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http"), self.process.stderr.read() if self.process.stderr else ""
        self.client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=20) as reply:
            data = reply.read()
        return json.loads(data) if data[:1] == b"{" else data.decode()

    def metric(self, name: str) -> float:
        lines: list[str] = self.get("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def replicas(self) -> list[int]:
        """Processes of replicas that descend from ours."""
        parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
        found = []
        for process in parents:
            above = process
            while above in parents and above != self.process.pid:
                above = parents[above]
            if above == self.process.pid and "ServeReplica" in _words(process):
                found.append(process)
        return found

    async def answer(self, nth: int, tokens: int = 120, stream: bool = True) -> str:
        asked: dict[str, Any] = {
            "model": self.client_model, "messages": [{"role": "user", "content": f"{nth} {QUESTION}"}],
            "max_tokens": tokens, "temperature": float(nth % 2), "seed": nth, "extra_body": {"ignore_eos": True},
        }  # fmt: skip
        if not stream:
            whole = await self.client.chat.completions.create(**asked)
            return whole.choices[0].message.content or ""
        text = ""
        async for event in await self.client.chat.completions.create(stream=True, **asked):
            text += (event.choices[0].delta.content or "") if event.choices else ""
        return text

    @property
    def client_model(self) -> str:
        return str(self.get("/v1/models")["data"][0]["id"])


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0  # it is gone


def _words(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


async def plain(fleet: FleetProcess) -> bool:
    whole, streamed = await fleet.answer(1, stream=False), await fleet.answer(1)
    asked = [{"role": "user", "content": QUESTION}]
    again = [
        await fleet.client.chat.completions.create(model=fleet.client_model, messages=asked, max_tokens=4)  # type: ignore[arg-type]
        for _ in range(2)
    ]
    details = again[1].usage.prompt_tokens_details if again[1].usage else None
    cached = details.cached_tokens if details else 0
    print(f"stream equals plain: {whole == streamed}, {len(whole)} characters; cached tokens of the second: {cached}")
    return whole == streamed and bool(whole) and bool(cached)


async def page(fleet: FleetProcess) -> bool:
    told, workers = fleet.get("/viewer/workers"), fleet.get("/viewer/workers")["workers"]
    views = [fleet.get(f"/viewer/snapshot?colour=state&worker={one['worker']}")["name"] for one in workers]
    print(f"workers: {[(one['worker'], one['status'], one['brief'] is not None) for one in workers]}, views {views}")
    print(f"totals: {told['totals']}")
    is_there = "all workers" in fleet.get("/")
    exact = [one["status"] for one in workers] == ["EXACT"] * 2 and all(one["brief"] for one in workers)
    return is_there and exact and views == [one["worker"] for one in workers]


async def kill(fleet: FleetProcess) -> bool:
    before = [await fleet.answer(nth, 300) for nth in range(8)]
    tasks = [asyncio.ensure_future(fleet.answer(nth, 300)) for nth in range(8)]
    while fleet.metric("quire:fleet_in_flight{") < 8:
        await asyncio.sleep(0.05)
    os.kill(fleet.replicas()[0], signal.SIGKILL)
    got = await asyncio.gather(*tasks, return_exceptions=True)
    equal = sum(one == was for one, was in zip(got, before, strict=True))
    lost, resumed = fleet.metric("quire:fleet_lost_total"), fleet.metric("quire:fleet_resumed_total")
    print(f"SIGKILL: {equal} of 8 equal, {lost:g} lost their replica, {resumed:g} went on in mid-stream")
    print([one for one in got if not isinstance(one, str)], "in flight:", fleet.metric("quire:fleet_in_flight{"))
    return equal == 8 and lost >= 1 and fleet.metric("quire:fleet_in_flight{") == 0


async def hangup(fleet: FleetProcess) -> bool:
    began = time.monotonic()
    while (
        len(fleet.replicas()) < 2 or [one["status"] for one in fleet.get("/viewer/workers")["workers"]] != ["EXACT"] * 2
    ):
        assert time.monotonic() - began < START, "the replica that was killed has no successor"
        await asyncio.sleep(0.5)
    before, failed, served = set(fleet.replicas()), list[Exception](), 0
    fleet.process.send_signal(signal.SIGHUP)
    while time.monotonic() - began < START and before & set(fleet.replicas()):
        got = await asyncio.gather(*(fleet.answer(nth, 20) for nth in range(4)), return_exceptions=True)
        failed += [one for one in got if isinstance(one, Exception)]
        served += sum(isinstance(one, str) for one in got)
    over = not before & set(fleet.replicas())
    print(f"SIGHUP: {served} served, {len(failed)} failed {failed[:2]}; all replicas are other ones: {over}")
    return over and not failed and served > 0


async def end(fleet: FleetProcess) -> bool:
    await fleet.client.close()
    last = fleet.replicas()
    fleet.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(fleet.process.wait, 60)
    left = [process for process in last if "ServeReplica" in _words(process)]
    print(f"SIGTERM: ended with {code}, replicas left: {left}")
    return code == 0 and not left


CHECKS: tuple[Callable[[FleetProcess], Awaitable[bool]], ...] = (plain, page, kill, hangup, end)


async def checked() -> list[str]:
    fleet, bad = FleetProcess(), list[str]()
    print(f"{fleet.url} is there", flush=True)
    try:
        for check in CHECKS:
            print(f"-- {getattr(check, '__name__', '')}", flush=True)
            if not await check(fleet):
                bad.append(getattr(check, "__name__", ""))
    finally:
        if fleet.process.poll() is None:
            fleet.process.terminate()
            fleet.process.wait(60)
    return bad


def main() -> int:
    bad = asyncio.run(checked())
    print("not as it must be: " + ", ".join(bad) if bad else "all is as it must be")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
