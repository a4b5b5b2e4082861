"""Prompts between engines whose pages are on a GPU: they travel through host memory, and the tokens are the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("msgspec")
if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

from quire.transfer import Limits, StagedView  # noqa: E402

from .. import families  # noqa: E402
from ..reference import Reference  # noqa: E402
from .test_peer import open_peer  # noqa: E402
from .test_staged_peer import assert_same_over  # noqa: E402


@pytest.fixture(params=families.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param in families.RECURRENT and not hasattr(transformers.DynamicCache, "get_conv_state"):
        pytest.skip(f"recurrent layers need transformers 5.22, this is {transformers.__version__}")
    return str(request.param)


@pytest.mark.parametrize(("there", "here"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_tokens_are_those_of_one_engine(name: str, there: str, here: str) -> None:
    """Prompts that share a beginning, on memory so small that the host takes part; some are cancelled on the way."""
    limits = Limits(transfer=60, lease=60)  # kernels are compiled on the way
    computes = open_peer(name, pages=40, device=there, serve=True, limits=limits)
    decodes = open_peer(name, pages=40, device=here, limits=limits)
    for peer, device in ((computes, there), (decodes, here)):
        assert isinstance(peer.endpoint._registry.view, StagedView) == (device == "cuda")
    assert_same_over(computes, decodes, Reference(families.build(name)))
