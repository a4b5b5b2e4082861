"""The demo: two requests whose pages lie in host memory, one at a time and together; a real trace; a real model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import numpy as np

from quire import (
    Cache,
    CacheConfig,
    Claim,
    Kind,
    Moved,
    Removed,
    Request,
    Retained,
    Sequence,
    Stored,
    TierConfig,
    check,
)
from quire.cli.demo import demo_model
from quire.cli.simulate import replay_command
from quire.core.store import tell_slow_store
from quire.simulate import ReplaySettings, read_trace, replay

BUDGET = 8
BLOCK = 4
LENGTH = 12  # of the two requests
TIERS = ("device", "host")
_PRESSED = [
    "--block-size=512", "--device-blocks=1000", "--host-blocks=4000", "--batch=32", "--token-budget=0",
    "--prefill-only", "--arrivals=at-once", "--eviction=lru",
]  # fmt: skip
_ON_A_TRACE = """
-- The same on real traffic: 1,000 recorded requests, batches of 32, memory for 1,000 + 4,000 blocks of 512 tokens, the
least recently used goes first --
"""
_OF_AGENTS = """
-- Agents ask again and again with all they have said: 1,000 recorded requests of 36 coding sessions --
"""


def main(argv: list[str] | None = None) -> int:
    """Tell the story twice, once with each way of admitting."""
    if argv and argv != ["--no-model"]:
        helped = argv[0] in ("-h", "--help", "--help-all")
        stream = sys.stdout if helped else sys.stderr
        if not helped:
            print(f"quire demo: there is no option {argv[0]}", file=stream)
        print("usage: quire demo [--no-model]    (--no-model: without the part that asks a real one)", file=stream)
        return 0 if helped else 2
    tell_slow_store(print)
    print(_INTRODUCTION)
    apart = _one_at_a_time()
    together = _together()
    print(_verdict(apart, together))
    print(_ON_A_TRACE)
    failed = replay_command.main(["sample", "--compare", *_PRESSED])
    _show_agents()
    if argv != ["--no-model"]:
        failed = demo_model.main() or failed
    print("\nNext: docs/tutorial.md shows this in an engine; docs/walk.md follows one request through the files.")
    print(f"See a cache at work in your browser: {_this_python()} -m quire.viewer")
    return failed if together <= BUDGET < apart else 1


def _show_agents() -> None:
    """What memory is worth where nearly all of a prompt was there before."""
    print(_OF_AGENTS)
    trace = read_trace("sample-agents")
    for host in ("0", "100GB"):
        settings = ReplaySettings(block_size=64, prefill_only=True).with_memory("host", host)
        report = replay(trace, settings, causes=False)
        beside = "alone" if host == "0" else f"and {host} of host memory"
        print(f"   40GB of device memory {beside}: {report.hit_rate:.0%} of the prompt tokens are not computed again")
    print("   quire replay sample-agents shows more; with --hints finish, what it is worth to say how a request ended.")


def _this_python() -> str:
    """What to type for the Python that runs this."""
    near = os.path.relpath(sys.executable)
    return sys.executable if near.startswith("..") else near


_INTRODUCTION = f"""\
Quire in one minute
===================
An LLM server keeps the keys and values (KV) of past prompts in pages of {BLOCK} tokens, so that a new request which
starts with the same tokens need not compute them again. When the device is full, pages wait in host memory.

The scheduler may compute {BUDGET} tokens per step. It asks how much of each waiting request is cached, and picks a
batch that fits. But bringing one request's pages up from the host makes room by pushing others out, and those may be
the very pages that the next request was going to reuse.

The stage: a device with 6 pages, a host with 4. Two chats, A and B, were served and are finished; then a long one, C,
pushed their pages down to the host. Now a follow-up to A and one to B arrive: {LENGTH} tokens each, 8 of them cached.
"""


def _one_at_a_time() -> int:
    print("\n1. As engines do today: estimate first, then admit one request after the other\n")
    stage = Stage()
    requests = stage.follow_ups()
    estimates = [LENGTH - probe.start for probe in stage.cache.probe(requests)]
    print(
        f"   estimate: {estimates[0]} + {estimates[1]} = {sum(estimates)} tokens to compute, budget {BUDGET}: both go"
    )
    total = 0
    for request, estimate in zip(requests, estimates, strict=True):
        batch = stage.cache.add_sequence_batch([request])
        stage.cache.finish(batch.plan)
        (sequence,) = batch.sequences
        stage.show(sequence)
        told = stage.tell()
        tokens = LENGTH - sequence.start
        total += tokens
        wrong = "" if tokens == estimate else "  <-- the estimate was wrong"
        print(f"     to compute: {tokens} tokens, estimated {estimate}{wrong}")
        for line in told:
            print(f"     on the way: {line}")
    check(stage.cache)
    print(f"   the step computes {total} tokens. The budget was {BUDGET}: {'kept' if total <= BUDGET else 'BROKEN'}.")
    return total


def _together() -> int:
    print("\n2. With Quire: hold every reusable page of the whole batch (claim), then move and allocate (admit)\n")
    stage = Stage()
    requests = stage.follow_ups()
    with stage.cache.claim(requests) as claims:
        for claim in claims:
            print(f"   claim: {_promise(claim)}")
        batch = stage.cache.admit(claims, token_budget=BUDGET)
    stage.cache.finish(batch.plan)
    for sequence in batch.sequences:
        stage.show(sequence)
        print(f"     to compute: {len(batch.spans[sequence])} tokens, as promised")
    for line in stage.tell():
        print(f"     on the way: {line}")
    exchanges = batch.plan.count(Kind.EXCHANGE)
    print(f"     {exchanges} pages came up by changing places with pages of C: the host was full of claimed pages")
    check(stage.cache)
    kept = "kept" if batch.num_tokens <= BUDGET else "BROKEN"
    print(f"   the step computes {batch.num_tokens} tokens. The budget was {BUDGET}: {kept}.")
    return batch.num_tokens


def _promise(claim: Claim) -> str:
    return f"{claim.request.id} has {claim.start} tokens cached and now held; it will compute {claim.num_tokens}"


def _verdict(apart: int, together: int) -> str:
    return f"""
Same cache, same requests, same budget of {BUDGET} tokens:
   one at a time   {apart:3} tokens   {"kept" if apart <= BUDGET else "broken"}
   together        {together:3} tokens   {"kept" if together <= BUDGET else "broken"}"""


def _tokens(*spans: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in spans])


class Stage:
    """The cache of the story, and names for its pages, from its own events."""

    def __init__(self) -> None:
        tiers = (TierConfig("device", 6), TierConfig("host", 4))
        self.cache = Cache(CacheConfig(tiers, BLOCK, max_sequences=4, max_length=64, events=True))
        self.names: dict[int, str] = {}
        self.places: dict[int, int] = {}  # page hash -> tier
        for name, span in (("A", (100, 108)), ("B", (200, 208)), ("C", (300, 324))):
            self._serve(Request(name, _tokens(span)))
        self.tell()
        self._print_tiers()

    def _serve(self, request: Request) -> None:
        batch = self.cache.add_sequence_batch([request])
        self.cache.finish(batch.plan)
        (sequence,) = batch.sequences
        self.cache.commit(sequence, len(request.tokens))
        self.cache.release(sequence)

    def follow_ups(self) -> list[Request]:
        """The two requests that everything turns on."""
        return [Request("A2", _tokens((100, 108), (900, 904))), Request("B2", _tokens((200, 208), (950, 954)))]

    def tell(self) -> list[str]:
        """What happened since the last time, page by page."""
        lines = []
        for event in self.cache.take_events():
            match event:
                case Stored(hashes=hashes, tokens=tokens):
                    self._name(hashes, tokens[::BLOCK].tolist())
                case Moved(hash=page, source=source, target=target):
                    self.places[page] = target
                    lines.append(f"page {self.names[page]} moves from {TIERS[source]} to {TIERS[target]}")
                case Removed(hashes=hashes):
                    for page in hashes:
                        del self.places[page]
                        lines.append(f"page {self.names[page]} is lost")
                case Retained():
                    pass
        return lines

    def _name(self, hashes: Iterable[int], first_tokens: list[int]) -> None:
        for page, first in zip(hashes, first_tokens, strict=True):
            self.names[page] = f"{'ABC'[first // 100 - 1]}{first % 100 // BLOCK}"
            self.places[page] = 0

    def _print_tiers(self) -> None:
        for tier, name in enumerate(TIERS):
            pages = sorted(self.names[page] for page, place in self.places.items() if place == tier)
            print(f"   {name:6} holds pages {' '.join(pages)}")
        print()

    def show(self, sequence: Sequence) -> None:
        """One line per block: reused or to be computed."""
        print(f"   {sequence.id}:")
        for block, slot in enumerate(sequence.slots().tolist()):
            first = int(sequence.request.tokens[block * BLOCK])
            how = "reused, brought up from the host" if (block + 1) * BLOCK <= sequence.start else "has to be computed"
            print(f"     block {block} (tokens {first}..{first + BLOCK - 1}) in slot {slot}: {how}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
