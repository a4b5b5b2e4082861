"""What it costs to know which model wrote a page: a digest of all bytes of its weights.

    python benchmarks/fingerprint.py [--gigabytes 1.0] [--rounds 3]

A Llama of that size with random weights, in memory; so nothing is kept from an earlier run, as it is for a model from a
folder. Seconds for a GB: of time, and of processor time of all threads.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from transformers import AutoModelForCausalLM, LlamaConfig

from quire.engine import Model, from_module
from quire.engine.model.weights import weights_digest

WIDTH = 1024


def model_of(gigabytes: float) -> Model:
    """As many layers as it takes."""
    layer = 4 * (4 * WIDTH * WIDTH + 3 * WIDTH * 4 * WIDTH)  # bytes
    shape = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 16, "vocab_size": 512}
    layers = max(1, round(gigabytes * 1e9 / layer))
    return from_module(AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=layers, **shape)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = model_of(options.gigabytes)
    size = sum(tensor.nbytes for tensor in model.module.state_dict().values()) / 1e9
    spent = []
    for _ in range(options.rounds):
        start, work = time.perf_counter(), time.process_time()
        weights_digest(model)
        spent.append(((time.perf_counter() - start) / size, (time.process_time() - work) / size))
    passed, worked = (median(each) for each in zip(*spent, strict=True))
    print(f"{size:.2f} GB of weights: {passed:.2f} s for a GB, {worked:.2f} s of processor time")


if __name__ == "__main__":
    main()
