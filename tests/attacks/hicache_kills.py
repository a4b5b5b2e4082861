"""SGLang's storage, killed a thousand times, with the engine stubbed.

python -m tests.attacks.hicache_kills [KILLS] [FIRST SEED]
"""

from __future__ import annotations

from functools import partial

from ..integrations.sglang.stub_sglang import StubSGLang, key_of
from .checks import run
from .plug_kills import attack

PLUG = StubSGLang, key_of

if __name__ == "__main__":
    run("SGLang's storage, killed", partial(attack, *PLUG))
