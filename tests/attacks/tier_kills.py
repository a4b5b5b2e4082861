"""vLLM's tier, killed a thousand times, with the engine stubbed.

python -m tests.attacks.tier_kills [KILLS] [FIRST SEED]
"""

from __future__ import annotations

from functools import partial

from ..integrations.plugs.stub_engine import StubEngine, key_of
from .checks import run
from .plug_kills import attack

PLUG = StubEngine, key_of

if __name__ == "__main__":
    run("vLLM's tier, killed", partial(attack, *PLUG))
