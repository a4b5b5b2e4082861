"""A log made through `quire serve`: conversations with a tiny random model, recorded by the server and by the client.

    python benchmarks/served_log.py FOLDER [--talks 12] [--turns 6]

FOLDER gets `model` (tiny, random, a token for each byte), `served.jsonl.gz` (what `quire serve --record` wrote) and
`requests.jsonl` (what an OpenAI-style proxy would have logged). From there on as with any log:

    quire trace make FOLDER/requests.jsonl -o FOLDER/requests-trace.jsonl.gz --tokenizer FOLDER/model
    quire trace stats FOLDER/served.jsonl.gz
    quire plan FOLDER/served.jsonl.gz --model llama-3-8b --ttft 500ms
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SYSTEM = "You are the assistant of a shop for garden tools. Answer in one sentence, and name the tool. " * 6
WORDS = ("rake", "spade", "hose", "shears", "glove", "soil", "seed", "mower", "bucket", "hoe", "fork", "trowel", "rope")


def main() -> int:
    """Make the model, serve it, talk, end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--talks", type=int, default=12)
    parser.add_argument("--turns", type=int, default=6)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    make_model(options.folder / "model")
    command = [sys.executable, "-m", "quire.cli", "serve", "--model", str(options.folder / "model"), "--port", "0",
               "--record", str(options.folder / "served.jsonl.gz"), "--model-name", "tiny"]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = next(found for line in server.stdout if (found := re.search(r"http://[\d.:]+", line)))
        threading.Thread(target=server.stdout.read, daemon=True).start()
        talk(found.group(), options)
        server.send_signal(signal.SIGTERM)
    print(f"{options.talks * options.turns} requests in {options.folder}")
    return server.returncode


def make_model(folder: Path) -> None:
    """Four layers that talk nonsense, and a token for each byte."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.engine.words import byte_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192)  # fmt: skip
    config.eos_token_id = None
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def talk(url: str, options: argparse.Namespace) -> None:
    """Conversations at once, each waiting for its answers; every request is logged as a proxy would."""
    lock = threading.Lock()
    with open(options.folder / "requests.jsonl", "w", encoding="utf-8") as log:

        def one(number: int) -> None:
            rng = random.Random(number)
            messages = [{"role": "system", "content": SYSTEM}]
            for _ in range(options.turns):
                messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(20, 60)))})
                body = {"model": "tiny", "messages": messages, "max_tokens": rng.randint(8, 24), "temperature": 0}
                came = time.time()
                request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                                 {"content-type": "application/json"})  # fmt: skip
                with urllib.request.urlopen(request) as reply:
                    told = json.load(reply)
                with lock:
                    line = {"created_at": came, "request": body, "usage": told["usage"]}
                    log.write(json.dumps(line) + "\n")
                messages = [*messages, told["choices"][0]["message"]]
                time.sleep(rng.random())

        threads = [threading.Thread(target=one, args=(number,)) for number in range(options.talks)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
