"""A process whose pages last: `python -m tests.engine.disk_worker MODEL FOLDER`; it is killed, and another one goes on.

MODEL is a family of tests/engine/families.py, or smollm2. Reads lines of JSON, a prompt (text or token ids) and the
number of tokens to answer with, and prints for each what it answered and reused, and the time to the first token. What
it has computed is durable when it has printed.
"""

from __future__ import annotations

import json
import sys

from quire.engine import LLM
from quire.engine.memory.disk_side import DiskConfig

WAIT = 120.0  # seconds for pages: on a busy machine, too


def main() -> int:
    name, folder = sys.argv[1:]
    model = None
    if name != "smollm2":
        from .steps import model_of

        model = model_of(name)
    disk = DiskConfig(folder, wait=WAIT, flush=WAIT)
    with LLM(model, disk=disk, device_bytes="64MiB", host_bytes="64MiB", disk_bytes="256MiB") as llm:
        print("ready", flush=True)
        for line in sys.stdin:
            prompt, count = json.loads(line)
            (answer,) = llm.generate([prompt], max_tokens=count, temperature=0, ignore_eos=True)
            assert llm.disk is not None and llm.disk.flush()
            told = {
                "tokens": answer.tokens[0],
                "reused": answer.reused,
                "length": answer.num_prompt_tokens,
                "first": answer.time_to_first_token,
            }
            print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
