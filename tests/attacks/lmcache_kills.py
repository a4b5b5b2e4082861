"""LMCache's adapter, killed a thousand times, with the engine stubbed.

python -m tests.attacks.lmcache_kills [KILLS] [FIRST SEED]
"""

from __future__ import annotations

from functools import partial

from ..integrations.lmcache.stub_lmcache import StubLMCache, key_of
from .checks import run
from .plug_kills import attack

PLUG = StubLMCache, key_of

if __name__ == "__main__":
    run("LMCache's adapter, killed", partial(attack, *PLUG))
