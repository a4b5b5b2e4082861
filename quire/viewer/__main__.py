"""python -m quire.viewer: the live page with made-up conversations, without a model, until Ctrl-C.

To see what the page shows before there is an engine. `quire serve` has the same page with a real one.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from itertools import count

from quire.core.records.errors import QuireError
from quire.viewer.made_up_traffic import MadeUpTraffic, demo_cache
from quire.viewer.viewer import Viewer


def main(argv: list[str] | None = None) -> int:
    """Serve the page while the conversations go on."""
    parser = ArgumentParser(prog="python -m quire.viewer", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, default=8765, help="0: any free one (default %(default)s)")
    add("--users", type=int, default=60, metavar="N", help="conversations at the same time (default %(default)s)")
    add("--slots", type=int, default=3000, metavar="N", help="pages on the made-up device (default %(default)s)")
    add("--step", type=float, default=0.03, metavar="S", help="seconds that a step takes (default %(default)s)")
    add("--steps", type=int, metavar="N", help="end after so many (default: go on)")
    options = parser.parse_args(argv)
    cache = demo_cache(options.slots, options.slots + options.slots // 2)
    traffic = MadeUpTraffic(cache, options.users)
    try:
        traffic.viewer = Viewer(cache, port=options.port, waiting=traffic.waiting, name="made-up conversations")
    except QuireError as error:
        print(f"quire.viewer: {error}", file=sys.stderr)
        return 2
    print(f"open {traffic.viewer.url}   (Ctrl-C ends it)", flush=True)
    with traffic.viewer as viewer:
        try:
            for nth in count():
                if nth == options.steps:
                    break
                began = time.perf_counter()
                tokens = traffic.step()
                decided = time.perf_counter() - began
                time.sleep(max(0.0, options.step + 4e-5 * tokens - decided))
                spent = {"schedule": decided, "model": time.perf_counter() - began - decided}
                if tokens:
                    viewer.stepped(tokens, spent)
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
