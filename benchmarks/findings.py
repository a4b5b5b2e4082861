"""Speed and memory of `quire findings` on a log of token ids, of ten applications of which three have a fault.

    python benchmarks/findings.py                                # 100,000 requests of 2,000 tokens: a file of 1 GB
    python benchmarks/findings.py --requests 1000000 --tokens 200

Application 0 writes a time into its system prompt, 1 sends a salt with each request, 2 writes its tools in any order;
the others are as they should be. Says what was found, and what the command took.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

APPLICATIONS, TALKS, TURN, MOST_TURNS, TOOLS = 10, 200, 45, 20, 8


class App:
    """Prompts of one application, as text of token ids."""

    def __init__(self, number: int, tokens: int, seed: int) -> None:
        self._random = random.Random(seed * 100 + number)
        self._number = number
        self._turn = max(4, TURN * tokens // 2000)
        self._system = self._words(tokens // 5)
        self._tools = [self._words(tokens // 20) for _ in range(TOOLS)]
        self._talks: list[list[str]] = [[] for _ in range(TALKS)]

    def _words(self, count: int) -> str:
        return ",".join(str(self._random.randrange(1000, 120_000)) for _ in range(count))

    def prompt(self, second: int) -> str:
        """The next one."""
        talk = self._random.choice(self._talks)
        if len(talk) >= MOST_TURNS:
            talk.clear()
        talk.append(self._words(self._turn + (self._turn if talk else 0)))  # with the answer before it
        tools = list(self._tools)
        if self._number == 2:
            self._random.shuffle(tools)
        half = len(self._system) // 2
        cut = self._system.index(",", half)
        clock = f",{second // 60 % 60 + 7},{second % 60 + 100}" if self._number == 0 else ""
        return ",".join([self._system[:cut] + clock + self._system[cut:], *tools, *talk])


def lines(requests: int, tokens: int, seed: int) -> Iterator[str]:
    """The log."""
    apps = [App(number, tokens, seed) for number in range(APPLICATIONS)]
    dice = random.Random(seed)
    for number in range(requests):
        which = dice.randrange(APPLICATIONS)
        salt = f',"cache_salt":"r{number}"' if which == 1 else ""
        yield f'{{"time":{1_790_000_000 + number / 20},"prompt":[{apps[which].prompt(number)}]{salt}}}\n'


def main() -> int:
    """Write, run, tell."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2000, help="of a prompt, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", metavar="FILE", help="write the log here, or read it if it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(options.keep or Path(folder) / "log.jsonl")
        if not log.exists():
            with log.open("w", encoding="ascii") as file:
                file.writelines(lines(options.requests, options.tokens, options.seed))
        begin = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "quire.cli", "findings", str(log), "--json"], stdout=subprocess.PIPE
        )
        wall = time.perf_counter() - begin
        size = log.stat().st_size
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        return ran.returncode
    told = json.loads(ran.stdout)
    mean = told["prompt_tokens"] / told["requests"]
    print(f"{told['requests']:,} requests of {mean:,.0f} tokens in the mean, {size / 1e9:.2f} GB")
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{seconds:.0f} s of processor time, {wall:.0f} s by the wall, {memory:.0f} MB")
    for one in told["findings"]:
        gain = f"{one['before']:.1%} -> {one['after']:.1%}"
        print(f"{one['kind']} at token {one['token']}: {gain}, {one['requests']:.1%} of all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
