"""Does the time to her first token tell Alice whether Bob has sent her prompt before? By hand, with many repeats.

    python -m tests.serve.tenant_times                 # 300 prompts of each kind, about two minutes
    python -m tests.serve.tenant_times --prompts 2000 --seed 7

In each round Bob sends a prompt, or another one of the same length, as a coin says; then Alice sends the prompt and her
time to first token is noted. Both kinds must look alike (a permutation test of the means' difference). As a control
Alice's own second key takes Bob's part: then the two kinds must differ, or the test could not see anything.
Ends with 1 when Alice can tell, or when the control shows nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import time

import numpy as np
import torch

from quire.serve import ApiKeys

from .rig import Serving, serving

ALICE, BOB, CAROL = "sk-alice-0123456789", "sk-bob-0123456789ab", "sk-alice-second-key-"
LINES = [f"alice {ALICE}", f"bob {BOB}", f"alice {CAROL}"]
LENGTH = 350  # characters, each a token
SHUFFLES = 5000
LETTERS = "abcdefghijklmnopqrstuvwxyz "
SIZES = {"device_pages": 2000, "max_num_tokens": 512}


def first_token(connection: http.client.HTTPConnection, key: str, prompt: str) -> float:
    """Seconds until the first event of an answer."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", body, headers)
    reply = connection.getresponse()
    reply.readline()
    took = time.perf_counter() - began
    rest = reply.read()
    assert reply.status == 200 and b"[DONE]" in rest, rest
    return took


def rounds(server: Serving, other: str, number: int, dice: random.Random) -> tuple[list[float], list[float]]:
    """Alice's times: `other` had sent her prompt, and had sent another one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    times: tuple[list[float], list[float]] = ([], [])
    kinds = [0, 1] * number
    dice.shuffle(kinds)
    for kind in kinds:
        prompt, another = ("".join(dice.choices(LETTERS, k=LENGTH)) for _ in range(2))
        first_token(connection, other, another if kind else prompt)
        times[kind].append(first_token(connection, ALICE, prompt))
    connection.close()
    return times


def chance(same: list[float], another: list[float], seed: int) -> float:
    """How often a difference of the means as large as this one comes by chance, between logarithms of the times."""
    values = np.log(np.array(same + another))
    rng = np.random.default_rng(seed)
    size = len(same)
    seen = abs(values[:size].mean() - values[size:].mean())
    larger = 0
    for _ in range(SHUFFLES):
        rng.shuffle(values)
        larger += abs(values[:size].mean() - values[size:].mean()) >= seen
    return (larger + 1) / (SHUFFLES + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=300, help="of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with serving(keys=ApiKeys(LINES), sizes=SIZES) as server:
        rounds(server, BOB, 10, random.Random(-1))  # warm
        for name, key, number in (("bob", BOB, options.prompts), ("her own second key", CAROL, 30)):
            same, another = rounds(server, key, number, random.Random(options.seed))
            found[name] = chance(same, another, options.seed)
            medians = [1e3 * float(np.median(times)) for times in (same, another)]
            print(f"{name}: {medians[0]:.3f} ms, had it another prompt {medians[1]:.3f} ms; p = {found[name]:.4f}")
    told = found["bob"] < 0.001
    blind = found["her own second key"] > 0.001
    print("Alice can tell" if told else "the control shows nothing: no verdict" if blind else "Alice cannot tell")
    return int(told or blind)


if __name__ == "__main__":
    sys.exit(main())
