"""One of several processes that share a store: `python -m tests.engine.shared_worker MODEL STORE`.

Reads lines of JSON, a prompt (text or token ids) and the number of tokens to answer with, and prints for each what it
answered, what it reused and what it computed. Ends with its input; then what it has computed is in the store.
"""

from __future__ import annotations

import json
import sys

from quire.engine import LLM
from quire.tiers.shared import SharedConfig

WAIT = 30.0  # seconds for pages: on a busy machine, too


def main() -> int:
    model, place = sys.argv[1:]
    with LLM(
        None if model == "smollm2" else model,
        shared=SharedConfig(place, wait=WAIT),
        device_bytes="64MiB",
        host_bytes="64MiB",
    ) as llm:
        print("ready", flush=True)
        for line in sys.stdin:
            prompt, count = json.loads(line)
            before = llm.loop.call(lambda engine: engine.stats.num_tokens)
            (answer,) = llm.generate([prompt], max_tokens=count, temperature=0, ignore_eos=True)
            computed = llm.loop.call(lambda engine: engine.stats.num_tokens) - before  # its last step is over
            assert llm.shared is not None and llm.shared.wait_until_idle(WAIT)
            told = {
                "tokens": answer.tokens[0],
                "reused": answer.reused,
                "computed": computed,
                "length": answer.num_prompt_tokens,
            }
            print(json.dumps(told | {"sent": llm.shared.counts().sent}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
