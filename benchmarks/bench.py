"""Interleaved minima of Quire, of a floor in C and, when it is installed, of vLLM's own block manager.

python benchmarks/bench.py [--rounds 15] [--quick] [--vllm-python PYTHON] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys

from cachebench.measure import measure
from cachebench.report import render


def main(argv: list[str] | None = None) -> int:
    """Measure and print; --json for machines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds; minima are reported (default 15)")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="interpreter of an environment that has vLLM")
    parser.add_argument("--quick", action="store_true", help="leave out the rows that need a million blocks")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    numbers = measure(options.rounds, options.vllm_python, quick=options.quick)
    print(json.dumps(numbers, indent=2) if options.json else render(numbers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
